"""Compare a model with the Hugging Face folder it was loaded from, as transformers reads it.

Used by `clearhead verify MODEL --against transformers` and `clearhead.load(…, verify=True)`.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError

from clearhead import config as c
from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError, InputTextError, reraise_as
from clearhead.evaluate.invariants import InvariantResult, ModelUnderTest, relative_difference
from clearhead.generate.chat_template_process import Message, render_chat_template
from clearhead.model.int8 import is_quantized
from clearhead.model.transformer import eval_mode
from clearhead.weights.checkpoint import CONFIG_FILE, HF_CONFIG_FILE
from clearhead.weights.huggingface import find_architecture
from clearhead.weights.load import resolve_model

if TYPE_CHECKING:
    from clearhead.api import Model

NUM_TEXTS = 100
NUM_CONVERSATIONS = 20
TEXT_PARTS = (
    "the", " The", " and", "ing", " a", "I'm", " don't", "Wörter", " naïve", "北京", "日本語",
    " Привет", "🙂", " 1", "23", "3.14", "1,000", "…", ".", ", ", "!?", " - ", "_", "(x)", "#",
    "\n", "\n\n", "  ", "\t", "://", "'s", "é", "ﬁ", "def f(x):", "    return",
)  # fmt: skip
OUTPUTS = ("logits", "prediction_logits", "last_hidden_state")


def compare_with_transformers(
    model: "Model", name: str | Path, seed: int = 0
) -> Iterator[InvariantResult]:
    """Compare logits, tokens and chat prompts with those of the folder `name` in transformers."""
    folder = resolve_model(name)
    if not (folder / HF_CONFIG_FILE).is_file() or (folder / CONFIG_FILE).is_file():
        raise ClearheadError(
            f"{name} is not a Hugging Face folder, so transformers cannot read it for comparison."
        )
    if find_spec("transformers") is None:
        raise ClearheadError("this needs transformers; install it: pip install transformers")
    transformers = import_module("transformers")
    rng = random.Random(seed)
    yield compare_logits(model, _load_network(transformers, folder, model), seed)
    if model.tokenizers[1] is None:
        yield not_compared("tokens", model.no_tokenizer_reason)
        return
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError) as error:
        reason = f"transformers has no tokenizer: {str(error).splitlines()[0]:.100}"
        yield not_compared("tokens", reason)
        return
    yield compare_tokens(model, tokenizer, rng)
    yield compare_chat(model, tokenizer, rng)


def not_compared(name: str, reason: str) -> InvariantResult:
    """The result for what this model does not have."""
    return InvariantResult(name, None, 0.0, reason)


def _load_network(transformers: Any, folder: Path, model: "Model") -> Any:
    """The network as transformers loads it, on the same device in the same dtype."""
    parameter = next(model.net.parameters())
    architecture = find_architecture(read_config_file(folder / HF_CONFIG_FILE))
    with reraise_as(
        f"transformers cannot load {folder}", TypeError, AttributeError, RuntimeError, ImportError
    ):
        theirs = getattr(transformers, architecture).from_pretrained(
            folder, dtype=parameter.dtype, local_files_only=True, use_safetensors=True
        )
    return theirs.to(parameter.device).eval()


@torch.no_grad()
def compare_logits(model: "Model", theirs: Any, seed: int = 0) -> InvariantResult:
    """Compare the outputs of both networks for random inputs."""
    if is_quantized(model.net):
        return not_compared("logits", "the model is quantized to int8")
    subject = ModelUnderTest(model.net, seed)
    inputs = subject.random_inputs()
    names = {c.Tokens: "input_ids", c.Images: "pixel_values", c.Audio: "input_features"}
    name = names[type(model.config.model.main_input)]
    if "source" in inputs:
        hf_inputs = {name: inputs["source"], "decoder_input_ids": inputs["tokens"]}
    else:
        hf_inputs = {name: inputs["tokens"]}
    output = theirs(**hf_inputs)
    expected = next(output[key] for key in OUTPUTS if key in output)
    with eval_mode(model.net):
        actual = model.net.compute_logits(model.net(**inputs))
    if actual.numel() != expected.numel():
        return InvariantResult("logits", math.inf, subject.tolerance, "other shapes")
    difference = relative_difference(actual.reshape(expected.shape), expected)
    return InvariantResult("logits", difference, subject.tolerance, "")


def compare_tokens(model: "Model", theirs: Any, rng: random.Random) -> InvariantResult:
    """Count the texts that become other tokens."""
    tokenizer = model.tokenizers[1]
    assert tokenizer is not None
    inference = model.config.inference
    reads_text = isinstance(model.config.model.main_input, c.Tokens)

    def encode(text: str) -> list[int] | None:
        try:
            ids = tokenizer.encode(text)
        except InputTextError:  # refused
            return None
        return [*inference.bos_tokens, *ids, *inference.sep_tokens] if reads_text else ids

    def hf_encode(text: str) -> list[int]:
        return list(theirs(text, add_special_tokens=reads_text)["input_ids"])

    texts = [text for text in draw_texts(rng) if encode(text) is not None]
    if not texts:
        return not_compared("tokens", "the tokenizer refuses every text")
    return _count_differences("tokens", texts, encode, hf_encode)


def compare_chat(model: "Model", theirs: Any, rng: random.Random) -> InvariantResult:
    """Count the conversations that become other prompts."""
    template = model.config.inference.chat_template
    if not template and not theirs.chat_template:
        return not_compared("chat template", "the model has no chat template")

    def render(messages: Sequence[Message]) -> str | None:
        try:
            return render_chat_template(template, messages)
        except ClearheadError:
            return None

    def hf_render(messages: Sequence[Message]) -> str | None:
        try:
            prompt = theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, AttributeError):
            return None
        return str(prompt)

    return _count_differences("chat template", draw_conversations(rng), render, hf_render)


def _count_differences(
    name: str,
    inputs: Iterable[Any],
    ours: Callable[[Any], object],
    theirs: Callable[[Any], object],
) -> InvariantResult:
    """The share of inputs with different results, which are None where an input is refused."""
    inputs = list(inputs)
    differing = [x for x in inputs if ours(x) != theirs(x)]
    note = ""
    if differing:
        note = f"{len(differing)} of {len(inputs)} differ, such as {differing[0]!r:.200}"
    return InvariantResult(name, len(differing) / len(inputs), 0.0, note)


def draw_texts(rng: random.Random, count: int = NUM_TEXTS) -> list[str]:
    """Random texts of words, numbers, marks, spaces and several scripts."""
    return ["".join(rng.choices(TEXT_PARTS, k=rng.randint(1, 12))) for _ in range(count)]


def draw_conversations(rng: random.Random) -> list[list[Message]]:
    """Random conversations that end with the user, with and without a system message."""
    conversations: list[list[Message]] = []
    for _ in range(NUM_CONVERSATIONS):
        roles = ["system"] * rng.randint(0, 1) + ["user", "assistant"] * rng.randint(0, 2)
        texts = draw_texts(rng, len(roles) + 1)
        conversations.append(
            [
                {"role": role, "content": text}
                for role, text in zip([*roles, "user"], texts, strict=True)
            ]
        )
    return conversations


def check_against_transformers(model: "Model", name: str | Path) -> None:
    """Print every comparison with transformers, and raise unless all of them pass."""
    results = []
    for result in compare_with_transformers(model, name):
        print(result)
        results.append(result)
    if failed := [result for result in results if not result.passed]:
        raise ClearheadError(f"{name} differs from transformers: {failed[0]}")
