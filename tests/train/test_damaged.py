"""A run whose files were damaged is refused with a sentence that names the file."""

import json

import pytest
from runs import run, through

import clearhead as ch

ONE_LINE = "the cat sat on the mat. " * 200


@pytest.mark.parametrize(
    "line", [b"5\n", b"[]\n", b'{"step": 3}\n', b'{"step": "3", "loss": 1}\n', b"\xff\n"]
)
def test_a_log_with_anything_but_reports_is_refused(tmp_path, line):
    through(run(tmp_path / "run", steps=3))
    log = tmp_path / "run" / "log.jsonl"
    log.write_bytes(line + log.read_bytes())
    again = run(tmp_path / "run", steps=4)
    again.resume()
    with pytest.raises(
        ch.ClearheadError, match=r"log\.jsonl is damaged: not every line is a report"
    ):
        through(again)


@pytest.mark.parametrize("state", ["{}", '{"step": 3}', '{"step": "3", "best": 1}'])
def test_a_state_that_tells_too_little_is_refused(tmp_path, state):
    through(run(tmp_path / "run", steps=3, check=1))
    (tmp_path / "run" / "steps" / "00000003" / "state.json").write_text(state)
    with pytest.raises(
        ch.ClearheadError, match=r"state\.json is damaged: it does not tell where the run stands"
    ):
        run(tmp_path / "run", steps=4).resume()


def test_lost_facts_of_a_finished_run_are_written_anew(tmp_path):
    (tmp_path / "a.txt").write_text(ONE_LINE)
    small = {"data.train": str(tmp_path / "a.txt"), "data.vocab_size": 300, "train.max_steps": 2}
    config = ch.presets["tiny-decoder"].replace(**small)
    ch.train(config, tmp_path / "run", device="cpu")
    facts = tmp_path / "run" / "facts.json"
    before = json.loads(facts.read_text())
    facts.write_text("{}")
    ch.train(config, tmp_path / "run", device="cpu")
    assert json.loads(facts.read_text()).keys() == before.keys()
