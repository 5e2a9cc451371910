"""Read and write the tokenizer files of Hugging Face models, in any layout.

Files older than `tokenizer.json` are read as each tokenizer class of `transformers` reads them.
Code in a folder is never executed.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers

from clearhead.config.model import Encoder, InferenceConfig, ModelConfig, Tokens
from clearhead.config.parse import ConfigDict, read_config_file
from clearhead.errors import ClearheadError, cannot_read, reraise_as, rust_panics_as
from clearhead.io import write_json
from clearhead.tokenizers.sentencepiece import read_sentencepiece
from clearhead.tokenizers.tokenizer import TOKENIZER_FILE, Tokenizer

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"  # our own, for a source with another tokenizer
CHAT_TEMPLATE = "chat_template"
ADDITIONAL_TOKENS_KEYS = ("additional_special_tokens", "extra_special_tokens")
SPECIAL_TOKEN_ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
MAX_EXTRA_IDS = 10_000

AddedTokens = list[tuple[tk.AddedToken, int | None]]


@dataclass(frozen=True)
class PretrainedTokenizer:
    """The tokenizers of a pretrained model, and which special tokens it uses for what."""

    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None = None  # if the source has a tokenizer of its own
    bos_tokens: tuple[int, ...] = ()
    sep_tokens: tuple[int, ...] = ()
    chat_template: str = ""
    special_token_ids: dict[str, int] = field(default_factory=dict)  # role -> id
    missing_reason: str = ""  # why there is no tokenizer


# --- layouts without tokenizer.json
DIGIT = r"\p{N}"


def split_words(number_pattern: str) -> pre_tokenizers.Split:
    """The word splitting of Llama 3 and Qwen: contractions, letters, numbers, other, line ends."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    other = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    pattern = tk.Regex(f"{contractions}|{letters}|{number_pattern}|{other}")
    return pre_tokenizers.Split(pattern, "isolated")


def read_text(path: Path) -> str:
    """The text of a file with its line endings as they are."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise cannot_read(path, error) from None
    except UnicodeDecodeError as error:
        raise ClearheadError(f"{path} is not valid UTF-8: {error}.") from None


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder of tokenizer files and what its configuration says."""

    folder: Path
    config: ConfigDict  # tokenizer_config.json
    roles: dict[str, str]  # role -> special token
    added: Collection[str]  # all added tokens

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ClearheadError(
                f"{self.folder / TOKENIZER_CONFIG_FILE}: {name} must be true or false, "
                f"got {value!r}."
            )
        return default if value is None else value

    def read_lines(self, name: str) -> list[str]:
        lines = read_text(self.folder / name).removesuffix("\n").split("\n")
        return [line.removesuffix("\r") for line in lines]

    def read_vocab(self, name: str) -> dict[str, int]:
        vocab = read_config_file(self.folder / name)
        are_ints = all(type(i) is int for i in vocab.values())
        if not vocab or not are_ints or sorted(vocab.values()) != list(range(len(vocab))):
            raise ClearheadError(
                f"{self.folder / name} must number its tokens from 0 without gaps or duplicates."
            )
        return vocab


def _gpt2(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    prefix = folder.flag("add_prefix_space", False)
    return [_byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=prefix))]


