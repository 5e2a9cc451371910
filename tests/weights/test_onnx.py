"""What onnxruntime makes of the files is what the network computes."""

import json
import subprocess
import sys

import pytest
import tokenizers
import torch
from onnx_sessions import LENGTHS, RELATIVE, SIDES, Session, as_past, assert_close, exporter, one_layer, padded, write

import clearhead as ch
from clearhead import config as c
from clearhead.config import Use
from clearhead.generate.engine import Engine
from clearhead.generate.sampling import Sampling
from clearhead.generate.write import Writer
from clearhead.model.transformer import build
from clearhead.weights import onnx
from clearhead.weights.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exporter(tmp_path_factory)


MODERN = ch.presets["tiny-llama"].change(
    vocabulary=61,
    attention__window=4,
    attention__qk_norm=True,
    position={"kind": "rotary", "width": 4, "scaling": {"kind": "llama3", "factor": 4.0, "context": 16}},
    head__tied=False,
)
DECODERS = {
    "modern": MODERN,
    "learned": one_layer("tiny-decoder", wiring="post", vocabulary=61, head__bias=True, head__scaled=True),
    "shaw": one_layer("tiny-decoder", position={"kind": "shaw", "distance": 3}, attention__kv_heads=1),
    "alibi": one_layer("tiny-decoder", position="alibi", attention__window=3, attention__scaled=False),
}


@pytest.mark.parametrize("config", DECODERS.values(), ids=DECODERS)
@torch.no_grad()
def test_padded_prompts_and_steps_equal_each_row_alone(config, exported):
    net, run = exported(config)
    for lengths in LENGTHS:
        for side in SIDES:
            (ids, real), (new, more) = (padded(n, side, config.model.vocabulary) for n in (lengths, [4] * len(lengths)))
            ids, real = torch.cat((ids, new), dim=1), torch.cat((real, more), dim=1)
            at, first = (real.cumsum(dim=1) - 1).clamp(min=0), max(lengths)
            past, logits = run.empty(len(ids)), []
            for begin, end in ((0, first), (first, first + 1), (first + 1, first + 4)):
                made = run(
                    input_ids=ids[:, begin:end], attention_mask=real[:, :end], position_ids=at[:, begin:end], **past
                )
                past = as_past(made)
                logits.append(made["logits"])
            for row, mask, got in zip(ids, real.bool(), torch.cat(logits, dim=1), strict=True):
                assert_close(got[mask], net.predict(net(row[mask][None]))[0])


def test_a_greedy_loop_writes_what_the_network_writes(exported):
    net, run = exported(MODERN)
    prompt = torch.tensor([[5, 3, 60]])
    past, ids, written = run.empty(1), prompt, []
    for count in range(3, 15):
        at = torch.arange(count)[None, -ids.shape[1] :]
        made = run(input_ids=ids, attention_mask=torch.ones(1, count).long(), position_ids=at, **past)
        past, ids = as_past(made), made["logits"][:, -1:].argmax(dim=-1)
        written.append(int(ids))
    greedy = Writer(Engine(net, Use(), 1, 16), None, prompt.tolist(), Sampling(max_tokens=12, temperature=0))
    assert written == greedy.results()[0].tokens


READERS = {
    "masked word": one_layer("tiny-encoder", vocabulary=61),
    "classes": one_layer(
        "tiny-encoder", position=RELATIVE, input="tokens", norm="rms", head={"kind": "classes", "pooling": "mean"}
    ),
    "number after a decoder": one_layer(
        "tiny-decoder",
        position={"kind": "sinusoidal", "layout": "halves"},
        head={"kind": "number", "pooling": "mean", "pooler": True},
    ),
}


@pytest.mark.parametrize("config", READERS.values(), ids=READERS)
@torch.no_grad()
def test_padded_rows_equal_each_row_alone(config, exported):
    net, run = exported(config)
    for lengths in LENGTHS:
        for side in SIDES:
            ids, real = padded(lengths, side, config.model.vocabulary)
            given = {"token_type_ids": ids % 2} if config.model.input.kinds else {}
            made = run(input_ids=ids, attention_mask=real, **given)
            for row, mask, got in zip(ids, real.bool(), made["logits"], strict=True):
                alone = row[mask][None]
                want = net.predict(net(alone, kinds=alone % 2 if given else None))[0]
                assert_close(got[mask] if want.dim() == 2 else got, want)


