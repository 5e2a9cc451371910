"""What is said of an experiment follows from its numbers; the report is one file that needs no other."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from experiments import SMALL

import clearhead as ch
from clearhead.lab.compare import describe_plan
from clearhead.lab.experiment import Experiment, RunResult, save_result
from clearhead.lab.report import findings, format_mean_std, results_table, write_report
from clearhead.lab.stats import summarize
from clearhead.train.checkpoint import LOG_FILE

BASE = ch.presets["lm-small"].replace(
    **SMALL, **{"data.train": "text.txt", "data.valid": "valid.txt"}
)


def summary(values, metric="loss", **changes):
    """Of variants by their widths, with the values that their runs came to."""
    vary = (f"model.d_model={','.join(map(str, values))}",)
    seeds = tuple(range(max(len(each) for each in values.values())))
    experiment = Experiment("lm-small", vary, seeds, base=BASE, **{"metric": metric, **changes})
    runs = {}
    for width, each in values.items():
        for seed, value in enumerate(each):
            end = "diverged" if value is None else "done"
            known = {
                "loss": value,
                "last": value,
                "figures": {metric: value},
                "end": end,
                "parameters": width,
            }
            runs[f"width={width}", seed] = RunResult(
                f"width={width}", seed, **known, error="it was lost", train_seconds=2.0
            )
    return summarize(experiment, runs)


def said(found, out):
    return {finding.name: finding.message for finding in findings(found, out)}


def test_a_clear_difference_is_claimed_in_its_direction(tmp_path):
    lower = {16: [3.0, 3.1, 3.2], 32: [2.5, 2.61, 2.7]}
    assert (
        "width=32 is better than width=16: lowest validation loss -0.4967"
        in said(summary(lower), tmp_path)["better"]
    )
    assert "worse" in said(summary({32: lower[32], 16: lower[16]}), tmp_path)
    assert "worse" in said(summary(lower, "bits per byte", against="width=32"), tmp_path)


def test_more_is_better_where_it_is(tmp_path):
    found = summary({16: [3.0, 3.1, 3.2], 32: [2.5, 2.61, 2.7]}, "perplexity")
    assert found.lower_is_better
    rows = BASE.replace(**{"model.architecture": "encoder", "model.head": "classification"})
    assert not summarize(Experiment("x", metric="accuracy", base=rows), {}).lower_is_better


def test_noise_is_not_claimed_and_not_called_equal(tmp_path):
    found = said(summary({16: [3.0, 3.1, 3.2], 32: [3.1, 3.0, 3.25]}), tmp_path)
    assert list(found) == ["not to be told apart"]
    assert "does not make them equal" in found["not to be told apart"]


def test_looking_at_many_variants_makes_claims_harder(tmp_path):
    near = {16: [3.0, 3.1, 3.2], 32: [2.9, 3.02, 3.08]}
    alone = summary(near).rows[1].contrast
    among = summary(near | {w: [3.0, 3.3, 2.9] for w in (8, 64, 128)}).rows[1].contrast
    assert alone.p_corrected == alone.test.p_value < 0.05
    assert among.p_corrected == pytest.approx(4 * alone.p_corrected)
    assert not among.is_significant


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_few_seeds_nothing_is_claimed(seeds, tmp_path):
    found = said(summary({16: [3.0, 3.1][:seeds], 32: [1.0, 1.1][:seeds]}), tmp_path)
    assert list(found) == ["too few seeds"]


@pytest.mark.parametrize(("seeds", "told"), [(2, 1), (3, 0)])
def test_that_nothing_can_be_claimed_is_said_before_the_first_run(seeds, told, tmp_path):
    experiment = Experiment("lm-small", ("model.d_model=16,32",), tuple(range(seeds)), base=BASE)
    after = describe_plan(experiment, tmp_path)[3:]  # after a line for all and one for each variant
    few = "too few seeds: with 2 seeds nothing can be claimed"
    assert [line.partition(": chance")[0] for line in after] == [few] * told
    assert len(describe_plan(replace(experiment, vary=()), tmp_path)) == 2


def test_an_option_without_effect_is_told_from_a_small_one(tmp_path):
    assert "no effect" in said(summary({16: [3.0, 3.1, 3.2], 32: [3.0, 3.1, 3.2]}), tmp_path)


def test_runs_that_diverged_count_in_no_mean_and_are_told(tmp_path):
    found = summary({16: [3.0, 3.1, 3.2, 3.3], 32: [None, 2.6, 2.7, 2.8]})
    row = found.rows[1].to_dict()
    assert (row["n"], row["diverged"], row["mean"]) == (3, 1, pytest.approx(2.7))
    assert row["difference"] == pytest.approx(-0.5)
    assert "1 of 4 runs of width=32 diverged" in said(found, tmp_path)["mind"]
    few = summary({16: [3.0, 3.1, 3.2], 32: [None, 2.6, 2.7]})
    assert "width=32 there are fewer than 3 pairs" in said(few, tmp_path)["nothing to say"]


def test_the_loss_of_training_is_not_that_of_evaluate():
    run = RunResult(
        "base", 0, "done", best_loss=1.0, final_loss=2.0, metrics={"loss": 3.0, "perplexity": 20.0}
    )
    assert [run.metric(metric) for metric in ("loss", "last", "perplexity")] == [1.0, 2.0, 20.0]


def test_figures_that_training_does_not_log_need_files_of_their_own():
    rows = BASE.replace(
        **{"model.architecture": "encoder", "model.head": "classification", "data.valid": []}
    )
    assert Experiment("x", metric="accuracy", base=rows).metric == "accuracy"
    with pytest.raises(
        ch.ClearheadError,
        match=r"--metric f1 is measured on files of their own; give --data\.valid",
    ):
        Experiment("x", metric="f1", base=rows)


def test_a_chance_of_almost_nothing_is_not_told_as_none(tmp_path):
    found = summary({16: [3.0, 3.1, 3.2, 3.3], 32: [2.0, 2.1, 2.2, 2.30001]})
    assert "p < 0.0001" in said(found, tmp_path)["better"]
    assert results_table(found)[1][1][-1] == "< 0.0001"


def test_differences_that_are_all_the_same_have_no_interval(tmp_path):
    found = summary({16: [3.0, 3.5, 4.0], 32: [3.5, 4.0, 4.5]})
    assert (
        "+0.5000 (no interval: all differences are the same, p = 0.25)"
        in said(found, tmp_path)["not to be told apart"]
    )
    assert results_table(found)[1][1][-2] == "–"


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("data.vocab_size=99,98", "bits per byte"),
        ("data.valid=a,b", "other data"),
        ("model.context_length=8,16", "--lengths"),
    ],
)
def test_losses_that_are_not_of_the_same_are_pointed_out(option, word, tmp_path):
    experiment = Experiment("lm-small", (option,), base=BASE)
    assert any(word in finding.message for finding in findings(summarize(experiment, {}), tmp_path))


@pytest.mark.parametrize(
    ("valid", "told"),
    [
        (
            [3.0, 2.5, 2.0],
            "2 of 2 runs had their lowest validation loss at their end, but too few validations to tell",
        ),
        ([3.0, 2.0, 2.5], ""),
        ([3.0], "2 of 2 runs were validated once"),
        ([], ""),
        ([9.0 - i for i in range(8)], "2 of 2 runs were still falling at their end"),
    ],
)
def test_runs_whose_last_validation_is_their_lowest_are_told(valid, told, tmp_path):
    known = summary({16: [3.0], 32: [2.5]})
    for run in known.results:
        (tmp_path / run.path).mkdir(parents=True)
        lines = [
            json.dumps({"step": 10 * (i + 1), "loss": value, "valid": value})
            for i, value in enumerate(valid)
        ]
        (tmp_path / run.path / LOG_FILE).write_text("\n".join(lines))
    found = [each.message for each in findings(known, tmp_path) if each.name == "mind"]
    assert [sentence.startswith(told) for sentence in found] == ([True] if told else [])


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
        self.links = []
        self.words = ""

    def handle_starttag(self, tag, attrs):
        self.links += [
            value for name, value in attrs if name in ("src", "href") and not value.startswith("#")
        ]
        if tag not in ("meta", "br", "wbr", "path", "use", "circle", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_page_is_whole_needs_nothing_else_and_escapes_what_is_not_ours(tmp_path):
    known = summary({16: [3.0, 3.1, 3.2], 32: [2.5, 2.61, None]})
    experiment = replace(known.experiment, what="<script>alert(1)</script>", lengths=(16, 64))
    for run in known.results:
        save_result(tmp_path, replace(run, lengths={"16": {"loss": 3.0, "beyond": 0.0}, "64": {}}))
    write_report(experiment, tmp_path)
    html = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert not page.open
    assert not page.links
    assert "<script" not in html
    for word in (
        "width=32",
        "1 diverged",
        "3.1000 ± 0.1000",
        "min – max",
        "95 % interval",
        "peak memory",
    ):
        assert word in page.words
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "report.md").read_text()
    assert "| width=16 | 3.1000 ± 0.1000 |" in text
    assert "nothing here is extrapolation" in text


def test_an_experiment_without_any_result_yet_has_a_report_too(tmp_path):
    write_report(Experiment("lm-small", ("model.d_model=16,32",), base=BASE), tmp_path)
    assert "6 of 6 runs are not done" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([38.5, 38.9], "38.70 ± 0.28"),
        ([9.99, 10.05], "10.02 ± 0.04"),
        ([10.05, 9.5, 9.4], "9.6500 ± 0.3500"),
        ([1.5], "1.5000"),
        ([], "–"),
    ],
)
def test_a_spread_has_as_many_digits_as_its_mean(values, told):
    assert format_mean_std(values) == told
