"""What the lectures claim, and the experiment that tries each claim.

python claims/claims.py [NAME …] [--processes 6] [OPTION …]

Runs `clearhead compare` for each (for all without a name) in build/claims/NAME, on what prepare.py has made. What it
finds, without the weights, is kept in claims/results/NAME, and it goes on from there; tried.py makes the page of it.
Further options are those of compare, for a trial in build/claims/trial-NAME, of which nothing is kept.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from clearhead.lab.outcome import outcomes

HERE = Path(__file__).parent
BUILD, RESULTS = Path("build/claims"), HERE / "results"


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


def tuned(task: str, steps: int, metric: str, more: str = "", found: str = "") -> Claim:
    """BERT against RoFormer on a task of GLUE, from the models that roformer-pretraining has trained."""
    starts = ",".join(f"{BUILD}/roformer-pretraining/runs/position={p}/{{seed}}/best" for p in ("learned", "rotary"))
    data = f"--data.train {BUILD}/glue/{task}.train.tsv --data.valid {BUILD}/glue/{task}.dev.tsv"
    often = f"--train.steps {steps} --train.report {steps // 10} --train.check {steps // 10} --train.save {steps}"
    return Claim(
        f"roformer-{task.lower()}",
        f"RoFormer against BERT, pre-trained alike and fine-tuned on {task}: at least as good.",
        "tuned",
        f"--vary 'train.start={starts}' --metric {metric} {data} {often} {more}".rstrip(),
        found,
    )


PAIRS = "--data.second second"
CLAIMS = (
    Claim(
        "positions-language",
        "Learned and sinusoidal positions are equally good; relative and rotary ones are better than both; without any "
        "the order of words is lost (a decoder still sees it through its mask).",
        "language",
        "--vary model.position=learned,none,sinusoidal,relative,shaw,rotary --lengths 256,512,1024",
        "**One seed of three so far.** Learned and sinusoidal ones are alike (4.72 and 4.70). Relative ones as Shaw "
        "has them (4.49) and rotary ones (4.50) are better than both; T5's bias for a distance (4.70, `relative`) is "
        "not. Without any 4.76: the mask tells most of it. Beyond the length of training only Shaw's hold (4.45 at "
        "1,024, where T5's have 4.80, rotary 4.77 and sinusoidal 5.23).",
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
        "**Faster, and ahead at the end**: after 1,200 steps the loss is 3.55 against 5.44, after 6,000 it is 2.51 "
        "against 2.71. RoFormer is ahead with every seed, by 0.13 to 0.32, of which three seeds cannot make sure "
        "(p = 0.08): BERT's runs differ by when they find out what order is.",
    ),
    tuned(
        "SST-2",
        4000,
        "accuracy",
        found="**Better with every seed, not surely**: 82.4 % against 80.8 %, a difference of -1.1 to 4.4 points.",
    ),
    tuned(
        "MRPC",
        700,
        "f1",
        PAIRS,
        "**No difference, and nothing learned**: F1 of 0.804 and 0.803, where calling every pair a paraphrase gets "
        "0.812. 3,700 pairs do not teach models of this size to compare two sentences.",
    ),
    tuned(
        "CoLA",
        1500,
        "matthews",
        found="**No difference, and nothing learned**: a correlation of 0.03 against 0.07 (-0.16 to 0.09), where "
        "guessing gets 0.",
    ),
    tuned(
        "RTE",
        500,
        "accuracy",
        PAIRS,
        "**No difference, and nothing learned**: 51.7 % against 53.1 %, where the commoner answer alone gets 52.7 %.",
    ),
    tuned(
        "STS-B",
        1000,
        "spearman",
        f"{PAIRS} --model.head.kind number",
        "**Cannot be told**: 0.42 against 0.26, but single runs are between 0.09 and 0.61 with either: whether one "
        "gets going in 1,000 steps depends on its seed.",
    ),
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
        "--vary model.wiring=pre,post --vary train.warmup=500,0 --vary model.layers=6,12",
    ),
    Claim(
        "tied",
        "The unembedding may be the embedding matrix: as good, with fewer weights.",
        "language",
        "--vary model.head.tied=true,false",
        "**Not as good here**: untied is better by 0.11 (0.09 to 0.13), with 2.1 million weights more (30 %). At this "
        "size the matrix is a large part of the model.",
    ),
    Claim(
        "heads-scaling",
        "Several heads that look at different things are better than one. Scores are divided by the square root of the "
        "head's width: without it softmax saturates and learning suffers, the more the wider the heads are.",
        "language",
        "--vary model.attention.heads=8,1 --vary model.attention.scaled=true,false",
        "**The second half**: without the division the loss is worse by 0.16 with eight heads of width 32, by 0.50 "
        "with one of width 256, as the lectures say. But one head is as good as eight here (4.73 and 4.72; a "
        "difference of -0.05 to 0.06).",
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
    """What an experiment has found, without its weights, and without the runs that did not come to an end."""
    source, target = BUILD / name, RESULTS / name
    for file in ("experiment.toml", "results.jsonl", *(f"{run.place}/log.jsonl" for run in outcomes(source).values())):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, target / file)


def take_up(name: str) -> None:
    """Go on with what was kept, where the experiment itself is gone."""
    if (RESULTS / name).is_dir() and not (BUILD / name).is_dir():
        shutil.copytree(RESULTS / name, BUILD / name)


def main() -> None:
    names = [claim.name for claim in CLAIMS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help=", ".join(names))
    parser.add_argument("--processes", type=int, default=1, help="that share the runs of an experiment, and the GPU")
    given, more = parser.parse_known_args()
    if unknown := [name for name in given.name if name not in names]:
        parser.error(f"{', '.join(unknown)}: there is no such claim; there are {', '.join(names)}")
    for claim in CLAIMS:
        if given.name and claim.name not in given.name:
            continue
        command = claim.command
        if more:  # another experiment
            command = [*command[:-1], str(BUILD / f"trial-{claim.name}"), *more]
        else:
            take_up(claim.name)
        print(shlex.join(command), flush=True)
        several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(given.processes), "-m"]
        module = ["-m", *(several if given.processes > 1 else []), "clearhead"]
        status = subprocess.run([sys.executable, *module, *command[1:]], check=False).returncode
        if not more and outcomes(BUILD / claim.name):
            keep(claim.name)
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main()
