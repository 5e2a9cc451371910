"""Where the tokenizers of a run come from, and what its special tokens are called."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from clearhead import config as c
from clearhead.config.model import Config, InferenceConfig
from clearhead.data.batch import DataReport, Dataset
from clearhead.data.classification import (
    LabeledText,
    LabeledTextDataset,
    encode_labeled_texts,
    read_labeled_texts,
    stratified_split,
)
from clearhead.data.language_modeling import (
    LanguageModelingDataset,
    MaskedLanguageModelingDataset,
    TokenizedCorpus,
    tokenize_corpus,
)
from clearhead.data.media import MediaDataset, MediaExamples, exclude_valid_media, load_media
from clearhead.data.pairs import (
    EncodedPair,
    SentencePair,
    TranslationDataset,
    balanced_source_seq_len,
    encode_pairs,
)
from clearhead.data.pairs import read_pairs as pairs_in
from clearhead.data.readers import (
    STDIN,
    check_disjoint,
    exclude_valid_files,
    read_documents,
    save_streams,
)
from clearhead.errors import ClearheadError, suggest
from clearhead.tokenizers.tokenizer import END_TOKEN, TOKENIZER_KINDS, Tokenizer
from clearhead.weights.checkpoint import SOURCE_TOKENIZER_FILE, TOKENIZER_FILE
from clearhead.weights.load import load_tokenizers

# ---- tokenizers: Where the tokenizers of a run come from, and what its special tokens are called.

START_TOKEN = "<|start|>"
MASK_TOKEN = "<|mask|>"
TOKEN_ALIASES = {
    END_TOKEN: ("<|endoftext|>", "</s>", "[SEP]"),
    START_TOKEN: ("<s>", "[CLS]"),
    MASK_TOKEN: ("<mask>", "[MASK]"),
}  # others' names
MAX_TOKENIZER_CHARS = 200_000_000  # characters that a tokenizer learns from


@dataclass(frozen=True)
class TokenizerSource:
    """Where tokenizers come from: the model that is started from, the folder of the run, or the texts themselves."""

    config: Config
    output: Path
    reuse: bool = (
        False  # whether what is in the folder is this run's, and not of one that never began
    )
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None

    def get_or_train(
        self,
        texts: Callable[[], Iterable[str]],
        special: tuple[str, ...],
        name: str = TOKENIZER_FILE,
    ) -> Tokenizer:
        kind = self.config.data.tokenizer
        path = self.output / name
        if self.reuse and path.is_file():
            return Tokenizer.load(path)
        if kind == "bpe":
            made = Tokenizer.train_bpe(_first_texts(texts()), self.config.data.vocab_size, special)
        elif kind == "characters":
            made = Tokenizer.characters("".join(sorted(set(chain.from_iterable(texts())))), special)
        elif kind == "bytes":
            made = Tokenizer.bytes(special)
        else:
            made = _pretrained_tokenizer(kind, special)
        self.output.mkdir(parents=True, exist_ok=True)
        made.save(path)
        return made


def special_token_ids(tokenizer: Tokenizer, name: str) -> list[int]:
    """The id of a special token, or of what a published tokenizer has in its place."""
    return [
        tokenizer.special_tokens[n]
        for n in (name, *TOKEN_ALIASES[name])
        if n in tokenizer.special_tokens
    ][:1]


def document_start_id(use: InferenceConfig, tokenizer: Tokenizer) -> int | None:
    """The id that opens every document, if there is one."""
    return next(
        iter((*use.bos_tokens, *use.eos_tokens, *special_token_ids(tokenizer, END_TOKEN))), None
    )


def _pretrained_tokenizer(where: str, special: tuple[str, ...]) -> Tokenizer:
    """That of a tokenizer.json or of any model, with the special tokens that it lacks."""
    try:
        found = load_tokenizers(where)
    except ClearheadError as error:
        raise ClearheadError(
            f"data.tokenizer = {where!r} is no kind ({suggest(where, TOKENIZER_KINDS)}), and {error}"
        ) from None
    if found.tokenizer is None:
        raise ClearheadError(f"data.tokenizer = {where!r} cannot be used: {found.missing_reason}")
    found.tokenizer.backend.add_special_tokens(
        [name for name in special if not special_token_ids(found.tokenizer, name)]
    )
    return Tokenizer(found.tokenizer.backend)


def _first_texts(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, as many as SAMPLE characters."""
    room = MAX_TOKENIZER_CHARS
    for text in texts:
        if room <= 0:
            return
        yield text
        room -= len(text)


