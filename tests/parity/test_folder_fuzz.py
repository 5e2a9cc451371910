"""Edited folders of random models load with the logits of transformers, or are refused."""

import pytest
import torch

import clearhead as ch

transformers = pytest.importorskip("transformers")
from folder_fuzz import random_case  # noqa: E402 - needs transformers
from fuzz_cases import SEED, check_cases  # noqa: E402 - needs transformers
from test_transformers import hf_output, logits  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

# Relative to the largest logit. Tables of angles stored in 16 bits are computed in full by us.
TOLERANCE = 2e-5
TABLE_TOLERANCE = 3e-2
# Weights that transformers initializes at random if they are missing, and that nothing depends on.
UNUSED_WEIGHTS = ("pooler.", "seq_relationship")


def load_theirs(cls, folder):
    """The model as transformers loads it; None if it refuses or lacks weights."""
    try:
        model, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except Exception:  # whatever it is, there is nothing to compare
        return None
    problems = [*info["missing_keys"], *info["mismatched_keys"]]
    if any(not any(name in str(key) for name in UNUSED_WEIGHTS) for key in problems):
        return None
    return model.eval()


def random_inputs(theirs):
    """The same inputs as arguments of transformers and of clearhead."""
    config = theirs.config
    if config.model_type == "vit":
        images = torch.randn(2, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": images}, {"tokens": images}
    vocab_size = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    ids = torch.randint(vocab_size, (2, 17))
    if config.model_type == "whisper":
        source = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
        hf_source = {"input_features": source}
    elif config.is_encoder_decoder:
        source = torch.randint(config.vocab_size, (2, 14))
        hf_source = {"input_ids": source}
    else:
        return {"input_ids": ids}, {"tokens": ids}
    return {**hf_source, "decoder_input_ids": ids}, {"source": source, "tokens": ids}


@torch.no_grad()
def run_case(number, folder):
    """How a case ended: equal, refused, or nothing to compare; raises if they differ."""
    case = random_case(SEED, number, folder)
    if case is None:
        return "no such model"
    cls, edits = case
    try:
        model = ch.load(folder, device="cpu", dtype="float32")
    except ch.ClearheadError as error:
        return f"refused: {str(error)[:150]} {edits}"
    name = f"seed {SEED}, case {number}: {cls.__name__}, {edits}"
    theirs = load_theirs(cls, folder)
    if theirs is None:
        return f"refused by transformers only: {name}"
    torch.manual_seed(number)
    hf_inputs, inputs = random_inputs(theirs)
    try:
        expected = hf_output(theirs(**hf_inputs))
    except Exception:
        return f"refused by transformers only: {name}"
    if not expected.isfinite().all():
        return f"refused by transformers only: {name}"
    actual = logits(model, inputs).reshape(expected.shape)
    scale = expected.abs().max().clamp(min=1)
    difference = ((actual - expected).abs().max() / scale).item()
    is_rounded = "float16" in str(edits) and cls.__name__.startswith(("RoFormer", "Marian"))
    assert difference < (TABLE_TOLERANCE if is_rounded else TOLERANCE), f"{name}: {difference}"
    labels = model.config.inference.labels
    if labels:
        assert labels == tuple(theirs.config.id2label[i] for i in range(len(labels))), name
    return "equal"


def test_edited_folders_equal_transformers_or_are_refused(tmp_path, capsys):
    check_cases(run_case, 220, tmp_path, capsys)
