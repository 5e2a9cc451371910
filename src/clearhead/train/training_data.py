"""Training data of a model: its tokenizers and batches, chosen by its inputs and its head."""

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch

from clearhead import config as c
from clearhead.config.model import Config, InferenceConfig
from clearhead.data.classification import (
    LabeledText,
    LabeledTextDataset,
    encode_labeled_texts,
    read_labeled_texts,
    stratified_split,
)
from clearhead.data.dataset import Dataset
from clearhead.data.language_modeling import LanguageModelingDataset, MaskedLanguageModelingDataset
from clearhead.data.media_dataset import (
    MediaDataset,
    MediaExamples,
    exclude_valid_media,
    load_media,
)
from clearhead.data.pairs import (
    EncodedPair,
    SentencePair,
    TranslationDataset,
    balanced_source_seq_len,
    encode_pairs,
    read_pairs,
)
from clearhead.data.readers import DataReport, check_disjoint, exclude_valid_files, read_documents
from clearhead.data.token_cache import TokenizedCorpus, tokenize_corpus
from clearhead.errors import ClearheadError, suggest
from clearhead.tokenizers.tokenizer import END_TOKEN, TOKENIZER_FILE, TOKENIZER_KINDS, Tokenizer
from clearhead.train.checkpoint import TOKENS_FOLDER
from clearhead.weights.checkpoint import SOURCE_TOKENIZER_FILE
from clearhead.weights.load import load_tokenizers

START_TOKEN = "<|start|>"
MASK_TOKEN = "<|mask|>"
TOKEN_ALIASES = {  # in pretrained tokenizers
    END_TOKEN: ("<|endoftext|>", "</s>", "[SEP]"),
    START_TOKEN: ("<s>", "[CLS]"),
    MASK_TOKEN: ("<mask>", "[MASK]"),
}
MAX_TOKENIZER_CHARS = 200_000_000  # characters that a tokenizer is trained on
NUMBER_PATTERN = re.compile(r"[-+]?\d*\.?\d+")
FRACTION_PATTERN = re.compile(r"[-+]?\d*\.\d+")

Row = TypeVar("Row", SentencePair, LabeledText)


@dataclass(frozen=True)
class TrainingData:
    """Dataset and tokenizers of a run; the configuration has their vocabulary size and labels."""

    config: Config
    dataset: Dataset
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None


# --- tokenizers


@dataclass(frozen=True)
class TokenizerSource:
    """Provides tokenizers: of the initial model, from the run's folder, or trained on the data."""

    config: Config
    output: Path
    reuse: bool = False  # reuse tokenizer files in the folder
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None

    def get_or_train(
        self, texts: Iterable[str], special_tokens: tuple[str, ...], name: str = TOKENIZER_FILE
    ) -> Tokenizer:
        """Load the tokenizer from the folder of the run, or create and save it.

        `texts` are only read by a tokenizer that is trained on them.
        """
        kind = self.config.data.tokenizer
        path = self.output / name
        if self.reuse and path.is_file():
            return Tokenizer.load(path)
        if kind == "bpe":
            vocab_size = self.config.data.vocab_size
            tokenizer = Tokenizer.train_bpe(_first_texts(texts), vocab_size, special_tokens)
        elif kind == "characters":
            characters = sorted(set(chain.from_iterable(texts)))
            tokenizer = Tokenizer.characters("".join(characters), special_tokens)
        elif kind == "bytes":
            tokenizer = Tokenizer.bytes(special_tokens)
        else:
            tokenizer = _pretrained_tokenizer(kind, special_tokens)
        self.output.mkdir(parents=True, exist_ok=True)
        tokenizer.save(path)
        return tokenizer


def special_token_ids(tokenizer: Tokenizer, name: str) -> list[int]:
    """Id of a special token, or of its equivalent in a pretrained tokenizer; may be empty."""
    names = (name, *TOKEN_ALIASES[name])
    ids = [tokenizer.special_tokens[n] for n in names if n in tokenizer.special_tokens]
    return ids[:1]