# ---- lessons: What a model learns from: its tokenizers and its batches, chosen by what it reads and what it answers.


@dataclass(frozen=True)
class TrainingData:
    """All that a run needs besides the network; the configuration now knows the vocabulary and the classes."""

    config: Config
    dataset: Dataset
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None


def load_training_data(config: Config, origin: TokenizerSource, report: DataReport) -> TrainingData:
    """The lessons for a model; whatever it is, its data are described by the same section."""
    m = config.model
    check_seq_len(config)
    writes = isinstance(m.input, c.Tokens) and isinstance(m.head, c.LMHead | c.MLMHead)
    if writes and not isinstance(m.architecture, c.EncoderDecoder):
        return _text_data(config, origin, report)
    if STDIN in (*config.data.train, *config.data.valid):
        raise ClearheadError(
            "standard input (-) is read as one text; pairs, tables, pictures and sounds need files."
        )
    check_disjoint(config.data.train, config.data.valid)
    if isinstance(m.architecture, c.EncoderDecoder):
        return _pair_data(config, origin, report)
    if not isinstance(m.input, c.Tokens):
        return _media_data(config, report)
    if isinstance(m.head, c.ClassificationHead | c.RegressionHead):
        return _labeled_data(config, origin, report)
    raise ClearheadError(
        "a model without a head learns nothing; give it one, such as model.head = classes."
    )


def check_seq_len(config: Config) -> None:
    context = config.model.context_length
    length = config.train.seq_len
    if config.model.vocab_size and length > context:
        choose = f"choose --train.seq_len={context} or less, or a larger --model.context_length"
        raise ClearheadError(
            f"train.seq_len = {length} is more than model.context_length = {context}; {choose}."
        )


# ---------------------------------------------------------------- texts
def _text_data(config: Config, origin: TokenizerSource, report: DataReport) -> TrainingData:
    d = config.data
    t = config.train
    hides = isinstance(config.model.head, c.MLMHead)
    train = save_streams(
        exclude_valid_files(d.train, d.valid, origin.output, report),
        f"{origin.output}/piped/train",
        origin.reuse,
    )
    tokenizer = origin.tokenizer or origin.get_or_train(
        lambda: (
            document.text
            for document in read_documents(train, DataReport(d.on_error), d.text_column)
        ),
        (END_TOKEN, MASK_TOKEN) if hides else (END_TOKEN,),
    )
    if origin.tokenizer is None:
        ends = special_token_ids(tokenizer, END_TOKEN)
        use = (
            {"inference.mask_token": special_token_ids(tokenizer, MASK_TOKEN)}
            if hides
            else {"inference.eos_tokens": ends}
        )
        config = config.replace(
            **{"model.vocab_size": len(tokenizer), "inference.bos_tokens": ends}, **use
        )
    first = document_start_id(config.inference, tokenizer)

    def read(paths: Sequence[str], name: str) -> TokenizedCorpus:
        return tokenize_corpus(
            paths,
            tokenizer,
            origin.output / "tokens" / name,
            report=report,
            text_column=d.text_column,
            bos_token=first,
        )

    valid = (
        read(save_streams(d.valid, f"{origin.output}/piped/valid", origin.reuse), "valid")
        if d.valid
        else None
    )
    length = t.seq_len or config.model.context_length
    stop = next(iter(config.inference.eos_tokens), None)
    rows = LanguageModelingDataset(
        read(train, "train"),
        length,
        t.batch_size,
        t.seed,
        0.0 if valid else d.valid_fraction,
        valid,
        stop,
    )
    if not hides:
        return TrainingData(config, rows, tokenizer)
    if not config.inference.mask_token:
        raise ClearheadError(
            f"{t.init_from} has no token that hides words, so inference.mask_token names none."
        )
    special = tuple(tokenizer.special_tokens.values())
    return TrainingData(
        config,
        MaskedLanguageModelingDataset(
            rows, config.inference.mask_token[0], config.model.vocab_size, special
        ),
        tokenizer,
    )


