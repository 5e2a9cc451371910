"""Training. The module itself can be called, and returns the best model of the run:

    model = clearhead.train("lm-small", "run", data__train="texts/", train__max_steps=500)

The first argument is a preset, a run.toml or a Config, the second the folder of the run (default "run"), which is gone
on with if it holds one. Two underscores are a dot; an option without a section belongs to the model. Also resume=False,
device="cpu", compiled=False, tensorboard=True, microscope=True, quiet=True. What is left behind (log.jsonl with all
losses, report.html, checkpoints) is in the folder; docs/training.md tells more.
"""

from clearhead.called import make_callable

make_callable(__name__, "clearhead.train.train")  # which stands above this part
