"""Claims of the lectures, and the experiments that test them.

    python claims/claims.py [NAME …] [--processes 6] [-- OPTION …]

Runs `clearhead compare` for these claims, by default all, on the data that prepare.py has written.
The experiment is in build/claims/NAME. Its results, without weights, are stored in
claims/results/NAME; if runs are missing there, the experiment is resumed. render_page.py renders
the page of all results.

OPTION is an option of compare for a trial in build/claims/trial-NAME, whose results are not stored;
a second trial needs another --output.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from clearhead.lab.experiment import EXPERIMENT_FILE, RESULTS_FILE, Experiment, read_results
from clearhead.lab.runner import is_incomplete, unfinished_runs
from clearhead.train.checkpoint import FINGERPRINT_FILE, LOG_FILE

HERE = Path(__file__).parent
BUILD = Path("build/claims")
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Claim:
    """A claim of the lectures, and the experiment that tests it."""

    name: str
    claim: str
    base: str  # a configuration in this folder, without .toml
    options: str  # of clearhead compare
    conclusion: str = ""  # of a person who has read the results

    @property
    def command(self) -> list[str]:
        """The command line of the experiment."""
        output = BUILD / self.name
        options = f"{self.options} --seeds 3 --output {output}"
        return ["clearhead", "compare", f"claims/{self.base}.toml", *shlex.split(options)]


def glue_claim(
    task: str, steps: int, metric: str, options: str = "", conclusion: str = ""
) -> Claim:
    """Compare BERT and RoFormer on a GLUE task, fine-tuning the models of roformer-pretraining."""
    models = ",".join(
        f"{BUILD}/roformer-pretraining/runs/position={position}/{{seed}}/best"
        for position in ("learned", "rotary")
    )
    glue = BUILD / "glue"
    all_options = [
        f"--vary 'train.init_from={models}' --metric {metric}",
        f"--data.train {glue}/{task}.train.tsv --data.valid {glue}/{task}.dev.tsv",
        f"--train.max_steps {steps} --train.log_every {steps // 10}",
        f"--train.eval_every {steps} --train.save_every {steps}",
        options,
    ]
    return Claim(
        f"roformer-{task.lower()}",
        f"RoFormer is at least as good as BERT, pre-trained the same way and fine-tuned on {task}.",
        "tuned",
        " ".join(all_options).rstrip(),
        conclusion,
    )


@dataclass(frozen=True)
class PublishedResult:
    """A column of Table 2 of RoFormer, in percent; the task is tested here if there is data."""

    task: str
    metric: str
    bert: str
    roformer: str


ROFORMER_TABLE = (
    PublishedResult("MRPC", "F1", "88.9", "89.5"),
    PublishedResult("SST-2", "accuracy", "93.5", "90.7"),
    PublishedResult("QNLI", "accuracy", "90.5", "88.0"),
    PublishedResult("STS-B", "Spearman correlation", "85.8", "87.0"),
    PublishedResult("QQP", "F1", "71.2", "86.4"),
    PublishedResult("MNLI", "accuracy, matched / mismatched", "84.6 / 83.4", "80.2 / 79.8"),
)
PAIRS = "--data.text_pair_column second"
CLAIMS = (
    Claim(
        "positions-language",
        "Learned and sinusoidal positions are equally good; relative and rotary positions are "
        "better than both. Without positions word order is lost, although a decoder still sees "
        "some of it through its mask.",
        "language",
        "--vary model.position=learned,none,sinusoidal,t5,shaw,rotary --eval-lengths 256,512,1024",
        "**Mostly, except for T5's.** Sinusoidal positions are better than learned ones by "
        "only 0.024 (0.010 to 0.038). Shaw's relative positions are better by 0.24 (0.18 to "
        "0.30), rotary ones by 0.27 (0.18 to 0.36); no difference was found between T5's "
        "relative bias and the sinusoids (-0.02 to 0.02). Without positions the loss is higher "
        "than with learned ones by only 0.028 (0.006 to 0.051): the mask provides most of the "
        "information. At four times the length in training, Shaw's reach 4.45, better than at "
        "the length in training, rotary 4.73, T5's 4.80, no positions 4.91, sinusoidal 5.26; "
        "learned positions cannot be extrapolated.",
    ),
    Claim(
        "positions-translation",
        "In translation, learned and sinusoidal positions are within 0.1 BLEU of each other "
        "(2017), and rotary ones are slightly better (RoFormer: 27.5 instead of 27.3).",
        "translation",
        "--vary model.position=sinusoidal,none,learned,t5,rotary --metric bleu",
        "**The first half does not hold after 3,000 steps.** Learned positions are 2.8 BLEU "
        "behind sinusoidal ones (1.7 to 3.8); one explanation is that training first has to "
        "find what sinusoids provide. Rotary positions were better by 1.3 (0.2 to 2.4, not "
        "significant among four comparisons), T5's relative ones worse by 0.9 (-2.8 to 1.0). "
        "Without positions, 9.3 BLEU are lost.",
    ),
    Claim(
        "positions-masked",
        "RoFormer learns masked language modeling faster than BERT.",
        "masked",
        "--vary model.position=learned,none,sinusoidal,t5,rotary",
        "**Much faster than learned positions, in an encoder that is not BERT.** After 2,000 "
        "steps the loss is 3.21 with rotary positions, 3.96 with sinusoidal, 4.47 with "
        "relative ones. With learned ones it is 6.25, no better than without positions: they "
        "have not learned word order yet. But this encoder is pre-norm and scales embeddings "
        "as in 2017, next to which learned positions start small. The next experiment uses "
        "BERT's architecture.",
    ),
    Claim(
        "roformer-pretraining",
        "RoFormer compared with BERT in BERT's architecture, with six times the steps of "
        "positions-masked. These models are fine-tuned below.",
        "bert",
        "--vary model.position=learned,rotary",
        "**Faster; better at the end with every seed, but not significantly.** After 1,500 "
        "steps the loss is 3.31 instead of 4.50, after 12,000 it is 2.30 instead of 2.38 (a "
        "difference of -0.26 to 0.09). RoFormer's three runs end within 0.014 of each other; "
        "one of BERT's started to learn about 500 steps after the other two and stayed 0.1 "
        "behind them.",
    ),
    glue_claim(
        "SST-2",
        4000,
        "accuracy",
        conclusion=(
            "**Better with every seed, but not significantly**: 84.1 % instead of 82.5 %, a "
            "difference of -0.7 to 4.0 points."
        ),
    ),
    glue_claim(
        "MRPC",
        1200,
        "f1",
        PAIRS,
        (
            "**Worse with every seed, but not significantly**: F1 of 0.754 instead of 0.787 (a "
            "difference of -0.09 to 0.02), below the 0.812 of predicting a paraphrase for "
            "every pair. Both learn something (Matthews correlation 0.13 to 0.30) and memorize "
            "the training pairs."
        ),
    ),
    glue_claim(
        "CoLA",
        2700,
        "matthews_correlation",
        conclusion=(
            "**No difference found** (-0.06 to 0.08): a correlation of 0.18 for both, where "
            "guessing has 0."
        ),
    ),
    glue_claim(
        "RTE",
        800,
        "accuracy",
        PAIRS,
        (
            "**Neither learns it**: 50.1 % instead of 53.4 % (a difference of -14.1 to 7.3 "
            "points), where the majority class has 52.7 %. After ten epochs the 2,490 training "
            "pairs are memorized, and RoFormer is more confident in wrong answers (a loss of "
            "2.99 instead of 2.46, with every seed)."
        ),
    ),
    glue_claim(
        "STS-B",
        1800,
        "spearman",
        f"{PAIRS} --model.head.kind regression --model.head.pooling mean",
        (
            "**Better on average, not significantly**: 0.690 instead of 0.598 (a difference of "
            "-0.25 to 0.44). RoFormer's runs are at 0.65 to 0.72, BERT's at 0.52, 0.55 and 0.72. "
            "These runs start from a repetition of roformer-pretraining with the same seeds, "
            "which ended with the same losses (2.38 and 2.30)."
        ),
    ),
    Claim(
        "heads-translation",
        "One head costs 0.9 BLEU compared with eight (2017).",
        "translation",
        "--vary model.attention.n_heads=8,1 --metric bleu",
        "**Not here**: a cost of 0.9 is outside the interval. One head of dimension 256 was "
        "1.1 BLEU better than eight of dimension 32 (-0.03 to 2.2, not significant), and its "
        "loss is lower by 0.07 (0.04 to 0.10). The 2017 model had eight heads of dimension 64 "
        "and 4.5 million sentence pairs; this one has 29,000 and heads of half the size.",
    ),
    Claim(
        "norm",
        "With post-norm, as in 2017, a deep stack needs learning-rate warmup; with pre-norm it "
        "does not.",
        "language",
        "--vary model.norm_position=pre,post --vary train.warmup_steps=500,0 --vary "
        "model.n_layers=6,12",
        "**Yes.** With post-norm and without warmup, 12 layers learn only the token "
        "frequencies (7.25), and 6 layers end at 5.4 to 6.3. With 500 steps of warmup the same "
        "models reach 4.55 and 4.68 and are *better* than pre-norm: 12 layers by 0.06 (0.02 to "
        "0.10), 6 by 0.06 (0.03 to 0.09). With pre-norm, warmup makes no measurable difference "
        "(6 layers -0.04 to 0.03, 12 layers -0.05 to 0.03).",
    ),
    Claim(
        "tied",
        "The unembedding can share the embedding matrix: as good, with fewer parameters.",
        "language",
        "--vary model.head.tie_embeddings=true,false",
        "**Not as good here**: untied embeddings are better by 0.11 (0.09 to 0.13), with 2.1 "
        "million more parameters (30 %). At this size the matrix is a large part of the model.",
    ),
    Claim(
        "heads-scaling",
        "Several heads that attend to different things are better than one. Scores are divided "
        "by the square root of the head dimension: otherwise softmax saturates and training "
        "suffers, the more the larger the heads are.",
        "language",
        "--vary model.attention.n_heads=8,1 --vary model.attention.scale=true,false",
        "**The second half**: without scaling, the loss is worse by 0.16 with eight heads of "
        "dimension 32 and by 0.50 with one of dimension 256, as the lectures expect; whether "
        "softmax saturates was not measured. No difference was found between eight heads and "
        "one (-0.05 to 0.06).",
    ),
    Claim(
        "smoothing",
        "Label smoothing makes perplexity worse and BLEU better (2017).",
        "translation",
        "--vary train.label_smoothing=0,0.1 --metric bleu",
        "**Half of it**: BLEU is better by 1.8 (0.9 to 2.7), but perplexity is better too, "
        "6.00 instead of 6.57. A likely cause is less overfitting on the 29,000 sentence "
        "pairs. Without smoothing, the loss is lowest at step 1,750 and ends 0.04 to 0.06 "
        "higher with every seed; with smoothing it ends at most 0.014 higher.",
    ),
)


def store_results(name: str) -> None:
    """Copy the results of complete runs, without weights; never fewer than are stored already."""
    source = BUILD / name
    target = RESULTS / name
    if not (source / EXPERIMENT_FILE).is_file():
        return
    experiment = Experiment.read(source / EXPERIMENT_FILE)
    complete = {
        key: run for key, run in read_results(source).items() if not is_incomplete(experiment, run)
    }
    if not complete:
        return
    if not read_results(target).keys() <= complete.keys():
        sys.exit(f"{target} has runs that {source} does not have. Remove one of the two.")
    shutil.rmtree(target, ignore_errors=True)
    logs = [f"{run.path}/{LOG_FILE}" for run in complete.values()]
    for file in (EXPERIMENT_FILE, FINGERPRINT_FILE, *logs):
        if (source / file).is_file():  # a run may diverge before it has logged anything
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, target / file)
    lines = [json.dumps(asdict(run)) + "\n" for run in complete.values()]
    (target / RESULTS_FILE).write_text("".join(lines))


def restore_results(name: str) -> None:
    """Prepare the folder of an experiment with missing runs from its stored results."""
    source = RESULTS / name
    target = BUILD / name
    if not (source / EXPERIMENT_FILE).is_file() or target.exists():
        return
    if unfinished_runs(Experiment.read(source / EXPERIMENT_FILE), read_results(source)):
        temporary = target.with_name(f".{name}")
        shutil.copytree(source, temporary, dirs_exist_ok=True)
        temporary.rename(target)


def run_command(command: list[str], processes: int) -> int:
    """Run clearhead and return its exit status; on Ctrl-C, the runs save and exit by themselves."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    arguments = ["-m", *(launcher if processes > 1 else []), *command]
    with subprocess.Popen([sys.executable, *arguments]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def main(arguments: list[str]) -> None:
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    trial_options = arguments[separator + 1 :]
    names = [claim.name for claim in CLAIMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=", ".join(names))
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes that share the runs"
    )
    options = parser.parse_args(arguments[:separator])
    if unknown := [name for name in options.name if name not in names]:
        parser.error(f"unknown claim: {', '.join(unknown)}; known: {', '.join(names)}")
    for claim in CLAIMS:
        if options.name and claim.name not in options.name:
            continue
        command = claim.command
        if trial_options:
            command = [*command[:-1], str(BUILD / f"trial-{claim.name}"), *trial_options]
        else:
            restore_results(claim.name)
        print(shlex.join(command), flush=True)
        status = run_command(command, options.processes)
        if not trial_options:
            store_results(claim.name)
        if status:
            if not any((BUILD / part).is_dir() for part in ("text", "pairs", "glue")):
                hint = "Run python claims/prepare.py DATA first; it writes the training data."
                print(hint, file=sys.stderr)
            sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
