"""From a configuration to a run: the tokenizer, the tokens, the model, in a folder that can be gone on with."""

import json
from itertools import islice
from pathlib import Path

from clearhead import config as c
from clearhead import reader
from clearhead.config import Config
from clearhead.data.cache import Tokens, tokenised
from clearhead.data.packed import Dataset, Report
from clearhead.data.sources import documents
from clearhead.data.stream import Masked, Stream
from clearhead.errors import ClearheadError
from clearhead.model.transformer import build
from clearhead.tokens.text import Tokenizer
from clearhead.train.checkpoint import Checkpoints, check_same
from clearhead.train.run import Run
from clearhead.weights.checkpoint import Checkpoint

END, MASK = "<|end|>", "<|mask|>"
CONFIG, TOKENIZER, SAMPLE = "run.json", "tokenizer.json", 20_000  # documents that a tokenizer learns from


def begin(config: Config, out: Path, *, resume: bool, device: str, compiled: bool) -> Run:
    """A run in `out`: a fresh one, or the one that is there."""
    if not config.data.train:
        raise ClearheadError("there is nothing to learn from; give --data.train a file, a folder or a glob.")
    if not isinstance(config.model.head, c.Language | c.MaskedWord) or isinstance(config.model.shape, c.EncoderDecoder):
        raise ClearheadError(f"only texts can be learned from files yet, not head {config.model.head.kind} "
                             f"of shape {config.model.shape.kind}.")  # fmt: skip
    held = Checkpoints(out, 1).last() is not None
    if held and not resume:
        raise ClearheadError(f"{out} holds a run already; --resume auto goes on with it, another --out starts anew.")
    report = Report(config.data.broken)
    tokenizer = _tokenizer(config, out, report)
    config = config.change(**{"model.vocabulary": len(tokenizer)} | _use(config, tokenizer))
    if held:
        check_same(out / CONFIG, config.tree())
    (out / CONFIG).write_text(json.dumps(config.tree(), indent=1) + "\n", encoding="utf-8")
    model = Checkpoint(build(config.model, config.train.seed), config, tokenizer)
    run = Run(model, dataset(config, tokenizer, out, report), out, device, compiled)
    if held:
        run.resume()
    return run


def _tokenizer(config: Config, out: Path, report: Report) -> Tokenizer:
    """The run's own if it has one; else made from the training texts, or taken from a file."""
    kind, path = config.data.tokenizer, out / TOKENIZER
    if path.is_file():
        return Tokenizer.load(path)
    if kind not in ("bpe", "characters", "bytes"):
        file = Path(kind) / TOKENIZER if Path(kind).is_dir() else Path(kind)
        made = Tokenizer.load(file)
    elif kind == "bytes":
        made = Tokenizer.bytes()
    else:
        texts = [document.text for document in islice(documents(config.data.train, report, config.data.field), SAMPLE)]
        special = (END, MASK) if isinstance(config.model.head, c.MaskedWord) else (END,)
        made = (
            Tokenizer.train_bpe(texts, config.data.vocabulary, special)
            if kind == "bpe"
            else Tokenizer.characters("".join(texts))
        )
    out.mkdir(parents=True, exist_ok=True)
    made.save(path)
    return made


def _use(config: Config, tokenizer: Tokenizer) -> dict[str, object]:
    """Texts begin with the token that ended the one before; what is written ends with it."""
    ends = [tokenizer.special[END]] if END in tokenizer.special else []
    if isinstance(config.model.head, c.MaskedWord):
        return {"use.mask": [tokenizer.special[MASK]] if MASK in tokenizer.special else []}
    return {"use.begin": ends, "use.stop": ends}


def dataset(config: Config, tokenizer: Tokenizer, out: Path, report: Report) -> Dataset:
    d, m, t = config.data, config.model, config.train

    def read(paths: tuple[str, ...], name: str) -> Tokens:
        first = tokenizer.special.get(END)
        return tokenised(paths, tokenizer, out / "tokens" / name, report=report, field=d.field, begin=first)

    valid = read(d.valid, "valid") if d.valid else None
    rows = Stream(read(d.train, "train"), m.context, t.rows, t.seed, 0.0 if valid else d.held_out, valid)
    if not isinstance(m.head, c.MaskedWord):
        return rows
    if not config.use.mask:
        raise ClearheadError(f"the tokenizer has no {MASK}, which hides words; data.tokenizer = bpe makes one.")
    return Masked(rows, config.use.mask[0], m.vocabulary, tuple(tokenizer.special.values()))


def read_config(name: str, changes: dict[str, object]) -> Config:
    """A preset by name, or a file of TOML or JSON, with changes on top."""
    from clearhead.presets import presets

    if name not in presets and Path(name).suffix in (".toml", ".json"):
        return Config.of(reader.load(name)).change(**changes)
    return presets[name].change(**changes)
