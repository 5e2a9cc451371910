"""Copy as Python: code that prints the number that someone points at, edits included."""

from clearhead import config as c
from clearhead.serve.pages.edits import python as written
from clearhead.serve.pages.runs import Run, RunRequest
from clearhead.serve.pages.trace import ENCODER


def python(run: Run, name: str, index: list[int]) -> str:
    """The same run and the same place, as `model.watch` has it: with the batch as first dimension."""
    request = run.request
    lines = ["import clearhead as ch", "", f"model = ch.load({run.path!r})"]
    lines += _other(request)
    words = [*_read(run), f"names={name!r}"]
    if request.edits:
        words.append(f"edits={written(request.edits)}")
    lines.append(f"seen = model.watch({', '.join(words)})")
    lines.append(f"print(seen[{name!r}][{', '.join(map(str, [0, *index]))}].item())")
    return "\n".join(lines)


def _other(request: RunRequest) -> list[str]:
    """The run that swapped values are of: those of an encoder are of its source."""
    encoder = sorted(name for name in request.swaps if name.startswith(ENCODER))
    names = sorted(request.swaps.difference(encoder))
    source = f", source={request.source!r}" if request.source else ""
    runs = [f"model.watch({request.against!r}, {names!r}{source})"] if names else []
    runs += [f"model.watch(None, {encoder!r}, source={request.against!r})"] if encoder else []
    return [f"other = {' | '.join(f'dict({run})' for run in runs) if len(runs) > 1 else runs[0]}"] if runs else []


def _read(run: Run) -> list[str]:
    request, batch = run.request, run.trace.batch
    if request.picture is not None:
        return ['pictures="picture.png"']
    words = []
    if request.sound is not None:
        words.append('sound="sound.wav"')
    both = isinstance(run.trace.config.shape, c.EncoderDecoder)
    as_ids = request.messages is not None or request.ids is not None or (both and request.text is None)
    if as_ids:
        words.insert(0, repr(batch.ids[0].tolist()))
    elif request.text or not both:
        words.insert(0, repr(request.text))
    if request.source:
        words.append(f"source={request.source!r}")
    return words