def document_start_id(inference: InferenceConfig, tokenizer: Tokenizer) -> int | None:
    """Id of the token that starts every document, if there is one."""
    end_ids = special_token_ids(tokenizer, END_TOKEN)
    return next(iter((*inference.bos_tokens, *inference.eos_tokens, *end_ids)), None)


def _pretrained_tokenizer(source: str, special_tokens: tuple[str, ...]) -> Tokenizer:
    """Tokenizer of a tokenizer.json or of a model, with missing special tokens added."""
    try:
        loaded = load_tokenizers(source)
    except ClearheadError as error:
        raise ClearheadError(
            f"data.tokenizer = {source!r} is neither a kind of tokenizer "
            f"({suggest(source, TOKENIZER_KINDS)}) nor a model: {error}"
        ) from None
    if loaded.tokenizer is None:
        raise ClearheadError(f"data.tokenizer = {source!r} cannot be used: {loaded.missing_reason}")
    tokenizer = loaded.tokenizer
    missing = [name for name in special_tokens if not special_token_ids(tokenizer, name)]
    tokenizer.backend.add_special_tokens(missing)
    return Tokenizer(tokenizer.backend)


def _first_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until they have `MAX_TOKENIZER_CHARS` characters."""
    num_chars = 0
    for text in texts:
        if num_chars >= MAX_TOKENIZER_CHARS:
            return
        yield text
        num_chars += len(text)


# --- datasets


def load_training_data(
    config: Config, tokenizers: TokenizerSource, report: DataReport
) -> TrainingData:
    """Load the dataset for a model."""
    model = config.model
    check_seq_len(config)
    is_encoder_decoder = isinstance(model.architecture, c.EncoderDecoder)
    reads_tokens = isinstance(model.input, c.Tokens)
    if reads_tokens and isinstance(model.head, c.LMHead | c.MLMHead) and not is_encoder_decoder:
        training_data = _load_text(config, tokenizers, report)
        if not config.data.parse_special_tokens:
            _warn_of_special_tokens(
                report, "; --data.parse_special_tokens=true reads them as these tokens"
            )
        return training_data
    if config.data.parse_special_tokens:
        raise ClearheadError(
            "data.parse_special_tokens is for language models and masked language models only."
        )
    check_disjoint(config.data.train, config.data.valid)
    if is_encoder_decoder:
        training_data = _load_pairs(config, tokenizers, report)
        _warn_of_special_tokens(report)
        return training_data
    if not reads_tokens:
        return _load_media(config, report)
    if isinstance(model.head, c.ClassificationHead | c.RegressionHead):
        training_data = _load_labeled_texts(config, tokenizers, report)
        _warn_of_special_tokens(report)
        return training_data
    raise ClearheadError(
        "a model without a head cannot be trained; choose one, such as model.head = classification."
    )


def _warn_of_special_tokens(report: DataReport, hint: str = "") -> None:
    """Add a message if texts contain names of special tokens, which are read as plain text."""
    if report.special_tokens:
        report.messages.append(
            f"warning: the data contains names of special tokens {report.special_tokens.total():,} "
            f"times, such as {next(iter(report.special_tokens))} at "
            f"{report.special_token_location}; they are read as plain text{hint}"
        )


def check_seq_len(config: Config) -> None:
    """Raise if training rows are longer than the context of the model."""
    context_length = config.model.context_length
    seq_len = config.train.seq_len
    if config.model.vocab_size and seq_len > context_length:
        raise ClearheadError(
            f"train.seq_len = {seq_len} exceeds model.context_length = {context_length}; choose "
            f"--train.seq_len={context_length} or less, or a larger --model.context_length."
        )


def _load_text(config: Config, tokenizers: TokenizerSource, report: DataReport) -> TrainingData:
    """Running text for a language model or a masked language model."""
    data = config.data
    train = config.train
    is_masked = isinstance(config.model.head, c.MLMHead)
    train_files = exclude_valid_files(data.train, data.valid, tokenizers.output, report)

    tokenizer = tokenizers.tokenizer
    if tokenizer is None:
        documents = read_documents(train_files, DataReport(data.on_error), data.text_column)
        special_tokens = (END_TOKEN, MASK_TOKEN) if is_masked else (END_TOKEN,)
        tokenizer = tokenizers.get_or_train((d.text for d in documents), special_tokens)
        end_ids = special_token_ids(tokenizer, END_TOKEN)
        options = {"model.vocab_size": len(tokenizer), "inference.bos_tokens": end_ids}
        if is_masked:
            options["inference.mask_token"] = special_token_ids(tokenizer, MASK_TOKEN)
        else:
            options["inference.eos_tokens"] = end_ids
        config = config.replace(**options)
    start_id = document_start_id(config.inference, tokenizer)

    def tokenize(paths: Sequence[str], name: str) -> TokenizedCorpus:
        return tokenize_corpus(
            paths,
            tokenizer,
            tokenizers.output / TOKENS_FOLDER / name,
            report=report,
            text_column=data.text_column,
            bos_token=start_id,
            parse_special_tokens=data.parse_special_tokens,
        )

    valid_corpus = tokenize(data.valid, "valid") if data.valid else None
    dataset = LanguageModelingDataset(
        tokenize(train_files, "train"),
        train.seq_len or config.model.context_length,
        train.batch_size,
        train.seed,
        data.valid_fraction,
        valid_corpus,
        next(iter(config.inference.eos_tokens), None),
    )
    if not is_masked:
        return TrainingData(config, dataset, tokenizer)
    if not config.inference.mask_token:
        raise ClearheadError(
            f"{train.init_from} has no mask token (inference.mask_token is empty), so it cannot "
            "be trained on masked tokens."
        )
    masked_dataset = MaskedLanguageModelingDataset(
        dataset,
        config.inference.mask_token[0],
        config.model.vocab_size,
        tuple(tokenizer.special_tokens.values()),
    )
    return TrainingData(config, masked_dataset, tokenizer)


def _load_pairs(config: Config, tokenizers: TokenizerSource, report: DataReport) -> TrainingData:
    """Sentence pairs for translation."""
    data = config.data
    train = config.train
    architecture = config.model.architecture
    assert isinstance(architecture, c.EncoderDecoder)
    if not isinstance(architecture.source_input, c.Tokens):
        raise ClearheadError(
            "training on speech with transcripts is not supported; audio with labels is."
        )
    train_pairs = read_pair_files(data, report, data.train)
    valid_pairs = read_pair_files(data, report, data.valid)
    if not data.valid:
        labels = [""] * len(train_pairs)
        keys = [pair.source for pair in train_pairs]
        train_pairs, valid_pairs = _hold_out(config, train_pairs, labels, keys)

    tokenizer = tokenizers.tokenizer
    source_tokenizer = tokenizers.source_tokenizer
    if tokenizer is None:
        special_tokens = (START_TOKEN, END_TOKEN)
        sources = (pair.source for pair in train_pairs)
        targets = (pair.target for pair in train_pairs)
        if architecture.source_vocab_size:  # a vocabulary for each language
            tokenizer = tokenizers.get_or_train(targets, special_tokens)
            source_tokenizer = tokenizers.get_or_train(
                sources, special_tokens, SOURCE_TOKENIZER_FILE
            )
        else:
            tokenizer = tokenizers.get_or_train(chain(sources, targets), special_tokens)
        start_ids = special_token_ids(tokenizer, START_TOKEN)
        config = config.replace(
            **{
                "model.vocab_size": len(tokenizer),
                "model.architecture.source_vocab_size": len(source_tokenizer or ()),
                "inference.sep_tokens": special_token_ids(source_tokenizer or tokenizer, END_TOKEN),
                "inference.decoder_start_tokens": start_ids,
                "inference.eos_tokens": special_token_ids(tokenizer, END_TOKEN),
                "inference.suppress_tokens": start_ids,
            }
        )
    inference = config.inference
    target_tokenizer = tokenizer

    def encode(pairs: list[SentencePair]) -> list[EncodedPair]:
        encoded = encode_pairs(
            pairs,
            target_tokenizer,
            source_tokenizer or target_tokenizer,
            inference,
            report,
            max_tokens=data.max_tokens,
            max_length_ratio=data.max_length_ratio,
        )
        return [ids for _, ids in encoded]

    encoded_train = encode(train_pairs)
    if not encoded_train:
        raise ClearheadError(
            f"no sentence pairs to train on: {report.num_read:,} were read, and all were skipped."
        )
    seq_len = train.seq_len or config.model.context_length
    source_seq_len = balanced_source_seq_len(encoded_train, seq_len)
    dataset = TranslationDataset(
        encoded_train,
        encode(valid_pairs),
        report,
        batch_size=train.batch_size,
        seq_len=seq_len,
        source_seq_len=min(source_seq_len, architecture.source_context_length),
        seed=train.seed,
        num_start_tokens=len(inference.decoder_start_tokens),
    )
    return TrainingData(config, dataset, tokenizer, source_tokenizer)


def read_pair_files(
    data: c.DataConfig, report: DataReport, paths: tuple[str, ...]
) -> list[SentencePair]:
    if bool(data.source_column) != bool(data.target_column):
        raise ClearheadError(
            "set both data.source_column and data.target_column, or neither: got "
            f"{data.source_column!r} and {data.target_column!r}."
        )
    if not paths:
        return []
    columns = (data.source_column, data.target_column) if data.source_column else None
    return list(read_pairs(paths, report, columns=columns))


def _load_labeled_texts(
    config: Config, tokenizers: TokenizerSource, report: DataReport
) -> TrainingData:
    """Texts or pairs of texts with a label or a number, from tables."""
    data = config.data
    train = config.train
    is_regression = isinstance(config.model.head, c.RegressionHead)
    rows = list(read_labeled_rows(data, report, data.train, is_regression))
    valid_rows = list(read_labeled_rows(data, report, data.valid, is_regression))
    if not data.valid:
        labels = [row.label for row in rows]
        keys = [(row.text, row.text_pair) for row in rows]
        rows, valid_rows = _hold_out(config, rows, labels, keys)

    tokenizer = tokenizers.tokenizer
    if tokenizer is None:
        texts = (text for row in rows for text in (row.text, row.text_pair) if text)
        tokenizer = tokenizers.get_or_train(texts, (START_TOKEN, END_TOKEN))
        config = config.replace(
            **{
                "model.vocab_size": len(tokenizer),
                "inference.bos_tokens": special_token_ids(tokenizer, START_TOKEN),
                "inference.sep_tokens": special_token_ids(tokenizer, END_TOKEN),
            }
        )
    if data.text_pair_column and not config.inference.sep_tokens:
        separator = config.inference.eos_tokens[:1] or special_token_ids(tokenizer, END_TOKEN)
        if not separator:
            raise ClearheadError(
                "pairs of texts need a separator token, but inference.sep_tokens is empty."
            )
        config = config.replace(**{"inference.sep_tokens": list(separator)})
    model = config.model
    max_length = train.seq_len if train.seq_len < model.context_length else 0
    config = config.replace(**{"inference.max_length": max_length})
    dataset = LabeledTextDataset(
        encode_labeled_texts(rows, tokenizer, report),
        encode_labeled_texts(valid_rows, tokenizer, report),
        report,
        batch_size=train.batch_size,
        context_length=train.seq_len or model.context_length,
        seed=train.seed,
        bos_tokens=config.inference.bos_tokens,
        sep_tokens=config.inference.sep_tokens,
        token_types=isinstance(model.input, c.Tokens) and model.input.token_types > 1,
    )
    labels_are_numbers = all(map(NUMBER_PATTERN.fullmatch, dataset.labels))
    if labels_are_numbers and any(map(FRACTION_PATTERN.fullmatch, dataset.labels)):
        report.messages.append(
            f"{len(dataset.labels):,} different numbers are treated as classes; "
            "--model.head regression predicts them as numbers."
        )
    return TrainingData(_with_labels(config, dataset.labels), dataset, tokenizer)


def read_labeled_rows(
    data: c.DataConfig, report: DataReport, paths: tuple[str, ...], is_regression: bool
) -> Iterator[LabeledText]:
    for path in paths:
        yield from read_labeled_texts(
            path,
            report,
            text_column=data.text_column,
            label_column=data.label_column,
            text_pair_column=data.text_pair_column or None,
            is_regression=is_regression,
        )


def _load_media(config: Config, report: DataReport) -> TrainingData:
    """Images or audio with labels."""
    data = config.data
    train = config.train
    media_input = config.model.input
    is_classifier = isinstance(config.model.head, c.ClassificationHead)
    if not is_classifier or isinstance(media_input, c.Tokens):
        raise ClearheadError("images and audio need labels: set model.head = classification.")
    examples = read_media(data, report, data.train, media_input)
    valid: MediaExamples | float = data.valid_fraction
    if data.valid:
        valid = read_media(data, report, data.valid, media_input)
        examples = exclude_valid_media(examples, valid, report)
    dataset = MediaDataset(
        examples,
        valid,
        media_input,
        report,
        batch_size=train.batch_size,
        seed=train.seed,
        random_shift=data.random_shift,
    )
    return TrainingData(_with_labels(config, dataset.labels), dataset)


def read_media(
    data: c.DataConfig,
    report: DataReport,
    paths: tuple[str, ...],
    media_input: c.Images | c.MelSpectrogram,
) -> MediaExamples:
    label_source = "folder" if data.label_column == "label" else data.label_column
    if label_source not in ("folder", "stem"):
        raise ClearheadError(
            f"data.label_column must be folder or stem for images and audio, got {label_source!r}."
        )
    parts = [load_media(path, media_input, report, label=label_source) for path in paths]  # type: ignore[arg-type]
    return MediaExamples(
        torch.cat([part.data for part in parts]),
        [label for part in parts for label in part.labels],
        [location for part in parts for location in part.locations],
    )


def _hold_out(
    config: Config, rows: list[Row], labels: Sequence[str | float], keys: Sequence[Hashable]
) -> tuple[list[Row], list[Row]]:
    """Split rows into training and validation data; refuse patience if none can be held out."""
    train_indices, valid_indices = stratified_split(
        labels, keys, config.data.valid_fraction, config.train.seed
    )
    needs_validation = config.train.patience and config.data.valid_fraction
    if rows and needs_validation and not valid_indices:
        num_names = len({label for label in labels if isinstance(label, str)})
        if 2 < len(rows) == num_names:
            raise ClearheadError(
                f"{len(rows)} rows have {num_names} different labels; to predict numbers, set "
                "--model.head regression."
            )
        raise ClearheadError(
            f"train.patience needs validation data, and {len(rows)} rows are too few to hold any "
            "out; set data.valid, add rows, or set train.patience = 0."
        )
    return [rows[i] for i in train_indices], [rows[i] for i in valid_indices]


def _with_labels(config: Config, labels: tuple[str, ...]) -> Config:
    """Set the labels and the size of a classification head."""
    head = config.model.head
    if not isinstance(head, c.ClassificationHead):
        return config
    if config.inference.labels not in ((), labels):
        raise ClearheadError(
            f"inference.labels does not match the labels in the data ({', '.join(labels)}); "
            "leave it out."
        )
    model = replace(config.model, head=replace(head, num_labels=len(labels)))
    return replace(config, model=model, inference=replace(config.inference, labels=labels))