def _qwen(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    prefix = folder.flag("add_prefix_space", False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    backend = _byte_level(folder, pre_tokenizers.Sequence([split_words(DIGIT), byte_level]))
    backend.normalizer = normalizers.NFC()
    return [backend]


def _byte_level(
    folder: TokenizerFolder, pre_tokenizer: pre_tokenizers.PreTokenizer
) -> tk.Tokenizer:
    merges = []
    for line in folder.read_lines("merges.txt"):
        if line and not line.startswith("#version"):
            left, separator, right = line.partition(" ")
            if not separator or " " in right:
                raise ClearheadError(
                    f"{folder.folder / 'merges.txt'}: a line must be two tokens separated by a "
                    f"space, got {line!r}."
                )
            merges.append((left, right))
    backend = tk.Tokenizer(models.BPE(folder.read_vocab("vocab.json"), merges))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    return backend


def _bert(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    tokens = folder.read_lines("vocab.txt")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise ClearheadError(
            f"{folder.folder / 'vocab.txt'} contains {len(tokens) - len(vocab)} duplicate tokens."
        )
    backend = tk.Tokenizer(models.WordPiece(vocab, unk_token=folder.roles["unk"]))
    backend.normalizer = _bert_normalizer(folder)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return [backend]


def _bert_normalizer(folder: TokenizerFolder) -> normalizers.Normalizer:
    lowercase = folder.flag("do_lower_case", True)
    return normalizers.BertNormalizer(
        handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
        strip_accents=folder.flag("strip_accents", lowercase),
        lowercase=lowercase,
    )


def _t5(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    backend = read_sentencepiece(folder.folder / "spiece.model")
    extra_ids = folder.config.get("extra_ids", 100)
    if type(extra_ids) is not int or not 0 <= extra_ids <= MAX_EXTRA_IDS:
        raise ClearheadError(
            f"{folder.folder / TOKENIZER_CONFIG_FILE}: extra_ids must be an integer from 0 to "
            f"{MAX_EXTRA_IDS:,}, got {extra_ids!r}."
        )
    names = [f"<extra_id_{i}>" for i in reversed(range(extra_ids))]  # the last has the lowest id
    backend.add_special_tokens(names)
    return [backend]


def _llama(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    prefix = folder.flag("add_prefix_space", True)
    return [read_sentencepiece(folder.folder / "tokenizer.model", add_prefix_space=prefix)]


def _marian(folder: TokenizerFolder) -> list[tk.Tokenizer]:
    """The target's and the source's tokenizer, which share a vocabulary unless it is separate."""
    vocab = folder.read_vocab("vocab.json")
    target_vocab = vocab
    if folder.flag("separate_vocabs", False):
        target_vocab = folder.read_vocab("target_vocab.json")
    languages = [name for name in vocab if name.startswith(">>") and name.endswith("<<")]
    target = read_sentencepiece(folder.folder / "target.spm", target_vocab, folder.added)
    source_added = {*folder.added, *languages}
    source = read_sentencepiece(folder.folder / "source.spm", vocab, source_added)
    source.add_tokens([tk.AddedToken(name, normalized=False) for name in languages])
    return [target, source]


@dataclass(frozen=True)
class TokenizerFormat:
    """The files and defaults of a tokenizer class."""

    files: tuple[str, ...]
    build: Callable[[TokenizerFolder], list[tk.Tokenizer]]
    roles: dict[str, str] = field(default_factory=dict)
    bos: tuple[str, ...] = ()  # roles, or tokens without a role
    eos: tuple[str, ...] = ()
    honors_add_bos_eos: bool = False  # whether add_bos_token and add_eos_token are respected


_GPT2_ROLES = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_QWEN_ROLES = dict.fromkeys(("eos", "pad", "unk"), "<|endoftext|>")
_WHISPER_PREFIX = ("<|startoftranscript|>", "<|notimestamps|>")
_BERT_ROLES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_T5_ROLES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_LLAMA_ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_BPE_FILES = ("vocab.json", "merges.txt")
_MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

TOKENIZER_FORMATS = {
    "GPT2Tokenizer": TokenizerFormat(_BPE_FILES, _gpt2, _GPT2_ROLES, honors_add_bos_eos=True),
    "Qwen2Tokenizer": TokenizerFormat(_BPE_FILES, _qwen, _QWEN_ROLES, honors_add_bos_eos=True),
    "WhisperTokenizer": TokenizerFormat(_BPE_FILES, _gpt2, _GPT2_ROLES, _WHISPER_PREFIX, ("eos",)),
    "BertTokenizer": TokenizerFormat(("vocab.txt",), _bert, _BERT_ROLES, ("cls",), ("sep",)),
    "T5Tokenizer": TokenizerFormat(("spiece.model",), _t5, _T5_ROLES, (), ("eos",)),
    "LlamaTokenizer": TokenizerFormat(
        ("tokenizer.model",), _llama, _LLAMA_ROLES, ("bos",), honors_add_bos_eos=True
    ),
    "MarianTokenizer": TokenizerFormat(_MARIAN_FILES, _marian, _T5_ROLES, (), ("eos",)),
}
TOKENIZER_CLASSES = {  # of each `model_type`, for folders that do not name the class
    "gpt2": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "bert": "BertTokenizer",
    "roformer": "RoFormerTokenizer",
    "marian": "MarianTokenizer",
    "t5": "T5Tokenizer",
    "whisper": "WhisperTokenizer",
}


# --- reading
def read_hf_tokenizer(
    folder: Path, model_type: str, tokenizer_class: str = ""
) -> PretrainedTokenizer:
    """Read the tokenizer in a folder; `tokenizer_class` is used if no file names the class."""
    config = _read_json_if_exists(folder / TOKENIZER_CONFIG_FILE)
    tokenizer_class = str(config.get("tokenizer_class") or tokenizer_class).removesuffix("Fast")
    class_name = tokenizer_class or TOKENIZER_CLASSES.get(model_type, "")
    tokenizer_format = TOKENIZER_FORMATS.get(class_name)
    if config.get("word_tokenizer_type") not in (None, "basic"):
        tokenizer_format = None  # another program splits words first
    # RoFormer's tokenizer.json leaves out jieba, which splits words first.
    has_json = (folder / TOKENIZER_FILE).is_file() and tokenizer_class != "RoFormerTokenizer"
    with reraise_as(f"{folder} contains an unusable tokenizer", TypeError, AttributeError):
        chat_template = _read_chat_template(folder, config)
        has_files = tokenizer_format is not None and all(
            (folder / name).is_file() for name in tokenizer_format.files
        )
        if not has_json and not has_files:
            reason = _missing_reason(folder, config, class_name, tokenizer_format)
            return PretrainedTokenizer(None, chat_template=chat_template, missing_reason=reason)
        role_config = config
        if "added_tokens_decoder" not in config:
            role_config = config | _read_json_if_exists(folder / SPECIAL_TOKENS_MAP_FILE)
        default_roles = tokenizer_format.roles if tokenizer_format else {}
        roles = {}
        for role in SPECIAL_TOKEN_ROLES:
            value = role_config.get(f"{role}_token", default_roles.get(role))
            if value is not None:
                roles[role] = _parse_added_token(value, special=True)
        added = _read_added_tokens(folder, role_config, list(roles.values()))
        tokenizer_folder = TokenizerFolder(
            folder,
            config,
            {role: token.content for role, token in roles.items()},
            [token.content for token, _ in added],
        )
        if has_json:
            paths = (folder / TARGET_TOKENIZER_FILE, folder / TOKENIZER_FILE)
            backends = [Tokenizer.load(path).backend for path in paths if path.is_file()]
            for backend in backends:
                _apply_flags(backend, class_name, tokenizer_folder)
            tokenizer_format = None
        else:
            assert tokenizer_format is not None  # it has files
            backends = tokenizer_format.build(tokenizer_folder)
        for backend in backends:
            _add_tokens(backend, added)
        target = backends[0]
        source = backends[-1]
        if tokenizer_format is None:
            surrounding = _surrounding_tokens(source)
        else:
            surrounding = _surrounding_tokens_by_format(tokenizer_format, tokenizer_folder, source)
        ids = {role: target.token_to_id(name) for role, name in tokenizer_folder.roles.items()}
        return PretrainedTokenizer(
            Tokenizer(target),
            Tokenizer(source) if len(backends) > 1 else None,
            *surrounding,
            chat_template,
            {role: i for role, i in ids.items() if i is not None},
        )


def read_tokenizer_json(path: Path) -> PretrainedTokenizer:
    """Read a tokenizer.json without the files around it."""
    tokenizer = Tokenizer.load(path)
    with rust_panics_as(f"{path} is not a usable tokenizer.json"):
        surrounding = _surrounding_tokens(tokenizer.backend)
    return PretrainedTokenizer(tokenizer, None, *surrounding)


def _apply_flags(backend: tk.Tokenizer, class_name: str, folder: TokenizerFolder) -> None:
    """Apply the flags of tokenizer_config.json that win over tokenizer.json in transformers."""
    if class_name == "BertTokenizer" and isinstance(backend.normalizer, normalizers.BertNormalizer):
        backend.normalizer = _bert_normalizer(folder)
    if class_name == "Qwen2Tokenizer" and folder.flag("add_prefix_space", False):
        raise ClearheadError(
            f"{folder.folder / TOKENIZER_CONFIG_FILE} has add_prefix_space = true, which is not"
            f" supported for {class_name} with a {TOKENIZER_FILE}."
        )
    if class_name in ("GPT2Tokenizer", "WhisperTokenizer") and isinstance(
        backend.pre_tokenizer, pre_tokenizers.ByteLevel
    ):
        backend.pre_tokenizer.add_prefix_space = folder.flag("add_prefix_space", False)


def model_max_length(folder: Path) -> int:
    """The maximum length in tokens that tokenizer_config.json states, or 0."""
    length = _read_json_if_exists(folder / TOKENIZER_CONFIG_FILE).get("model_max_length")
    return int(length) if isinstance(length, int | float) else 0


def lowercase_first(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that converts texts to lowercase before anything else."""
    backend = tk.Tokenizer.from_str(tokenizer.backend.to_str())
    others = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    return Tokenizer(backend)


def _missing_reason(
    folder: Path, config: ConfigDict, class_name: str, tokenizer_format: TokenizerFormat | None
) -> str:
    if class_name == "RoFormerTokenizer":
        reason = "splits words with jieba, which is not supported"
    elif "auto_map" in config:
        reason = "has only custom tokenizer code, which is never executed"
    elif tokenizer_format:
        reason = f"has neither {TOKENIZER_FILE} nor {' with '.join(tokenizer_format.files)}"
    else:
        reason = f"has no {TOKENIZER_FILE}"
    return f"{folder} {reason}, so the model cannot read text."


def _read_json_if_exists(path: Path) -> ConfigDict:
    return read_config_file(path) if path.is_file() else {}


def _read_chat_template(folder: Path, config: ConfigDict) -> str:
    """The chat template; of several, the one named "default"."""
    if (folder / f"{CHAT_TEMPLATE}.jinja").is_file():
        return read_text(folder / f"{CHAT_TEMPLATE}.jinja")
    value = config.get(CHAT_TEMPLATE)
    if not value:
        value = _read_json_if_exists(folder / f"{CHAT_TEMPLATE}.json").get(CHAT_TEMPLATE) or ""
    templates = value if isinstance(value, list) else [{"name": "default", "template": value}]
    if not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in templates):
        raise ClearheadError(
            f"{folder}: {CHAT_TEMPLATE} must be a string, or a list of named templates."
        )
    template = next((one["template"] for one in templates if one.get("name") == "default"), "")
    if any("\ud800" <= character <= "\udfff" for character in template):
        raise ClearheadError(f"{folder}: {CHAT_TEMPLATE} contains a lone surrogate.")
    return template


def _parse_added_token(value: object, special: bool) -> tk.AddedToken:
    """A token as written in a file: a string, or an object with `content` and flags."""
    fields = value if isinstance(value, dict) else {"content": value}
    content = fields.get("content")
    names = ("single_word", "lstrip", "rstrip", "normalized")
    flags = {name: fields[name] for name in names if name in fields}
    if not isinstance(content, str) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise ClearheadError(
            f"a special token must be a string, or an object with content, got {value!r:.99}."
        )
    return tk.AddedToken(content, special=special or fields.get("special") is True, **flags)


def _read_added_tokens(
    folder: Path, config: ConfigDict, role_tokens: list[tk.AddedToken]
) -> AddedTokens:
    """The tokens that were added to a vocabulary, those with explicit ids first."""
    decoder = config.get("added_tokens_decoder") or {}
    additional = [config.get(key) or {} for key in ADDITIONAL_TOKENS_KEYS]
    if not isinstance(decoder, dict) or not all(isinstance(v, dict | list) for v in additional):
        raise ClearheadError(
            f"{folder / TOKENIZER_CONFIG_FILE}: added_tokens_decoder must be an object, "
            f"and {' and '.join(ADDITIONAL_TOKENS_KEYS)} must be lists."
        )
    special = list(role_tokens)
    for values in additional:
        values = values.values() if isinstance(values, dict) else values
        special.extend(_parse_added_token(value, special=True) for value in values)
    if "added_tokens_decoder" in config:
        with_ids = [
            (_parse_added_token(value, special=False), int(i)) for i, value in decoder.items()
        ]
    else:
        ids = _read_json_if_exists(folder / "added_tokens.json")
        with_ids = [(_parse_added_token(name, special=False), i) for name, i in ids.items()]
    special_names = {token.content for token in special}
    for token, i in with_ids:
        if type(i) is not int:
            raise ClearheadError(
                f"{folder}/added_tokens.json: the id of {token.content!r} must be an integer, "
                f"got {i!r}."
            )
        token.special = token.special or token.content in special_names
    return [*sorted(with_ids, key=lambda pair: pair[1]), *((token, None) for token in special)]


def _add_tokens(backend: tk.Tokenizer, added: AddedTokens) -> None:
    """Add tokens; one that is not in the vocabulary gets the given id, or is left out."""
    existing = {token.content for token in backend.get_added_tokens_decoder().values()}
    in_vocab = {
        token.content for token, _ in added if backend.token_to_id(token.content) is not None
    }
    new_tokens = [
        token
        for token, i in added
        if token.content not in existing and (i is not None or token.content in in_vocab)
    ]
    backend.add_tokens(new_tokens)
    for token, i in added:
        if i is None or token.content in in_vocab:
            continue
        if backend.token_to_id(token.content) != i:
            raise ClearheadError(
                f"the token {token.content!r} cannot have the id {i}; ids must be consecutive."
            )


SurroundingTokens = tuple[tuple[int, ...], tuple[int, ...]]  # before and after a text


def _surrounding_tokens(backend: tk.Tokenizer) -> SurroundingTokens:
    """The special tokens that the post-processor puts around a text."""
    for i in range(backend.get_vocab_size()):
        try:
            encoding = backend.encode(backend.decode([i]))
        except Exception:  # not text; the library raises nothing more specific
            continue
        is_special = encoding.special_tokens_mask
        if 0 in is_special:
            start = is_special.index(0)
            end = len(is_special) - is_special[::-1].index(0)
            return tuple(encoding.ids[:start]), tuple(encoding.ids[end:])
    return (), ()


def _surrounding_tokens_by_format(
    tokenizer_format: TokenizerFormat, folder: TokenizerFolder, backend: tk.Tokenizer
) -> SurroundingTokens:
    bos = tokenizer_format.bos
    eos = tokenizer_format.eos
    if tokenizer_format.honors_add_bos_eos:
        bos = ("bos",) if folder.flag("add_bos_token", bool(bos)) else ()
        eos = ("eos",) if folder.flag("add_eos_token", False) else ()

    def ids(roles: Sequence[str]) -> tuple[int, ...]:
        found = (backend.token_to_id(folder.roles.get(role, role)) for role in roles)
        return tuple(i for i in found if i is not None)

    return ids(bos), ids(eos)


# --- writing
def write_hf_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None,
    inference: InferenceConfig,
    model_config: ModelConfig,
) -> None:
    """Write files for `AutoTokenizer`; of two tokenizers it loads the one of the source."""
    input_tokenizer = source_tokenizer or tokenizer
    is_encoder = isinstance(model_config.architecture, Encoder)
    special_tokens = _special_token_names(tokenizer, input_tokenizer, inference, is_encoder)
    with_post_processor(input_tokenizer, inference).save(folder / TOKENIZER_FILE)
    if source_tokenizer is not None:
        tokenizer.save(folder / TARGET_TOKENIZER_FILE)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model_config.context_length,
        **special_tokens,
    }
    if isinstance(model_config.input, Tokens) and model_config.input.token_types > 1:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    config["clean_up_tokenization_spaces"] = False  # the default of older versions removes spaces
    if inference.chat_template:
        config[CHAT_TEMPLATE] = inference.chat_template
        (folder / f"{CHAT_TEMPLATE}.jinja").write_text(inference.chat_template, encoding="utf-8")
    write_json(folder / TOKENIZER_CONFIG_FILE, config)
    write_json(folder / SPECIAL_TOKENS_MAP_FILE, special_tokens)


def _special_token_names(
    tokenizer: Tokenizer, input_tokenizer: Tokenizer, inference: InferenceConfig, is_encoder: bool
) -> dict[str, str]:
    bos_role, eos_role = ("cls", "sep") if is_encoder else ("bos", "eos")
    roles = {
        bos_role: (input_tokenizer, inference.bos_tokens),
        eos_role: (input_tokenizer, inference.sep_tokens),
        "pad": (tokenizer, inference.pad_token),
        "mask": (tokenizer, inference.mask_token),
    }
    if inference.eos_tokens:
        roles["eos"] = (tokenizer, inference.eos_tokens)
    names = {role: owner.id_to_token(ids[0]) for role, (owner, ids) in roles.items() if ids}
    model = json.loads(input_tokenizer.backend.to_str())["model"]
    if model.get("unk_token"):
        names["unk"] = model["unk_token"]
    elif model.get("unk_id") is not None:
        names["unk"] = model["vocab"][model["unk_id"]][0]
    # Tokens that plain text may become are left out: a role would make them special.
    return {
        f"{role}_token": name
        for role, name in names.items()
        if name in input_tokenizer.special_tokens
    }


def with_post_processor(tokenizer: Tokenizer, inference: InferenceConfig) -> Tokenizer:
    """A tokenizer that adds the model's special tokens itself, for other programs."""
    if _surrounding_tokens(tokenizer.backend) == (inference.bos_tokens, inference.sep_tokens):
        return tokenizer
    backend_json = json.loads(tokenizer.backend.to_str())
    backend_json["post_processor"] = _post_processor(tokenizer, inference)
    return Tokenizer(tk.Tokenizer.from_str(json.dumps(backend_json)))


def _post_processor(tokenizer: Tokenizer, inference: InferenceConfig) -> ConfigDict:
    """`bos text sep`, and `bos text sep second sep` for pairs."""

    def special(ids: Sequence[int], type_id: int) -> list[ConfigDict]:
        return [{"SpecialToken": {"id": tokenizer.id_to_token(i), "type_id": type_id}} for i in ids]

    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    single = [*special(inference.bos_tokens, 0), first, *special(inference.sep_tokens, 0)]
    names = {tokenizer.id_to_token(i): i for i in (*inference.bos_tokens, *inference.sep_tokens)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *special(inference.sep_tokens, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in names.items()
        },
    }
