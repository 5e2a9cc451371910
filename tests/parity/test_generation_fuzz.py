"""Random generation options give the greedy tokens of transformers, or are refused."""

import json
import random

import pytest
import torch
from huggingface_models import CASES as MODELS
from huggingface_models import hf_model

import clearhead as ch

transformers = pytest.importorskip("transformers")
from fuzz_cases import SEED, check_cases  # noqa: E402 - needs transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GENERATING = ["gpt2", "llama", "mistral", "qwen2", "marian", "t5", "marian-own-vocab"]
MAX_TOKENS = 8


def draw_ids(rng):
    return [rng.randrange(6, 40) for _ in range(rng.randint(1, 25))]


def draw_options(rng):
    """Some options of generation_config.json."""
    drawn = {
        "eos_token_id": rng.choice([5, 7, [5, 9], None, [*range(20, 30)]]),
        "pad_token_id": rng.choice([0, 3, None]),
        "bos_token_id": rng.choice([1, 4]),
        "decoder_start_token_id": rng.choice([1, 2]),
        "forced_bos_token_id": rng.choice([None, 8]),
        "forced_eos_token_id": rng.choice([None, 5, 7]),
        "suppress_tokens": rng.choice([None, draw_ids(rng), []]),
        "begin_suppress_tokens": rng.choice([None, draw_ids(rng), []]),
        "bad_words_ids": rng.choice([None, [[i] for i in draw_ids(rng)], [[7, 8]]]),
        "renormalize_logits": rng.choice([True, False]),
        "encoder_no_repeat_ngram_size": rng.choice([0, 0, 2]),
        "sequence_bias": rng.choice([None, None, [[[7], 5.0]]]),
        "guidance_scale": rng.choice([None, 1.0, 2.0]),
        "exponential_decay_length_penalty": rng.choice([None, None, [2, 1.5]]),
        "remove_invalid_values": True,
        "temperature": 0.5,
        "mystery": 3,
    }
    return {name: drawn[name] for name in rng.sample(list(drawn), rng.choice([0, 1, 1, 2, 3]))}


def their_tokens(cls, folder, inputs):
    """Greedy tokens of transformers; None if it refuses the options."""
    try:
        theirs = cls.from_pretrained(folder).eval()
        written = theirs.generate(
            **inputs, do_sample=False, num_beams=1, max_new_tokens=MAX_TOKENS, max_length=None
        )
    except Exception:  # whatever it is, there is nothing to compare
        return None
    return written


@torch.no_grad()
def run_case(number, folder):
    rng = random.Random(f"generation-{SEED}-{number}")
    case = GENERATING[number % len(GENERATING)]
    cls = getattr(transformers, MODELS[case][0])
    hf_model(case).save_pretrained(folder)
    options = draw_options(rng)
    path = folder / "generation_config.json"
    saved = json.loads(path.read_text())
    removed = rng.sample(sorted(saved), rng.choice([0, 0, 1, 2]))
    path.write_text(json.dumps({k: v for k, v in saved.items() if k not in removed} | options))
    try:
        model = ch.load(folder, device="cpu")
    except ch.ClearheadError:
        return "refused"
    ids = [rng.randrange(6, 41) for _ in range(7)]
    written = their_tokens(cls, folder, {"input_ids": torch.tensor([ids])})
    if written is None:
        return "refused by transformers only"
    inference = model.config.inference
    if model.architecture == "encoder-decoder":
        if not inference.decoder_start_tokens:
            return "refused"
        num_forced = len(inference.decoder_start_tokens) - 1  # which count in transformers
        result = model.translate([ids], num_beams=1, max_tokens=MAX_TOKENS - num_forced)
        tokens = result[0].tokens
        expected = written[0, 1 + num_forced :].tolist()
    else:
        tokens = list(model.generate(ids, max_tokens=MAX_TOKENS, temperature=0).tokens)
        expected = written[0, len(ids) :].tolist()
    ends = [i for i, token in enumerate(expected) if token in inference.eos_tokens]
    expected = expected[: ends[0]] if ends else expected
    tokens = [token for token in tokens if token not in inference.eos_tokens]
    assert tokens == expected, (
        f"seed {SEED}, case {number}: {case} {options}, without {removed}: {tokens} {expected}"
    )
    return "equal"


def test_generation_options_equal_transformers_or_are_refused(tmp_path, capsys):
    check_cases(run_case, 70, tmp_path, capsys)
