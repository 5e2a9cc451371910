"""The report of an experiment: findings follow from the numbers, and the page is self-contained."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tiny_experiments import OPTIONS

import clearhead as ch
from clearhead.lab.compare import describe_plan
from clearhead.lab.experiment import Experiment, RunResult, save_result
from clearhead.lab.report import findings, format_mean_std, results_table, write_report
from clearhead.lab.stats import summarize
from clearhead.train.checkpoint import LOG_FILE

BASE = ch.presets["lm-small"].replace(
    **OPTIONS, **{"data.train": "text.txt", "data.valid": "valid.txt"}
)
CLASSIFIER = {"model.architecture": "encoder", "model.head": "classification"}
CLEARLY_LOWER = {16: [3.0, 3.1, 3.2], 32: [2.5, 2.61, 2.7]}


def make_summary(values, metric="best_loss", **changes):
    """Summary of variants of d_model, with a value for each run; None for a diverged run."""
    vary = (f"model.d_model={','.join(map(str, values))}",)
    seeds = tuple(range(max(map(len, values.values()))))
    experiment = Experiment("lm-small", vary, seeds, base=BASE, metric=metric, **changes)
    results = {}
    for d_model, runs in values.items():
        name = f"d_model={d_model}"
        for seed, value in enumerate(runs):
            results[name, seed] = RunResult(
                name,
                seed,
                status="diverged" if value is None else "completed",
                error="the loss is nan",
                best_loss=value,
                final_loss=value,
                num_parameters=d_model,
                train_seconds=2.0,
                metrics={metric: value},
            )
    return summarize(experiment, results)


def messages(summary, output):
    return {finding.name: finding.message for finding in findings(summary, output)}


# ---- findings


def test_significant_difference_is_reported_with_its_direction(tmp_path):
    better = messages(make_summary(CLEARLY_LOWER), tmp_path)["better"]
    assert "d_model=32 is better than d_model=16" in better
    assert "-0.4967" in better
    reversed_order = {32: CLEARLY_LOWER[32], 16: CLEARLY_LOWER[16]}
    assert "worse" in messages(make_summary(reversed_order), tmp_path)
    other_baseline = make_summary(CLEARLY_LOWER, "bits_per_byte", baseline="d_model=32")
    assert "worse" in messages(other_baseline, tmp_path)


def test_direction_of_metrics():
    assert make_summary(CLEARLY_LOWER, "perplexity").lower_is_better
    base = BASE.replace(**CLASSIFIER)
    assert not summarize(Experiment("x", metric="accuracy", base=base), {}).lower_is_better


def test_noise_is_inconclusive(tmp_path):
    all_messages = messages(make_summary({16: [3.0, 3.1, 3.2], 32: [3.1, 3.0, 3.25]}), tmp_path)
    assert list(all_messages) == ["inconclusive"]
    assert "does not show that they are equal" in all_messages["inconclusive"]


def test_more_variants_make_the_test_stricter():
    values = {16: [3.0, 3.1, 3.2], 32: [2.9, 3.02, 3.08]}
    alone = make_summary(values).rows[1].contrast
    others = {d_model: [3.0, 3.3, 2.9] for d_model in (8, 64, 128)}
    among_four = make_summary(values | others).rows[1].contrast
    assert alone.p_corrected == alone.test.p_value < 0.05
    assert among_four.p_corrected == pytest.approx(4 * alone.p_corrected)
    assert not among_four.is_significant


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_few_seeds_claim_nothing(num_seeds, tmp_path):
    values = {16: [3.0, 3.1][:num_seeds], 32: [1.0, 1.1][:num_seeds]}
    assert list(messages(make_summary(values), tmp_path)) == ["too few seeds"]


@pytest.mark.parametrize(("num_seeds", "is_warned"), [(2, True), (3, False)])
def test_plan_warns_about_few_seeds(num_seeds, is_warned, tmp_path):
    vary = ("model.d_model=16,32",)
    experiment = Experiment("lm-small", vary, tuple(range(num_seeds)), base=BASE)
    plan = describe_plan(experiment, tmp_path)
    assert len(plan) == 3 + is_warned  # one line for all, and one per variant
    assert plan[-1].startswith("too few seeds") == is_warned
    assert len(describe_plan(replace(experiment, vary=()), tmp_path)) == 2


def test_identical_runs_have_no_effect(tmp_path):
    identical = {16: [3.0, 3.1, 3.2], 32: [3.0, 3.1, 3.2]}
    assert "no effect" in messages(make_summary(identical), tmp_path)


def test_diverged_runs_are_excluded_and_reported(tmp_path):
    summary = make_summary({16: [3.0, 3.1, 3.2, 3.3], 32: [None, 2.6, 2.7, 2.8]})
    row = summary.rows[1].to_dict()
    assert (row["n"], row["num_diverged"], row["mean"]) == (3, 1, pytest.approx(2.7))
    assert row["mean_difference"] == pytest.approx(-0.5)
    assert "1 of 4 runs of d_model=32 diverged" in messages(summary, tmp_path)["caveat"]
    few = make_summary({16: [3.0, 3.1, 3.2], 32: [None, 2.6, 2.7]})
    assert "fewer than 3 pairs" in messages(few, tmp_path)["too few pairs"]


def test_best_loss_is_not_the_loss_of_evaluation():
    metrics = {"loss": 3.0, "best_loss": 4.0, "perplexity": 20.0}
    run = RunResult("base", 0, "completed", best_loss=1.0, final_loss=2.0, metrics=metrics)
    values = [run.metric(name) for name in ("best_loss", "final_loss", "perplexity")]
    assert values == [1.0, 2.0, 20.0]


def test_metrics_of_evaluation_need_validation_files():
    base = BASE.replace(**CLASSIFIER, **{"data.valid": []})
    assert Experiment("x", metric="accuracy", base=base).metric == "accuracy"
    with pytest.raises(ch.ClearheadError, match=r"f1.*--data\.valid"):
        Experiment("x", metric="f1", base=base)


def test_tiny_p_value_is_not_shown_as_zero(tmp_path):
    summary = make_summary({16: [3.0, 3.1, 3.2, 3.3], 32: [2.0, 2.1, 2.2, 2.30001]})
    assert "p < 0.0001" in messages(summary, tmp_path)["better"]
    _, *rows = results_table(summary)
    assert rows[1][-1] == "< 0.0001"


def test_equal_differences_have_no_interval(tmp_path):
    summary = make_summary({16: [3.0, 3.5, 4.0], 32: [3.5, 4.0, 4.5]})
    message = messages(summary, tmp_path)["inconclusive"]
    assert "+0.5000 (no interval: all differences are equal, p = 0.25)" in message
    _, *rows = results_table(summary)
    assert rows[1][-2] == "–"


@pytest.mark.parametrize(
    ("vary", "keyword"),
    [
        ("data.vocab_size=99,98", "bits_per_byte"),
        ("data.valid=a,b", "different data"),
        ("model.context_length=8,16", "--eval-lengths"),
    ],
)
def test_incomparable_losses_are_pointed_out(vary, keyword, tmp_path):
    experiment = Experiment("lm-small", (vary,), base=BASE)
    all_findings = findings(summarize(experiment, {}), tmp_path)
    assert any(keyword in finding.message for finding in all_findings)


@pytest.mark.parametrize(
    ("losses", "caveat"),
    [
        ([3.0, 2.5, 2.0], "2 of 2 runs had their lowest validation loss at the end"),
        ([3.0, 2.0, 2.5], None),
        ([3.0], "2 of 2 runs were validated only once"),
        ([], None),
        ([9.0 - i for i in range(8)], "2 of 2 runs were still improving"),
    ],
)
def test_unfinished_curves_are_caveats(losses, caveat, tmp_path):
    summary = make_summary({16: [3.0], 32: [2.5]})
    for run in summary.results:
        (tmp_path / run.path).mkdir(parents=True)
        lines = [
            json.dumps({"step": 10 * step, "loss": loss, "valid_loss": loss})
            for step, loss in enumerate(losses, 1)
        ]
        (tmp_path / run.path / LOG_FILE).write_text("\n".join(lines))
    caveats = [each.message for each in findings(summary, tmp_path) if each.name == "caveat"]
    assert len(caveats) == (0 if caveat is None else 1)
    assert all(message.startswith(caveat) for message in caveats)


# ---- page


class Page(HTMLParser):
    """Unclosed tags, links and text of a page."""

    VOID_TAGS = ("meta", "br", "wbr", "path", "use", "circle", "rect")

    def __init__(self, html):
        super().__init__()
        self.open_tags = []
        self.links = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href") and not value.startswith("#"):
                self.links.append(value)
        if tag not in self.VOID_TAGS:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open_tags:
            assert self.open_tags.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_is_self_contained_and_escaped(tmp_path):
    summary = make_summary({16: [3.0, 3.1, 3.2], 32: [2.5, 2.61, None]})
    script = "<script>alert(1)</script>"
    experiment = replace(summary.experiment, recipe=script, eval_lengths=(16, 64))
    loss_by_length = {"16": {"loss": 3.0, "extrapolated_fraction": 0.0}, "64": {}}
    for run in summary.results:
        save_result(tmp_path, replace(run, loss_by_length=loss_by_length))
    write_report(experiment, tmp_path)
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    assert not page.open_tags
    assert not page.links
    assert "<script" not in html
    for text in (
        "d_model=32",
        "1 diverged",
        "3.1000 ± 0.1000",
        "min – max",
        "95 % CI",
        "peak memory",
    ):
        assert text in page.text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    markdown = (tmp_path / "report.md").read_text()
    assert "| d_model=16 | 3.1000 ± 0.1000 |" in markdown
    assert "nothing is extrapolated" in markdown


def test_experiment_without_results_has_a_report(tmp_path):
    write_report(Experiment("lm-small", ("model.d_model=16,32",), base=BASE), tmp_path)
    assert "6 of 6 runs are not finished" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([38.5, 38.9], "38.70 ± 0.28"),
        ([9.99, 10.05], "10.02 ± 0.04"),
        ([10.05, 9.5, 9.4], "9.6500 ± 0.3500"),
        ([1.5], "1.5000"),
        ([], "–"),
    ],
)
def test_std_has_as_many_digits_as_the_mean(values, text):
    assert format_mean_std(values) == text