# ---------------------------------------------------------------- pairs
def _pair_data(config: Config, origin: TokenizerSource, report: DataReport) -> TrainingData:
    d = config.data
    t = config.train
    shape = config.model.architecture
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.source_input, c.Tokens):
        raise ClearheadError(
            "speech with its words cannot be learned from files yet; sounds with classes can."
        )
    read = read_pair_files(d, report, d.train)
    held = read_pair_files(d, report, d.valid)
    if not d.valid:
        picks = stratified_split(
            [""] * len(read), [pair.source for pair in read], d.valid_fraction, t.seed
        )
        _check_validation_rows(config, len(picks[1]), [""] * len(read))
        read, held = ([read[i] for i in part] for part in picks)
    tokenizer = origin.tokenizer
    source_tokenizer = origin.source_tokenizer
    if tokenizer is None:
        special = (START_TOKEN, END_TOKEN)
        apart = bool(shape.source_vocab_size)
        sides = [lambda: (pair.source for pair in read), lambda: (pair.target for pair in read)]
        both = lambda: chain(sides[0](), sides[1]())  # noqa: E731
        tokenizer = origin.get_or_train(sides[1] if apart else both, special)
        source_tokenizer = (
            origin.get_or_train(sides[0], special, SOURCE_TOKENIZER_FILE) if apart else None
        )
        cut = source_tokenizer or tokenizer
        config = config.replace(
            **{
                "model.vocab_size": len(tokenizer),
                "model.architecture.source_vocab_size": len(cut) if apart else 0,
            },
            **{
                "inference.sep_tokens": special_token_ids(cut, END_TOKEN),
                "inference.decoder_start_tokens": special_token_ids(tokenizer, START_TOKEN),
                "inference.eos_tokens": special_token_ids(tokenizer, END_TOKEN),
            },
            **{"inference.suppress_tokens": special_token_ids(tokenizer, START_TOKEN)},
        )
    use = config.inference
    own = tokenizer

    def encoded(found: list[SentencePair]) -> list[EncodedPair]:
        made = encode_pairs(
            found,
            own,
            source_tokenizer or own,
            use,
            report,
            max_tokens=d.max_tokens,
            max_length_ratio=d.max_length_ratio,
        )
        return [ids for _, ids in made]

    train = encoded(read)
    length = t.seq_len or config.model.context_length
    if not train:
        raise ClearheadError(
            f"there is no pair to train on; {report.num_read:,} were read, and none of them is left."
        )
    source_length = min(balanced_source_seq_len(train, length), shape.source_context_length)
    options = {
        "batch_size": t.batch_size,
        "seq_len": length,
        "source_seq_len": source_length,
        "seed": t.seed,
    }
    data = TranslationDataset(
        train,
        encoded(held),
        report,
        **options,
        num_start_tokens=max(1, len(use.decoder_start_tokens)),
    )
    return TrainingData(config, data, tokenizer, source_tokenizer)


def read_pair_files(
    d: c.DataConfig, report: DataReport, paths: tuple[str, ...]
) -> list[SentencePair]:
    if bool(d.source_column) != bool(d.target_column):
        raise ClearheadError("data.source_column and data.target_column must be set together.")
    return (
        list(
            pairs_in(
                paths,
                report,
                columns=(d.source_column, d.target_column) if d.source_column else None,
            )
        )
        if paths
        else []
    )


