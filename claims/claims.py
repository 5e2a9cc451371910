"""What the lectures claim, and the experiment that tries each claim.

python claims/claims.py [NAME …] [--processes 6] [OPTION …]

Runs `clearhead compare` for each (for all without a name) in build/claims/NAME, on what prepare.py has made; it goes on
where it was. What it finds, without the weights, is kept in claims/results/NAME; tried.py makes the page of it. Further
options are those of compare, for a trial, of which nothing is kept.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILD, RESULTS = Path("build/claims"), HERE / "results"
KEPT = ("experiment.toml", "results.jsonl", "runs/*/*/log.jsonl")


@dataclass(frozen=True)
class Claim:
    """A sentence of the lectures, and how it is tried."""

    name: str
    says: str  # the claim
    base: str  # what is trained, a file beside this one
    options: str  # of clearhead compare
    found: str = ""  # what came out, in words; empty until somebody has read the numbers

    @property
    def command(self) -> list[str]:
        what = f"compare claims/{self.base}.toml {self.options} --seeds 3 --out {BUILD / self.name}"
        return ["clearhead", *shlex.split(what)]


def tuned(task: str, steps: int, metric: str, more: str = "") -> Claim:
    """BERT against RoFormer on a task of GLUE, from the models that roformer-pretraining has trained."""
    starts = ",".join(f"{BUILD}/roformer-pretraining/runs/position={p}/{{seed}}/best" for p in ("learned", "rotary"))
    data = f"--data.train {BUILD}/glue/{task}.train.tsv --data.valid {BUILD}/glue/{task}.dev.tsv"
    often = f"--train.steps {steps} --train.report {steps // 10} --train.check {steps // 10} --train.save {steps}"
    return Claim(
        f"roformer-{task.lower()}",
        f"RoFormer against BERT, pre-trained alike and fine-tuned on {task}: at least as good.",
        "tuned",
        f"--vary 'train.start={starts}' --metric {metric} {data} {often} {more}".rstrip(),
    )


PAIRS = "--data.second second"
CLAIMS = (
    Claim(
        "positions-language",
        "Learned and sinusoidal positions are equally good; relative and rotary ones are better than both; without any "
        "the order of words is lost (a decoder still sees it through its mask).",
        "language",
        "--vary model.position=learned,none,sinusoidal,relative,shaw,rotary --lengths 256,512,1024",
    ),
    Claim(
        "positions-translation",
        "In translation learned and sinusoidal positions are within 0.1 BLEU of each other (2017), and rotary ones are "
        "slightly better (RoFormer: 27.5 against 27.3).",
        "translation",
        "--vary model.position=sinusoidal,none,learned,relative,rotary --metric bleu",
        "**The first half not in 3,000 steps**: learned positions are 2.8 BLEU behind sinusoidal ones (1.7 to 3.8), as "
        "if training had to find first what sinusoids bring along. Rotary ones came 1.3 above (0.2 to 2.4, but not "
        "sure among four comparisons); without positions 9.3 are lost.",
    ),
    Claim(
        "positions-masked",
        "RoFormer learns to guess hidden words faster than BERT.",
        "masked",
        "--vary model.position=learned,none,sinusoidal,relative,rotary",
        "**Much faster**: after 2,000 steps the loss is 3.21 with rotary positions, 3.96 with sinusoidal, 4.47 with "
        "relative ones. With learned ones it is 6.25 and no better than without any: they have not yet found what "
        "order is. But this encoder has its norms before each part, and embeddings of 2017's size, beside which "
        "learned positions start small; BERT itself is tried next.",
    ),
    Claim(
        "roformer-pretraining",
        "RoFormer against BERT, built as BERT is, with three times the steps of positions-masked. The models that are "
        "fine-tuned below.",
        "bert",
        "--vary model.position=learned,rotary",
    ),
    tuned("SST-2", 4000, "accuracy"),
    tuned("MRPC", 700, "f1", PAIRS),
    tuned("CoLA", 1500, "matthews"),
    tuned("RTE", 500, "accuracy", PAIRS),
    tuned("STS-B", 1000, "spearman", f"{PAIRS} --model.head.kind number"),
    Claim(
        "heads-translation",
        "One head costs 0.9 BLEU against eight (2017).",
        "translation",
        "--vary model.attention.heads=8,1 --metric bleu",
        "**Not so here**: a cost of 0.9 is outside the interval. One head of width 256 came 1.1 BLEU above eight of "
        "width 32 (-0.03 to 2.2: that it is better cannot be claimed). 2017 had eight heads of width 64 and 4.5 "
        "million sentences; here are 29,000, and heads half as wide.",
    ),
    Claim(
        "norm",
        "With the norm after each part, as in 2017, a deep stack needs a warm-up of the rate; with the norm before each"
        " part it does not.",
        "language",
        "--vary model.wiring=pre,post --vary train.warmup=150,0 --model.layers 12",
    ),
    Claim(
        "tied",
        "The unembedding may be the embedding matrix: as good, with fewer weights.",
        "language",
        "--vary model.head.tied=true,false",
    ),
    Claim(
        "heads-scaling",
        "Several heads that look at different things are better than one. Scores are divided by the square root of the "
        "head's width: without it softmax saturates and learning suffers, the more the wider the heads are.",
        "language",
        "--vary model.attention.heads=8,1 --vary model.attention.scaled=true,false",
    ),
    Claim(
        "smoothing",
        "Label smoothing makes perplexity worse and BLEU better (2017).",
        "translation",
        "--vary train.smoothing=0,0.1 --metric bleu",
        "**Half of it**: BLEU is better by 1.8 (0.9 to 2.7), but perplexity is better too, 6.00 against 6.57. A likely "
        "cause: of only 29,000 sentences it keeps the model from learning many by heart.",
    ),
)


def keep(name: str) -> None:
    """What an experiment has found, without its weights."""
    source, target = BUILD / name, RESULTS / name
    for file in (file for pattern in KEPT for file in source.glob(pattern)):
        there = target / file.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)


def main() -> None:
    names = [claim.name for claim in CLAIMS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help=", ".join(names))
    parser.add_argument("--processes", type=int, default=1, help="that share the runs of an experiment, and the GPU")
    given, more = parser.parse_known_args()
    if unknown := [name for name in given.name if name not in names]:
        parser.error(f"{', '.join(unknown)}: there is no such claim; there are {', '.join(names)}")
    for claim in CLAIMS:
        if not given.name or claim.name in given.name:
            print(shlex.join([*claim.command, *more]), flush=True)
            several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(given.processes), "-m"]
            module = ["-m", *(several if given.processes > 1 else []), "clearhead"]
            if status := subprocess.run([sys.executable, *module, *claim.command[1:], *more], check=False).returncode:
                sys.exit(status)
            if not more:  # with other options it is another experiment
                keep(claim.name)


if __name__ == "__main__":
    main()
