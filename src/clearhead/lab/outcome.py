"""What came of a run, as a line of results.jsonl: what it reached, and what it cost."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from clearhead import reader
from clearhead.config import Config
from clearhead.data.alone import alone
from clearhead.errors import ClearheadError
from clearhead.files import json_lines, overwrite
from clearhead.lab.experiment import LAST, LOCK, LOSS, RESULTS, Training
from clearhead.train import report
from clearhead.train.begin import CONFIG
from clearhead.train.diagnosis import points


@dataclass(frozen=True)
class Outcome(Training):
    """One run at its end; None where there is no such number."""

    end: str  # done, patience, or diverged
    why: str = ""  # it diverged
    steps: int = 0
    loss: float | None = None  # the lowest on what is held out
    last: float | None = None  # the one at the end
    parameters: int = 0
    seconds: float | None = None  # of all steps, without validations and saving
    tokens_a_second: float | None = None
    memory: int | None = None  # bytes at the peak
    machine: str = ""
    processes: int = 1  # that worked on this machine at once
    figures: dict[str, float] = field(default_factory=dict)  # of clearhead evaluate
    lengths: dict[str, dict[str, float]] = field(default_factory=dict)  # loss, and the share of tokens beyond

    @classmethod
    def of(cls, place: Path, variant: str, seed: int, **known: Any) -> Self:
        """What the folder of a run tells; a run may have diverged before it told anything."""
        lines = json_lines(place / report.LOG)
        valid = [value for _, value in points(lines, "valid")]
        told: dict[str, Any] = {"parameters": Config.of(reader.load(place / CONFIG)).parameters()}
        if lines and (place / report.FACTS).is_file():
            facts = reader.load(place / report.FACTS)
            speed = report.lessons_a_second(lines) * facts["speed"]["tokens"]
            told |= {"seconds": report.seconds(facts, lines), "tokens_a_second": speed, "machine": facts["machine"]}
        if lines:
            told["steps"] = lines[-1]["step"]
        if valid:
            told |= {"loss": min(valid), "last": valid[-1]}
            best = next(line for line in lines if line.get("valid") == min(valid))
            told["figures"] = {"accuracy": best["accuracy"]} if "accuracy" in best else {}
        return cls(variant, seed, **told, **known)

    def value(self, metric: str) -> float | None:
        """What the run is judged by; a run that diverged has nothing to be judged by."""
        if self.end == "diverged":
            return None
        found = {**self.figures, LOSS: self.loss, LAST: self.last}.get(metric)  # evaluate has a loss of its own
        return found if found is not None and math.isfinite(found) else None


def outcomes(out: Path) -> dict[tuple[str, int], Outcome]:
    """All that are known, by variant and seed."""
    try:
        found = [Outcome(**line) for line in json_lines(out / RESULTS)]
    except TypeError:
        raise ClearheadError(f"{out / RESULTS} holds lines that are no results of this version of clearhead.") from None
    return {each.key: each for each in found}


def keep(out: Path, outcome: Outcome) -> dict[tuple[str, int], Outcome]:
    """In the place of what was known of the run, in one step, and in one process at a time; all that is known then."""
    with alone(out / LOCK):
        known = outcomes(out) | {outcome.key: outcome}
        overwrite(out / RESULTS, "".join(json.dumps(asdict(each)) + "\n" for each in known.values()).encode())
        return known