DENSE = {
    "pixel_values": (one_layer("tiny-pictures"), "logits"),
    "input_features": (one_layer("tiny-sound", head="hidden"), "last_hidden_state"),
}
EXPORT = """
import json, sys
from pathlib import Path
from clearhead.config import Config
from clearhead.model.transformer import build
from clearhead.weights import onnx
from clearhead.weights.checkpoint import Checkpoint
for folder in map(Path, sys.argv[1:]):
    config = Config.of(json.loads(folder.with_suffix(".json").read_text()))
    folder.mkdir()
    onnx.write(folder, Checkpoint(build(config.model), config))
"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Written by a process of its own, without the checks of shapes that these tests switch on."""
    folder = tmp_path_factory.mktemp("dense")
    for name, (config, _) in DENSE.items():
        (folder / f"{name}.json").write_text(json.dumps(config.tree()))
    command = [sys.executable, "-c", EXPORT, *(folder / name for name in DENSE)]
    return folder, subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", DENSE)
@torch.no_grad()
def test_pictures_and_sound_come_in_any_number(name, dense):
    config, result = DENSE[name]
    net, run = build(config.model).eval(), Session(dense[0] / name / "model.onnx")
    for batch in (1, 3):
        x = torch.randn(batch, *run.shapes[name][1:], generator=torch.Generator().manual_seed(0))
        assert_close(run(**{name: x})[result], net.predict(net(x)))


def test_nothing_is_said_and_no_path_of_this_machine_written(dense):
    folder, done = dense
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert b".py" not in (folder / "pixel_values" / "model.onnx").read_bytes()


@pytest.fixture(scope="module")
def around(tmp_path_factory):
    """A model in half precision, with all that can stand beside it, too large for one file."""
    folder, config = tmp_path_factory.mktemp("around"), one_layer("tiny-decoder", vocabulary=256)
    config = config.change(**{"use.chat": "{{ messages }}"})
    net, tokenizer = build(config.model, dtype=torch.bfloat16).train(), ch.Tokenizer.bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "LARGE", 0)
        write(folder, Checkpoint(net, config, tokenizer, tokenizer))
    return net, config, folder


def test_a_folder_explains_itself_and_looks_like_no_other(around):
    _, config, folder = around
    assert {path.name for path in folder.iterdir()} == {
        *("model.onnx", "model.onnx.data", "onnx_config.json"),
        *("tokenizer.json", "source_tokenizer.json", "chat_template.jinja"),
    }
    assert c.Config.of(json.loads((folder / "onnx_config.json").read_text())) == config
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    assert ch.Tokenizer.load(folder / "tokenizer.json").encode("ab") == [97, 98]


def test_the_tokenizer_puts_around_a_text_what_the_model_reads_there(tmp_path):
    """Others load it with `tokenizers` itself, which puts nothing there unless it is told to."""
    for shape, own in (("tiny-encoder", None), ("tiny-encoder-decoder", ch.Tokenizer.bytes())):
        config = one_layer(shape, vocabulary=258).change(**{"use.begin": (10,), "use.end": (257,)})
        reading = ch.Tokenizer.bytes(("<mask>", "<end>"))
        Checkpoint(build(config.model), config, own or reading, reading if own else None).save_tokenizers_for_engines(
            tmp_path
        )
        name = "source_tokenizer.json" if own else "tokenizer.json"
        assert tokenizers.Tokenizer.from_file(str(tmp_path / name)).encode("ab").ids == [10, 97, 98, 257]
        assert ch.Tokenizer.load(tmp_path / name).encode("ab") == [97, 98]
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("ab").ids == [97, 98]


def test_half_precision_is_written_in_full_and_the_network_stays_as_it_was(around):
    net, config, folder = around
    assert net.training
    assert net.embed.tokens.weight.dtype == torch.bfloat16
    full = build(config.model)
    full.load_state_dict(net.state_dict())
    ids, run = torch.arange(5)[None], Session(folder / "model.onnx")
    made = run(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=ids, **run.empty(1))
    assert_close(made["logits"], full.predict(full(ids)).detach())
    assert (folder / "model.onnx").stat().st_size < (folder / "model.onnx.data").stat().st_size


def test_without_the_packages_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = ch.new("tiny-decoder")
    with pytest.raises(ch.ClearheadError, match=r"needs the package onnxscript; pip install 'clearhead\[onnx\]'"):
        onnx.write(tmp_path, Checkpoint(model.net, model.config))
