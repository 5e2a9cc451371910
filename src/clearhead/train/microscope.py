"""A microscope on training: how attention, the logit lens and the embeddings of a few probes come to be.

out/microscope/00000010.safetensors    what was seen after step 10
out/microscope/index.json              the probes, and the steps that were looked at; what it does not name is not there
out/microscope/tokens.json             every token and every answer for people to read
out/microscope/film.png                one head and the lens over the steps, drawn at the end
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clearhead import reader
from clearhead.data.packed import Dataset
from clearhead.files import draft_of, place, write_json
from clearhead.lens.film import FOLDER, INDEX, TOKENS, file_of, read_film
from clearhead.lens.film_figure import film_figure
from clearhead.train.probes import LONGEST, MOST, choose
from clearhead.train.sight import Planes, Sight
from clearhead.train.team import ALONE, Alone
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.store import Safetensors

SHARE = 0.03  # of a run's time that looking may take
A_DECADE = 6  # looks while the steps grow tenfold


class Microscope:
    """Looks at a net while it is trained: `run.train(watch, each=microscope)`.

    When: before the first step, after about six steps a decade (1, 2, 3, 5, 7, 10, 15 …), and after the last. The
    first look and the last are always taken. Another is left out, and the next one has its chance, if with it and
    with the last one all looks would take more than 3 % of the time that the whole run will take; that is foreseen
    from the time of its steps so far. Measured against the time so far alone, a film would lack its beginning, where
    the most is learned; but a run that ends early may so have spent more than 3 % of its shorter time.

    A run that goes on from a checkpoint keeps the looks up to it; later ones are taken again.
    """

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        out: Path,
        step: int = 0,
        team: Alone = ALONE,
        say: Callable[[str], None] = print,
    ) -> None:
        self._began, self._say = monotonic(), say
        self.folder, self.steps, self._start = out / FOLDER, model.config.train.steps, step
        self._first = team.first
        self._agreed = team.any if team.sharded else bool  # where weights are shared out, all look or none
        self._due = due_steps(self.steps)
        self.sight = Sight(model, choose(model, data), team)
        self._stopped = ""  # why no more looks are taken
        self._looks: list[dict[str, Any]] = []  # step and seconds of each
        self._planes: Planes = {}  # of the last look
        if self._first:
            self._go_on(step)
        self._prepared = self._spent = monotonic() - self._began  # of this process' time

    @property
    def note(self) -> str:
        """What was cut, in a sentence; empty if nothing was."""
        most = f"there are at most {MOST}, of {LONGEST} tokens each, or of the context's where that is less"
        return f"{cut} of the probes cut or left out; {most}" if (cut := self.sight.probes.cut) else ""

    @property
    def looked(self) -> list[int]:
        """The steps that were looked at."""
        return [look["step"] for look in self._looks]

    @property
    def seconds(self) -> float:
        """What all looks have taken, and what came before the first."""
        return self._prepared + sum(look["seconds"] for look in self._looks)

    def __call__(self, step: int) -> None:
        """After each step, and before the first one: looks if it is time."""
        if self.due(step):
            self.look(step)

    def due(self, step: int) -> bool:
        """Whether it is time for a look, and there is time for it."""
        on_time = step in self._due or step == self._start
        return on_time and self._agreed(self._first and self._wanted(step))

    def _wanted(self, step: int) -> bool:
        if self._stopped or step in self.looked:
            return False
        if not self._looks or step == self.steps:
            return True
        if step <= self._start:  # a run goes on; no step has been timed yet
            return step in self._due
        trained = monotonic() - self._began - self._spent
        foreseen = trained / (step - self._start) * (self.steps - self.looked[0])
        return self.seconds + 2 * self._looks[-1]["seconds"] <= SHARE * foreseen

    def look(self, step: int) -> None:
        """Keeps what is seen now; if nothing is, the run itself will tell why."""
        like = next(self.sight.net.parameters())
        if like.is_cuda:  # what was asked of the device before is not the microscope's time
            torch.cuda.synchronize(like.device)
        began = monotonic()
        seen = self.sight.see(self._planes)
        if self._first and seen:
            self._keep(step, seen, began)
        self._spent += monotonic() - began

    def finish(self, step: int) -> str:
        """A look at the end, wherever that is; the picture; and a sentence about both."""
        if self._agreed(self._first and step not in self.looked and not self._stopped):
            self.look(step)
        if not self._looks or self._stopped:
            return self._stopped
        picture = self.folder / "film.png"
        try:
            film_figure(read_film(self.folder.parent)).savefig(draft_of(picture), format="png", dpi=150)
            place(picture)
        except OSError as error:
            return f"{picture} cannot be written: {error.strerror}"
        return (
            f"the microscope looked {len(self._looks)} times in {self.seconds:.1f} s; {picture} shows a head over time"
        )

    def _keep(self, step: int, seen: dict[str, Tensor], began: float) -> None:
        """The tensors first, then the index that names them: a look is there as a whole or not at all."""
        file = file_of(self.folder, step)
        try:
            save_file(seen, draft_of(file))
            draft_of(file).chmod(self.folder.stat().st_mode & 0o666)  # it is written for the owner's eyes only
            place(file)
            looks = [*self._looks, {"step": step, "seconds": monotonic() - began}]
            self._write_index(looks, {name: list(value.shape) for name, value in seen.items()})
        except (OSError, SafetensorError) as error:
            self._stop(error)
            return
        self._looks = looks
        self._planes = {name: seen[f"{name}.plane"] for name in self.sight.tables}

    def _write_index(self, looks: list[dict[str, Any]], shapes: dict[str, list[int]]) -> None:
        write_json(self.folder / INDEX, {**self.sight.facts(), "shapes": shapes, "looks": looks}, None)

    def _go_on(self, step: int) -> None:
        """Keeps the looks up to the checkpoint that a run goes on from; a fresh run starts a new film."""
        index, facts = (
            reader.load(self.folder / INDEX) if step and (self.folder / INDEX).is_file() else {},
            self.sight.facts(),
        )
        if facts == {name: index.get(name) for name in facts}:
            self._looks = [x for x in index["looks"] if x["step"] <= step and file_of(self.folder, x["step"]).is_file()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_index(self._looks, index.get("shapes", {}))
            kept = [file_of(self.folder, looked) for looked in self.looked]
            for file in (*self.folder.glob("*.safetensors"), *self.folder.glob(".*")):
                if file not in kept:
                    file.unlink()
            write_json(self.folder / TOKENS, self.sight.labels(), None)
        except OSError as error:
            self._stop(error)
        if self._looks:
            last = Safetensors([file_of(self.folder, self.looked[-1])])
            self._planes = {name: last.read(f"{name}.plane") for name in self.sight.tables}

    def _stop(self, error: Exception) -> None:
        """The run is worth more than its film."""
        for draft in self.folder.glob(".*"):
            with suppress(OSError):
                draft.unlink()
        why = getattr(error, "strerror", None) or error
        self._stopped = f"the microscope could not write to {self.folder} ({why}) and looks no more"
        self._say(self._stopped)


def due_steps(steps: int) -> set[int]:
    """0, about six whole steps a decade, and the last."""
    found, n = {0, steps}, 0
    while (step := round(10 ** (n / A_DECADE))) < steps:
        found.add(step)
        n += 1
    return found