# ---------------------------------------------------------------- labelled texts
def _labeled_data(config: Config, origin: TokenizerSource, report: DataReport) -> TrainingData:
    d = config.data
    t = config.train
    numbers = isinstance(config.model.head, c.RegressionHead)
    found, held = (
        list(read_labeled_rows(d, report, paths, numbers)) for paths in (d.train, d.valid)
    )
    if not d.valid:
        keys = [(row.text, row.text_pair) for row in found]
        labels = [row.label for row in found]
        picks = stratified_split(labels, keys, d.valid_fraction, t.seed)
        _check_validation_rows(config, len(picks[1]), labels)
        found, held = ([found[i] for i in part] for part in picks)
    tokenizer = origin.tokenizer
    if tokenizer is None:
        texts = lambda: (text for row in found for text in (row.text, row.text_pair) if text)  # noqa: E731
        tokenizer = origin.get_or_train(texts, (START_TOKEN, END_TOKEN))
        around = {
            "inference.bos_tokens": special_token_ids(tokenizer, START_TOKEN),
            "inference.sep_tokens": special_token_ids(tokenizer, END_TOKEN),
        }
        config = config.replace(**{"model.vocab_size": len(tokenizer)}, **around)
    if (
        d.text_pair_column and not config.inference.sep_tokens
    ):  # something must stand between the two texts
        end = config.inference.eos_tokens[:1] or special_token_ids(tokenizer, END_TOKEN)
        if not end:
            raise ClearheadError(
                "two texts are read together with a token between them, but inference.sep_tokens names none."
            )
        config = config.replace(**{"inference.sep_tokens": list(end)})
    m = config.model
    config = config.replace(
        **{"inference.max_length": t.seq_len if t.seq_len < m.context_length else 0}
    )
    use = config.inference
    data = LabeledTextDataset(
        encode_labeled_texts(found, tokenizer, report),
        encode_labeled_texts(held, tokenizer, report),
        report,
        batch_size=t.batch_size,
        context_length=t.seq_len or m.context_length,
        seed=t.seed,
        bos_tokens=use.bos_tokens,
        sep_tokens=use.sep_tokens,
        token_types=isinstance(m.input, c.Tokens) and m.input.token_types > 1,
    )
    if any(map(_FRACTION.fullmatch, data.labels)) and all(map(_NUMBER.fullmatch, data.labels)):
        kinds = f"{len(data.labels):,} different numbers are learned as classes"
        report.messages.append(f"{kinds}; --model.head number learns how large they are.")
    return TrainingData(_with_classes(config, data.labels), data, tokenizer)


_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
_FRACTION = re.compile(r"[-+]?\d*\.\d+")


def read_labeled_rows(
    d: c.DataConfig, report: DataReport, paths: tuple[str, ...], numbers: bool
) -> Iterator[LabeledText]:
    for path in paths:
        yield from read_labeled_texts(
            path,
            report,
            text_column=d.text_column,
            label_column=d.label_column,
            text_pair_column=d.text_pair_column or None,
            is_regression=numbers,
        )


# ---------------------------------------------------------------- pictures and sounds
def _media_data(config: Config, report: DataReport) -> TrainingData:
    d = config.data
    t = config.train
    source = config.model.input
    if not isinstance(config.model.head, c.ClassificationHead) or isinstance(source, c.Tokens):
        raise ClearheadError(
            "pictures and sounds are learned with classes; choose model.head = classes."
        )
    train = read_media(d, report, d.train, source)
    held = read_media(d, report, d.valid, source) if d.valid else d.valid_fraction
    if isinstance(held, MediaExamples):
        train = exclude_valid_media(train, held, report)
    data = MediaDataset(
        train,
        held,
        source,
        report,
        batch_size=t.batch_size,
        seed=t.seed,
        random_shift=d.random_shift,
    )
    return TrainingData(_with_classes(config, data.labels), data)


def read_media(
    d: c.DataConfig, report: DataReport, paths: tuple[str, ...], source: c.Images | c.MelSpectrogram
) -> MediaExamples:
    label = "folder" if d.label_column == "label" else d.label_column
    if label not in ("folder", "stem"):
        raise ClearheadError(
            f"data.label_column = {label!r} is no choice for pictures and sounds; folder or stem is."
        )
    parts = [load_media(path, source, report, label=label) for path in paths]  # type: ignore[arg-type]
    return MediaExamples(
        torch.cat([part.data for part in parts]),
        [name for part in parts for name in part.labels],
        [place for part in parts for place in part.locations],
    )


def _check_validation_rows(config: Config, held: int, labels: Sequence[str | float]) -> None:
    """Patience needs rows that are held out, of which there may be none although a share is asked for."""
    if held or not labels or not config.train.patience or not config.data.valid_fraction:
        return
    count = len(labels)
    names = {label for label in labels if isinstance(label, str)}
    if 2 < count == len(names):
        raise ClearheadError(
            f"{count} different labels for {count} rows; for numbers choose --model.head number."
        )
    few = f"only {count} {'row' if count == 1 else 'rows'}, so none can be held out"
    raise ClearheadError(f"{few}; give data.valid, or more rows, or set train.patience = 0.")


def _with_classes(config: Config, labels: tuple[str, ...]) -> Config:
    if not isinstance(head := config.model.head, c.ClassificationHead):
        return config
    if config.inference.labels not in ((), labels):
        raise ClearheadError(
            f"use.labels follow from the data, which has {', '.join(labels)}; leave them out."
        )
    model = replace(config.model, head=replace(head, num_labels=len(labels)))
    return replace(config, model=model, inference=replace(config.inference, labels=labels))
