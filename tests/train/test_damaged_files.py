"""A damaged file of a run is refused by name, or changes nothing."""

import importlib
import json
import shutil
import struct
from functools import partial

import pytest
import sample_data
from sample_data import SHORT_RUN, TINY_MODEL
from tiny_training import load_weights

import clearhead as ch
from clearhead.lens.view import View

# `clearhead.train` is a function.
report_module = importlib.import_module("clearhead.train.report")

OPTIONS = {
    **SHORT_RUN,
    **TINY_MODEL,
    "model.context_length": 16,
    "data.tokenizer": "bytes",
    "train.max_steps": 4,
    "train.ema_decay": 0.9,
}
CHECKPOINT = "checkpoints/00000004"
FILES = [
    "run.json",
    "data_fingerprints.json",
    "log.jsonl",
    "report.json",
    "tokenizer.json",
    f"{CHECKPOINT}/clearhead.json",
    f"{CHECKPOINT}/tokenizer.json",
    f"{CHECKPOINT}/model.safetensors",
    f"{CHECKPOINT}/training_state.json",
    f"{CHECKPOINT}/training_state.safetensors",
    "tokens/train/cache.json",
    "tokens/train/tokens.bin",
    "tokens/train/documents.npy",
    "activations/index.json",
    "activations/tokens.json",
    "activations/00000000.safetensors",
    "activations/00000004.safetensors",
]
# Other values of the right type cannot be noticed in these files.
UNCHECKED_VALUES = {"log.jsonl", "report.json", "index.json", "tokens.json"}


# --- damages


def replace_values(content, value):
    return json.dumps(dict.fromkeys(json.loads(content), value)).encode()


def edit_lists(value, edit):
    """Edit all lists in a JSON value."""
    if isinstance(value, dict):
        return {key: edit_lists(item, edit) for key, item in value.items()}
    if isinstance(value, list):
        return edit([edit_lists(item, edit) for item in value])
    return value


def edit_leaves(value, leaf):
    """Replace all values in a JSON value that are neither lists nor tables."""
    if isinstance(value, dict):
        return {key: edit_leaves(item, leaf) for key, item in value.items()}
    if isinstance(value, list):
        return [edit_leaves(item, leaf) for item in value]
    return leaf


def edit_json(edit, content):
    return json.dumps(edit(json.loads(content))).encode()


