"""What the lectures claim, and the experiment that tries each claim.

python claims/claims.py [NAME …] [--processes 6] [-- OPTION …]

Runs `clearhead compare` for each (for all without a name) in build/claims/NAME, on what prepare.py has made. What it
finds, without the weights, is kept in claims/results/NAME; where runs are missing there, it goes on. tried.py makes the
page of it. Options are those of compare, for a trial of which nothing is kept, in build/claims/trial-NAME; a second one
needs an --out.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from clearhead.lab.experiment import EXPERIMENT_FILE, Experiment, read_results
from clearhead.lab.experiment import RESULTS_FILE as LINES
from clearhead.lab.runner import is_incomplete, unfinished_runs
from clearhead.train.checkpoint import FINGERPRINT_FILE as DATA
from clearhead.train.checkpoint import LOG_FILE

HERE = Path(__file__).parent
BUILD = Path("build/claims")
RESULTS = HERE / "results"


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
    starts = ",".join(
        f"{BUILD}/roformer-pretraining/runs/position={p}/{{seed}}/best"
        for p in ("learned", "rotary")
    )
    data = f"--data.train {BUILD}/glue/{task}.train.tsv --data.valid {BUILD}/glue/{task}.dev.tsv"
    often = f"--train.max_steps {steps} --train.log_every {steps // 10} --train.eval_every {steps} --train.save_every {steps}"
    return Claim(
        f"roformer-{task.lower()}",
        f"RoFormer against BERT, pre-trained alike and fine-tuned on {task}: at least as good.",
        "tuned",
        f"--vary 'train.init_from={starts}' --metric {metric} {data} {often} {more}".rstrip(),
        found,
    )


PAIRS = "--data.text_pair_column second"
CLAIMS = (
    Claim(
        "positions-language",
        "Learned and sinusoidal positions are equally good; relative and rotary ones are better than both; without any "
        "the order of words is lost (a decoder still sees it through its mask).",
        "language",
        "--vary model.position=learned,none,sinusoidal,t5,shaw,rotary --lengths 256,512,1024",
        "**Nearly, but for T5's**: sinusoidal positions are better than learned ones, by only 0.024 (0.010 to 0.038). "
        "Relative ones as Shaw has them are better by 0.24 (0.18 to 0.30), rotary ones by 0.27 (0.18 to 0.36); "
        "T5's bias for a distance (`relative`) is with the sinusoids (-0.02 to 0.02). Without any the loss is worse "
        "than with learned ones by only 0.028 (0.006 to 0.051): the mask tells most. At four times the length of "
        "training Shaw's are at 4.45, better than at their own, rotary at 4.73, T5's at 4.80, none at 4.91, sinusoidal "
        "at 5.26; learned ones cannot read so far.",
    ),
    Claim(
        "positions-translation",
        "In translation learned and sinusoidal positions are within 0.1 BLEU of each other (2017), and rotary ones are "
        "slightly better (RoFormer: 27.5 against 27.3).",
        "translation",
        "--vary model.position=sinusoidal,none,learned,t5,rotary --metric bleu",
        "**The first half not in 3,000 steps**: learned positions are 2.8 BLEU behind sinusoidal ones (1.7 to 3.8), as "
        "if training had to find first what sinusoids bring along. Rotary ones came 1.3 above (0.2 to 2.4, but not "
        "sure among four comparisons), T5's relative ones 0.9 below (-2.8 to 1.0); without positions 9.3 are lost.",
    ),
    Claim(
        "positions-masked",
        "RoFormer learns to guess hidden words faster than BERT.",
        "masked",
        "--vary model.position=learned,none,sinusoidal,t5,rotary",
        "**Much faster, but beside learned positions, not yet beside BERT**: after 2,000 steps the loss is 3.21 with "
        "rotary positions, 3.96 with sinusoidal, 4.47 with relative ones. With learned ones it is 6.25 and no better "
        "than without any: they have not yet found what order is. But this encoder has its norms before each part, "
        "and embeddings of 2017's size, beside which learned positions start small; BERT itself is tried next.",
    ),
    Claim(
        "roformer-pretraining",
        "RoFormer against BERT, built as BERT is, with six times the steps of positions-masked. The models that are "
        "fine-tuned below.",
        "bert",
        "--vary model.position=learned,rotary",
        "**Faster; ahead at the end with every seed, not surely**: after 1,500 steps the loss is 3.31 against 4.50, "
        "after 12,000 it is 2.30 against 2.38 (a difference of -0.26 to 0.09). RoFormer's three runs end within 0.014 "
        "of each other; one of BERT's began to learn some 500 steps after the other two and stayed 0.1 behind them.",
    ),
    tuned(
        "SST-2",
        4000,
        "accuracy",
        found="**Better with every seed, not surely**: 84.1 % against 82.5 %, a difference of -0.7 to 4.0 points.",
    ),
    tuned(
        "MRPC",
        1200,
        "f1",
        PAIRS,
        "**Worse with every seed, not surely**: F1 of 0.754 against 0.787 (a difference of -0.09 to 0.02), below the "
        "0.812 of calling every pair a paraphrase. Both learn a little (Matthews' correlation 0.13 to 0.30), and the "
        "training pairs by heart.",
    ),
    tuned(
        "CoLA",
        2700,
        "matthews",
        found="**No difference was found** (-0.06 to 0.08): a correlation of 0.18 with both, where guessing gets 0.",
    ),
    tuned(
        "RTE",
        800,
        "accuracy",
        PAIRS,
        "**Neither learns it**: 50.1 % against 53.4 % (a difference of -14.1 to 7.3 points), where the commoner "
        "answer alone gets 52.7 %. The 2,490 training pairs are known by heart after ten epochs, and RoFormer is "
        "then the more sure of wrong answers (a loss of 2.99 against 2.46, with every seed).",
    ),
    tuned(
        "STS-B",
        1800,
        "spearman",
        f"{PAIRS} --model.head.kind number --model.head.pooling mean",
        "**Steadier, not surely better**: 0.656 against 0.557 (a difference of -0.18 to 0.38). RoFormer's runs are at "
        "0.65 to 0.66, BERT's at 0.48, 0.52 and 0.67; its best starts from the pre-training that came out worst. "
        "**These runs read the first token**, by an oversight, where the other tasks read the mean of all; the command "
        "has been mended, the runs have not been repeated.",
    ),
    Claim(
        "heads-translation",
        "One head costs 0.9 BLEU against eight (2017).",
        "translation",
        "--vary model.attention.n_heads=8,1 --metric bleu",
        "**Not so here**: a cost of 0.9 is outside the interval. One head of width 256 came 1.1 BLEU above eight of "
        "width 32 (-0.03 to 2.2: that it is better cannot be claimed), and its loss is lower by 0.07 (0.04 to 0.10). "
        "2017 had eight heads of width 64 and 4.5 million sentences; here are 29,000, and heads half as wide.",
    ),
    Claim(
        "norm",
        "With the norm after each part, as in 2017, a deep stack needs a warm-up of the rate; with the norm before each"
        " part it does not.",
        "language",
        "--vary model.norm_position=pre,post --vary train.warmup_steps=500,0 --vary model.n_layers=6,12",
        "**Yes**: with the norm after, 12 layers without warm-up learn no more than how common each token is (7.25), "
        "6 layers end at 5.4 to 6.3. With 500 steps of warm-up the same models reach 4.55 and 4.68 and are then "
        "*better* than those with the norm before: 12 layers by 0.06 (0.02 to 0.10), 6 by 0.06 (0.03 to 0.09). With "
        "the norm before, warm-up changes nothing that can be told (6 layers -0.04 to 0.03, 12 layers -0.05 to "
        "0.03).",
    ),
    Claim(
        "tied",
        "The unembedding may be the embedding matrix: as good, with fewer weights.",
        "language",
        "--vary model.head.tie_embeddings=true,false",
        "**Not as good here**: untied is better by 0.11 (0.09 to 0.13), with 2.1 million weights more (30 %). At this "
        "size the matrix is a large part of the model.",
    ),
    Claim(
        "heads-scaling",
        "Several heads that look at different things are better than one. Scores are divided by the square root of the "
        "head's width: without it softmax saturates and learning suffers, the more the wider the heads are.",
        "language",
        "--vary model.attention.n_heads=8,1 --vary model.attention.scale=true,false",
        "**The second half**: without the division the loss is worse by 0.16 with eight heads of width 32, by 0.50 "
        "with one of width 256, as the lectures expect; that softmax saturates was not measured. Between eight heads "
        "and one no difference was found (-0.05 to 0.06).",
    ),
    Claim(
        "smoothing",
        "Label smoothing makes perplexity worse and BLEU better (2017).",
        "translation",
        "--vary train.label_smoothing=0,0.1 --metric bleu",
        "**Half of it**: BLEU is better by 1.8 (0.9 to 2.7), but perplexity is better too, 6.00 against 6.57. A likely "
        "cause: it keeps the model from learning its 29,000 sentences by heart. Without it the loss is lowest at step "
        "1,750 and ends 0.04 to 0.06 above that with every seed, with it at most 0.014.",
    ),
)


def keep(name: str) -> None:
    """What an experiment has found, without its weights: of runs that miss nothing, and no less than before."""
    source = BUILD / name
    target = RESULTS / name
    if not (source / EXPERIMENT_FILE).is_file():
        return
    experiment = Experiment.read(source / EXPERIMENT_FILE)
    whole = {
        key: run for key, run in read_results(source).items() if not is_incomplete(experiment, run)
    }
    if not whole:
        return
    if not read_results(target).keys() <= whole.keys():
        sys.exit(
            f"{target} holds runs that {source} has not; it is left as it is. Remove one of them."
        )
    shutil.rmtree(target, ignore_errors=True)
    for file in (EXPERIMENT_FILE, DATA, *(f"{run.path}/{LOG_FILE}" for run in whole.values())):
        if (source / file).is_file():  # a run may diverge before it has logged anything
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, target / file)
    (target / LINES).write_text("".join(json.dumps(asdict(run)) + "\n" for run in whole.values()))


def take_up(name: str) -> None:
    """An experiment that was kept before all of its runs had been trained goes on, also where its folder is gone."""
    source = RESULTS / name
    target = BUILD / name
    if not (source / EXPERIMENT_FILE).is_file() or target.exists():
        return
    if unfinished_runs(Experiment.read(source / EXPERIMENT_FILE), read_results(source)):
        half = target.with_name(f".{name}")
        shutil.copytree(source, half, dirs_exist_ok=True)
        half.rename(target)


def train(command: list[str], processes: int) -> int:
    """The status it ends with; a Ctrl-C is for the runs, which save what they have and end by themselves."""
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    module = ["-m", *(several if processes > 1 else []), *command]
    with subprocess.Popen([sys.executable, *module]) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def main(words: list[str]) -> None:
    cut = words.index("--") if "--" in words else len(words)
    names = [claim.name for claim in CLAIMS]
    more = words[cut + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=", ".join(names))
    parser.add_argument(
        "--processes", type=int, default=1, help="that share the runs of an experiment, and the GPU"
    )
    given = parser.parse_args(words[:cut])
    if unknown := [name for name in given.name if name not in names]:
        parser.error(f"{', '.join(unknown)}: there is no such claim; there are {', '.join(names)}")
    for claim in CLAIMS:
        if given.name and claim.name not in given.name:
            continue
        command = claim.command
        if more:
            command = [*command[:-1], str(BUILD / f"trial-{claim.name}"), *more]
        else:
            take_up(claim.name)
        print(shlex.join(command), flush=True)
        status = train(command, given.processes)
        if not more:
            keep(claim.name)
        if status:
            if not any((BUILD / part).is_dir() for part in ("text", "pairs", "glue")):
                print(
                    "python claims/prepare.py DATA comes first: it makes what the experiments read.",
                    file=sys.stderr,
                )
            sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
