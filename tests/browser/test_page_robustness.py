"""Links, hostile texts, NaN weights, expired runs and lost servers."""

import pytest
import torch

from page_models import byte_model

pytestmark = pytest.mark.slow

TEXT = "the cat, the cat"


def views(visit):
    return visit.page.evaluate("() => [...document.querySelectorAll('nav.rail button')].length")


def test_links_restore_the_state_and_back_undoes(page_on):
    state = {
        "text": TEXT,
        "view": "attention",
        "layer": 1,
        "head": 2,
        "query": 3,
        "cell": "blocks.1.attn.pattern@2,3,1",
    }
    with page_on(byte_model()) as visit:
        visit.go()
        visit.set(**state)
        value = visit.page.locator(".inspector .value").inner_text()
        link = visit.page.evaluate("() => location.hash")
        other = visit.context.browser.new_context().new_page()
        other.goto(f"{visit.url}/{link}")
        other.wait_for_selector("body[data-ready]")
        assert {key: other.evaluate("() => ({...clearhead.state})")[key] for key in state} == state
        assert other.locator(".inspector .value").inner_text() == value
        other.context.close()
        visit.set(head=3)
        visit.page.go_back()
        visit.ready()
        assert visit.state()["head"] == 2


@pytest.mark.parametrize(
    "text", ["", "🦊 fox", "שלום עולם", "<script>alert(1)</script>", "a" * 500, "\u0301\u200b"]
)
def test_hostile_texts_are_shown_as_text(page_on, text):
    with page_on(byte_model()) as visit:
        visit.go("#view=attention")
        visit.page.on("dialog", lambda dialog: pytest.fail("a script of the text ran"))
        visit.set(text=text)
        problems = visit.page.locator("main .problem")
        if not text or len(text.encode()) > 32:
            assert problems.first.inner_text()
        else:
            assert problems.count() == 0
        visit.set(text="fine")
        assert problems.count() == 0
        assert visit.page.locator(".strip .token").count() == 4
        assert all(
            "400" in complaint for complaint in visit.complaints
        )  # browsers write refused requests down


def test_nan_weights_break_no_view(page_on):
    model = byte_model()
    with torch.no_grad():
        model.net.blocks[0].ffn.up.weight.fill_(float("nan"))
    with page_on(model) as visit:
        visit.go()
        for number in range(views(visit)):
            visit.page.locator("nav.rail button").nth(number).click()
            visit.ready()
            assert not visit.page.get_by_text("failed to render").count()
        visit.set(cell="final_norm@1,1")
        assert visit.page.locator(".inspector .value").inner_text() == "NaN"


def test_expired_runs_are_recreated(page_on):
    with page_on(byte_model()) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        visit.server.app.state.explorer.runs._runs._entries.clear()
        visit.set(head=3)
        assert visit.page.locator("main .problem").count() == 0
        assert (
            visit.page.evaluate("() => document.querySelector('ch-heatmap').values.shape")
            == [len(TEXT)] * 2
        )


def test_cached_run_requests_are_limited(page_on):
    with page_on(byte_model(context_length=64)) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        found = visit.page.evaluate(
            """async () => {
              const api = await import("ch/api");
              const { fetch } = window;
              const requests = [];
              const run = (n) => ({ text: "x".repeat(8e6), n });
              window.fetch = async (url, { method, body }) => {
                requests.push(url);
                if (method === "POST") {
                  return new Response(JSON.stringify({ id: "a" + JSON.parse(body).n }));
                }
                const isRetry = requests.filter((other) => other === url).length > 1;
                return new Response("{}", { status: isRetry ? 200 : 410 });
              };
              for (let n = 0; n < 6; n++) await api.json("POST", "/api/runs", run(n));
              requests.length = 0;
              const get = (n) => api.json("GET", `/api/runs/a${n}/x`)
                .then(() => "recreated", (e) => e.status);
              const results = [await get(5), await get(0)];
              window.fetch = fetch;
              return results;
            }"""
        )
        assert found == ["recreated", 410]


def test_tabs_are_independent(page_on):
    with page_on(byte_model()) as visit:
        visit.go("#text=first&view=attention")
        other = visit.context.new_page()
        other.goto(f"{visit.url}/#text=second&view=attention")
        other.wait_for_selector("body[data-ready]")
        visit.set(head=2)
        assert visit.page.locator(".strip .token").count() == 5
        assert other.locator(".strip .token").count() == 6


def test_page_reconnects_to_the_server(page_on):
    with page_on(byte_model()) as visit:
        visit.go("#view=attention")
        visit.context.set_offline(True)
        visit.page.evaluate("() => clearhead.set({text: 'unheard'})")
        visit.page.wait_for_selector(".disconnected")
        assert "not responding" in visit.page.locator(".disconnected").inner_text()
        assert visit.page.locator(".strip .token").count() > 7  # what was there is still there
        visit.context.set_offline(False)
        visit.wait_until("() => document.querySelectorAll('.strip .token').length === 7")
        assert visit.page.locator(".disconnected").count() == 0


@pytest.mark.parametrize(
    "state",
    [
        "#edits=[1,null,{%22name%22:5},{%22name%22:%22blocks.0.attn.z%22,%22op%22:%22explode%22}]&pins=[3]",
        "#layer=-7&head=99&query=1e9&key=-5&cell=nothing@x&view=attention",
        "#view=nowhere&part=sideways&temperature=hot&top_k={}&generated=5",
        "#%FF%00=<b>&text=%3Cimg%20src=x%20onerror=alert(1)%3E",
    ],
)
def test_invalid_links_are_reported(page_on, state):
    with page_on(byte_model()) as visit:
        visit.page.on("dialog", lambda dialog: pytest.fail("a script of the link ran"))
        visit.go(state)
        assert visit.page.locator("main h1").inner_text()
        assert (
            visit.page.locator(".strip .token").count() > 3
            or visit.page.locator(".problem").count()
        )
        assert not [c for c in visit.complaints if "Failed to load" not in c]


def test_negative_indices_in_links_are_clamped(page_on):
    with page_on(byte_model()) as visit:
        for view in ("block", "compare", "attention"):
            page = visit.go(f"#view={view}&layer=-1&head=-1&query=-7&text=hello").page
            shown = page.evaluate(
                """() => [...document.querySelectorAll('main select')]
                .map((select) => select.selectedIndex)"""
            )
            assert not any(shown)
            state = visit.state()
            assert (state["layer"], state["head"], state["query"]) == (0, 0, -1)
            assert page.locator("main .problem").count() == 0
            assert not visit.complaints
            page.goto("about:blank")


def test_unknown_model_in_a_link_is_reported(page_on):
    with page_on(byte_model()) as visit:
        visit.page.goto(f"{visit.url}/#model=nobody")
        visit.page.get_by_text("not found").wait_for()
        visit.page.get_by_role("button", name="Show another model").click()
        visit.ready()
        assert visit.page.locator("main h1").inner_text() == "Machine"
