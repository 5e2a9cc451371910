"""Inputs that the page shows first, chosen so that the model can read them."""

import base64
import shlex
from pathlib import Path

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.serve.errors import JSONDict
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, Tokenizer
from clearhead.weights import hub
from clearhead.weights.bundled import bundled_path
from clearhead.weights.model_cards import read_card

PRONOUN_SENTENCE = "Lily gave Tim her ball. He was happy, and she"
PRONOUN_COMPARISON = "Tim gave Lily his ball. She was happy, and he"
FLUFFY_SENTENCE = "a fluffy blue creature roamed the verdant forest"
CHICKEN_SENTENCE = "The chicken didn't cross the road because it was too {}"
SHARED_PHRASE = ("I walk my dog every day", "every single day I walk my dog")
DEFAULT_PROMPT = "thanks for all the"
MOVIE_REVIEWS = ("A warm, funny film with a heart.", "A cold, empty film with no heart.")
QUEEN_SENTENCE = "The king and the queen had a daughter."
DEFAULT_SOURCE = "A little dog runs through the green grass."
MOLE_SENTENCES = (
    "American shrew mole",
    "one mole of carbon dioxide",
    "take a biopsy of the mole",
)
MOLE_SENSES = {
    "animal": (
        MOLE_SENTENCES[0],
        "In the garden, a small furry mole dug a tunnel.",
        "The cat caught a mole in the grass.",
        "Under the lawn lived a blind mole that ate worms.",
        "The farmer set a trap for the mole.",
        "Badgers, shrews and the mole live in burrows.",
    ),
    "unit": (
        MOLE_SENTENCES[1],
        "In chemistry, a mole is a number of particles.",
        "The flask contained half a mole of oxygen gas.",
        "Calculate the mass of one mole of water.",
        "Each mole of the acid reacts with two of the base.",
        "Avogadro's number of atoms make up one mole.",
    ),
    "growth": (
        MOLE_SENTENCES[2],
        "The doctor looked at the dark mole on her skin.",
        "He had a brown mole on his cheek.",
        "A dermatologist removed the mole from his back.",
        "She was born with a mole above her lip.",
        "If the mole changes color, see a doctor about cancer.",
    ),
}
MOLE_CONTROLS = ("thing", "table", "one")  # their vectors take in the same contexts
MOLE_SUBSTITUTES = ("mouse", "rat", "gram", "unit", "tumor", "skin", "spy")


def example_inputs(model: Model) -> JSONDict:
    """Default inputs of the page, and of single views, as far as the model can encode them."""
    m = model.config.model
    has_encoder = isinstance(m.architecture, c.EncoderDecoder)
    is_classifier = isinstance(m.head, c.ClassificationHead)
    comparison = MOVIE_REVIEWS[1] if is_classifier else PRONOUN_COMPARISON
    generates_target = has_encoder and bool(model.config.inference.decoder_start_tokens)
    return {
        "text": None if generates_target else _default_text(model),
        "source": encodable_text(model, DEFAULT_SOURCE, is_source=True) if has_encoder else "",
        "attention_text": encodable_text(model, FLUFFY_SENTENCE),
        "attention_tokens": _attention_tokens(model),
        "comparison": encodable_text(model, comparison),
        "coreference": [
            encodable_text(model, CHICKEN_SENTENCE.format(word)) for word in ("tired", "wide")
        ],
        "pronouns": [
            encodable_text(model, text) for text in (PRONOUN_SENTENCE, PRONOUN_COMPARISON)
        ],
        "shared_phrase": [encodable_text(model, text) for text in SHARED_PHRASE],
        "prompt": encodable_text(model, DEFAULT_PROMPT),
        "context_texts": [
            encodable_text(model, text, is_source=has_encoder) for text in MOLE_SENTENCES
        ],
        "substitutes": list(MOLE_SUBSTITUTES),
        "can_read_senses": _can_read_senses(model),
    }


def _default_text(model: Model) -> str:
    """A sentence; with a mask for a masked language model, a review for a classifier."""
    head = model.config.model.head
    if isinstance(head, c.ClassificationHead):
        return encodable_text(model, MOVIE_REVIEWS[0])
    fills_masks = isinstance(head, c.MLMHead) and bool(model.config.inference.mask_token)
    if fills_masks and encodable_text(model, QUEEN_SENTENCE) == QUEEN_SENTENCE:
        return QUEEN_SENTENCE.replace("queen", MASK_PLACEHOLDER)
    return encodable_text(model, PRONOUN_SENTENCE)


def _attention_tokens(model: Model) -> list[int] | None:
    """Tokens of "creature" (query) and "fluffy" (key), a non-adjacent adjective (L3.6)."""
    if model.tokenizer is None or encodable_text(model, FLUFFY_SENTENCE) != FLUFFY_SENTENCE:
        return None
    num_bos = len(model.config.inference.bos_tokens)
    tokens = []
    for word in ("creature", "fluffy"):
        end = FLUFFY_SENTENCE.index(word) + len(word)
        tokens.append(num_bos + len(model.tokenizer.encode(FLUFFY_SENTENCE[:end])) - 1)
    return tokens


def encodable_text(model: Model, text: str, is_source: bool = False) -> str:
    """The characters of a text that the tokenizer knows, truncated to the context length."""
    tokenizer = model.tokenizers[is_source]
    if tokenizer is None:
        return ""
    m = model.config.model
    inference = model.config.inference
    max_tokens = m.context_length
    if is_source and isinstance(m.architecture, c.EncoderDecoder):
        max_tokens = m.architecture.source_context_length
    max_tokens -= len(inference.bos_tokens) + len(inference.sep_tokens)
    text = "".join(character for character in text if _can_encode(tokenizer, character))
    while text and len(tokenizer.encode(text)) > max_tokens:
        text = text[: len(text) * 3 // 4]
    return text


def _can_read_senses(model: Model) -> bool:
    """Whether the longest sentence of the measurement fits into the model."""
    has_encoder = isinstance(model.config.model.architecture, c.EncoderDecoder)
    longest = max((text for texts in MOLE_SENSES.values() for text in texts), key=len)
    return encodable_text(model, longest, is_source=has_encoder) == longest


def _can_encode(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text)
    except ClearheadError:
        return False
    return True


def example_file(path: str) -> dict[str, str] | None:
    """The example image or audio file of a bundled model, in base64."""
    folder = bundled_path(path)
    if folder is None or hub.find_model(path) != folder:  # a local model may have the same name
        return None
    for command in read_card(folder).usage:
        for argument in shlex.split(command):
            file = Path(argument)
            if file.parent == folder and file.is_file():
                return {"name": file.name, "data": base64.b64encode(file.read_bytes()).decode()}
    return None