def edit_header(edit, content):
    """Edit the table of tensors in a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(edit(json.loads(content[8 : 8 + length]))).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def flatten_tensors(header):
    """The same bytes as vectors."""
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    size = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "U16": 2}
    for entry in tensors.values():
        start, end = entry["data_offsets"]
        entry["shape"] = [(end - start) // size.get(entry["dtype"], 1)]
    return header


def rename_keys(table):
    return {f"{key}x": value for key, value in table.items()}


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "binary": lambda content: b"\xff\xfe\x00" + content[3:],
    "longer": lambda content: content + b"\0\0\0\0",
}
JSON_DAMAGES = {
    "a list": lambda content: b"[]",
    "null": lambda content: b"null",
    "no keys": lambda content: b"{}",
    "other keys": partial(edit_json, rename_keys),
    "text values": lambda content: replace_values(content, "x"),
    "negative values": lambda content: replace_values(content, -1),
    "null values": lambda content: replace_values(content, None),
    "list values": lambda content: replace_values(content, [[]]),
    "table values": lambda content: replace_values(content, {"a": 1}),
    "text leaves": partial(edit_json, lambda tree: edit_leaves(tree, "x")),
    "negative leaves": partial(edit_json, lambda tree: edit_leaves(tree, -1)),
    "null leaves": partial(edit_json, lambda tree: edit_leaves(tree, None)),
    "shorter lists": partial(edit_json, lambda tree: edit_lists(tree, lambda items: items[:-1])),
    "longer lists": partial(
        edit_json, lambda tree: edit_lists(tree, lambda items: items + items[-1:])
    ),
    "nested": lambda content: b"[" * 100_000,
}
LINE_DAMAGES = {
    "a list": lambda content: b"[]\n" + content,
    "a number": lambda content: b"5\n" + content,
    "no keys": lambda content: b"{}\n" + content,
    "text leaves": lambda content: replace_values(content.splitlines()[0], "x"),
    "null leaves": lambda content: replace_values(content.splitlines()[0], None),
    "list leaves": lambda content: replace_values(content.splitlines()[0], []),
}
TENSOR_DAMAGES = {
    "other tensors": partial(edit_header, rename_keys),
    "no tensors": partial(edit_header, lambda header: {}),
    "vectors": partial(edit_header, flatten_tensors),
}
DAMAGES_BY_SUFFIX = {
    "json": JSON_DAMAGES,
    "jsonl": LINE_DAMAGES,
    "safetensors": TENSOR_DAMAGES,
}


def damages_of(file):
    return {**DAMAGES, **DAMAGES_BY_SUFFIX.get(file.rpartition(".")[2], {})}


# --- what a run is used for


def train(folder, max_steps):
    changes = {"data.train": [str(folder / "text.txt")], "train.max_steps": max_steps}
    options = {**OPTIONS, **changes}
    sample_data.train("lm-small", folder / "run", options, record_activations=True)
    return load_weights(folder / "run" / "checkpoints" / f"{max_steps:08d}")


def evaluate(folder):
    model = ch.load(folder / "run" / CHECKPOINT, device="cpu")
    return ch.evaluate(model, folder / "text.txt").to_json()


def report(folder):
    report_module.write_report(folder / "run")
    return (folder / "run" / "report.html").read_text()


def read_trace(folder):
    trace = ch.lens.read_training_trace(folder / "run")
    views = [trace.attention_over_steps(), *(trace.attention(step) for step in trace.steps)]
    lenses = [trace.logit_lens(step, 1).top_predictions() for step in trace.steps]
    tables = [trace.embeddings(step) for step in trace.steps]
    return (
        trace.losses,
        trace.probes,
        lenses,
        [view.values.tolist() for view in views],
        [(t.tokens, t.vectors.tolist(), t.projection.tolist(), t.all_tokens) for t in tables],
    )


def resume(folder):
    return {name: t.tolist() for name, t in train(folder, 6).items()}


# Which uses read a file. Plots are not drawn, because they take most of the time.
USES = {
    "log.jsonl": (report, read_trace, resume),
    "report.json": (report,),
    "activations": (read_trace, resume),
    "checkpoints": (evaluate, resume),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with a run, a copy of it, and the results of all uses."""
    folder = tmp_path_factory.mktemp("original")
    copy = folder.with_name("copy")
    sample_data.write_text(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "plot_loss", lambda *arguments: None)
        patch.setattr(report_module, "to_png", lambda figure: b"")
        patch.setattr(report_module, "to_svg", lambda figure, name: "")
        patch.setattr(View, "save", lambda view, path: None)
        train(folder, 4)
        shutil.copytree(folder, copy, symlinks=True)
        expected = {use: use(folder) for use in (evaluate, report, read_trace, resume)}
        yield folder, copy, expected


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_damaged_file_is_refused_by_name_or_changes_nothing(file, original):
    folder, copy, expected = original
    problems = []
    for name, damage in damages_of(file).items():
        for use in USES.get(file.partition("/")[0], (resume,)):
            shutil.rmtree(folder)
            shutil.copytree(copy, folder, symlinks=True)  # at the same path, which it records
            path = folder / "run" / file
            path.write_bytes(damage(path.read_bytes()))
            try:
                is_same = use(folder) == expected[use]
            except ch.ClearheadError as error:
                if path.name not in str(error) and str(path.parent) not in str(error):
                    problems.append(f"{name}: {use.__name__} does not name the file: {error}")
            except Exception as error:
                problems.append(f"{name}: {use.__name__} raises {type(error).__name__}: {error}")
            else:
                if not is_same and (use is resume or path.name not in UNCHECKED_VALUES):
                    problems.append(f"{name}: {use.__name__} gives another result")
    assert not problems, "\n".join(problems)
