"""Measurements in the docs are the newest of bench/results."""

import re
from pathlib import Path

import pytest

import benchmark_targets

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "comparison.md").read_text(encoding="utf-8")
MEASURED = PAGE.split("## Measured")[1]
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in MEASURED.splitlines()
    if line.startswith("| ")
][1:]
NEWEST = {
    (file, row.workload, row.peer): (row, run)
    for file, some in benchmark_targets.newest_results().items()
    for row, run in some
}
TRAINED = "GPT-2 124M, step of {} × 1,024, compiled"
SMALL = "4-layer GPT, d_model 128, step of 12 × 64"
BASE = "translation base, 32 sentences, {}"

# the results behind each row of the table: file, peer, works
SOURCES = [
    ("train.h200", "Hugging Face", TRAINED.format(16), TRAINED.format(64)),
    ("train.h200", "plain PyTorch", TRAINED.format(16), TRAINED.format(64)),
    ("train.cpu", "plain PyTorch", SMALL),
    ("train.cpu", "Hugging Face", SMALL),
    (
        "decode_cuda.h200",
        "Hugging Face, static cache, compiled",
        "GPT-2 124M, 256 tokens, batch 1",
        "GPT-2 124M, 256 tokens, batch 64",
    ),
    (
        "translate_cuda.h200",
        "Hugging Face Marian",
        "translation base, 128 sentences, greedy",
        "translation base, 128 sentences, 5 beams",
    ),
    ("decode.cpu", "CTranslate2", "GPT-2 124M, one text, float32", "GPT-2 124M, one text, int8"),
    ("decode.cpu", "CTranslate2", BASE.format("greedy, float32"), BASE.format("greedy, int8")),
    ("decode.cpu", "CTranslate2", BASE.format("5 beams, float32"), BASE.format("5 beams, int8")),
    ("head_ablation.cpu", "TransformerLens", "GPT-2 124M, 30 tokens: ablation of every head"),
    ("load.cpu", "transformers", "gpt2-124m, safetensors"),
    ("load.cpu", "transformers", "smollm2-135m, .Q4_1.gguf"),
]


def rounded(ratio):
    text = f"{ratio:.{2 if ratio < 2 else 1 if ratio < 10 else 0}f}"
    return f"**{text}**" if ratio < 1 else text


@pytest.mark.parametrize(
    ("cells", "source"), list(zip(ROWS, SOURCES, strict=True)), ids=lambda x: x[0]
)
def test_ratio_is_the_newest(cells, source):
    file, peer, *works = source
    assert cells[2] == " / ".join(rounded(NEWEST[file, work, peer][0].ratio[0]) for work in works)
    assert cells[1].startswith(peer)


def test_numbers_in_the_text_are_the_newest():
    def of(*which):
        row, _ = NEWEST[which]
        return row.ours[0], row.theirs[0]

    ours, theirs = of("load.cpu", "gpt2-124m, safetensors", "transformers")
    assert f"GPT-2: {theirs:.2f} s against our {ours:.2f}" in PAGE
    ours, theirs = of("decode.cpu", BASE.format("5 beams, int8"), "CTranslate2")
    assert f"int8 beam search ({theirs / ours:.2f} times our speed on CPU)" in PAGE
    ours, theirs = of("decode.cpu", "GPT-2 124M, one text, float32", "CTranslate2")
    assert f"a single fp32 text on CPU ({theirs / ours:.2f} times)" in PAGE


def test_runs_on_the_page_have_versions():
    runs = [NEWEST[file, work, peer][1] for file, peer, *works in SOURCES for work in works]
    assert all("torch" in run.versions for run in runs)


def test_rate_of_the_multi_gpu_estimate_is_measured():
    row, _ = NEWEST["train.h200", f"{TRAINED.format(16)}: throughput", ""]
    page = (DOCS / "guides" / "many-gpus.md").read_text(encoding="utf-8")
    assert re.findall(r"^RATE = (\S+) \*", page, re.MULTILINE) == [f"{row.ours[0] / 1e3:.0f}e3"]
