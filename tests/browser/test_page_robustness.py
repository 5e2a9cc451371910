"""Links, hostile texts, broken models and lost servers: the page holds, and says what happened."""

import pytest
import torch

from page_models import byte_model

TEXT = "the cat, the cat"


def views(visit):
    return visit.page.evaluate("() => [...document.querySelectorAll('nav.rail button')].length")


def test_a_link_shows_what_its_sender_saw_and_back_undoes(page_on):
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
def test_hostile_texts_are_answered(page_on, text):
    with page_on(byte_model()) as visit:
        visit.go("#view=attention")
        visit.page.on("dialog", lambda dialog: pytest.fail("a script of the text ran"))
        visit.set(text=text)
        told = visit.page.locator("main .problem")
        if not text or len(text.encode()) > 32:
            assert told.first.inner_text()
        else:
            assert told.count() == 0
        visit.set(text="fine")
        assert told.count() == 0
        assert visit.page.locator(".strip .token").count() == 4
        assert all(
            "400" in complaint for complaint in visit.complaints
        )  # browsers write refused requests down


def test_a_model_full_of_nan_can_be_looked_at(page_on):
    model = byte_model()
    with torch.no_grad():
        model.net.blocks[0].ffn.up.weight.fill_(float("nan"))
    with page_on(model) as visit:
        visit.go()
        for number in range(views(visit)):
            visit.page.locator("nav.rail button").nth(number).click()
            visit.ready()
            assert not visit.page.get_by_text("could not be drawn").count()
        visit.set(cell="norm@1,1")
        assert visit.page.locator(".inspector .value").inner_text() == "no number"


def test_a_run_that_was_dropped_is_made_again_in_silence(page_on):
    with page_on(byte_model()) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        visit.server.app.state.desk.runs._runs._entries.clear()
        visit.set(head=3)
        assert visit.page.locator("main .problem").count() == 0
        assert (
            visit.page.evaluate("() => document.querySelector('ch-map').values.shape")
            == [len(TEXT)] * 2
        )


def test_requests_of_runs_are_kept_up_to_a_bound_and_the_newest_stay(page_on):
    with page_on(byte_model(context_length=64)) as visit:
        visit.go(f"#text={TEXT}&view=attention")
        found = visit.page.evaluate(
            """async () => {
              const api = await import("ch/api"), asked = [], {fetch} = window;
              const run = (n) => ({ text: "x".repeat(8e6), n });
              window.fetch = async (url, {method, body}) => {
                asked.push([method, url, body?.length ?? 0]);
                if (method === "POST") return new Response(JSON.stringify({id: "a" + JSON.parse(body).n}));
                return new Response("{}", {status: asked.filter(([, u]) => u === url).length > 1 ? 200 : 410});
              };
              for (let n = 0; n < 6; n++) await api.json("POST", "/api/runs", run(n));
              asked.length = 0;
              const again = (n) => api.json("GET", `/api/runs/a${n}/x`).then(() => "made again", (e) => e.status);
              const told = [await again(5), await again(0)];
              window.fetch = fetch;
              return told;
            }"""
        )
        assert found == ["made again", 410]


def test_two_pages_do_not_disturb_each_other(page_on):
    with page_on(byte_model()) as visit:
        visit.go("#text=first&view=attention")
        other = visit.context.new_page()
        other.goto(f"{visit.url}/#text=second&view=attention")
        other.wait_for_selector("body[data-ready]")
        visit.set(head=2)
        assert visit.page.locator(".strip .token").count() == 5
        assert other.locator(".strip .token").count() == 6


def test_the_page_comes_back_with_its_server(page_on):
    with page_on(byte_model()) as visit:
        visit.go("#view=attention")
        visit.context.set_offline(True)
        visit.page.evaluate("() => clearhead.set({text: 'unheard'})")
        visit.page.wait_for_selector(".lost")
        assert "does not answer" in visit.page.locator(".lost").inner_text()
        assert visit.page.locator(".strip .token").count() > 7  # what was there is still there
        visit.context.set_offline(False)
        visit.until("() => document.querySelectorAll('.strip .token').length === 7")
        assert visit.page.locator(".lost").count() == 0


@pytest.mark.parametrize(
    "state",
    [
        "#edits=[1,null,{%22name%22:5},{%22name%22:%22blocks.0.attn.z%22,%22op%22:%22explode%22}]&pins=[3]",
        "#layer=-7&head=99&query=1e9&key=-5&cell=nothing@x&view=attention",
        "#view=nowhere&part=sideways&temp=hot&topk={}&written=5",
        "#%FF%00=<b>&text=%3Cimg%20src=x%20onerror=alert(1)%3E",
    ],
)
def test_a_crooked_link_shows_a_page(page_on, state):
    with page_on(byte_model()) as visit:
        visit.page.on("dialog", lambda dialog: pytest.fail("a script of the link ran"))
        visit.go(state)
        assert visit.page.locator("main h1").inner_text()
        assert (
            visit.page.locator(".strip .token").count() > 3
            or visit.page.locator(".problem").count()
        )
        assert not [c for c in visit.complaints if "Failed to load" not in c]


def test_a_layer_below_the_first_is_the_first(page_on):
    with page_on(byte_model()) as visit:
        for view in ("block", "compare", "attention"):
            page = visit.go(f"#view={view}&layer=-1&head=-1&query=-7&text=hello").page
            shown = page.evaluate(
                "() => [...document.querySelectorAll('main select')].map((one) => one.selectedIndex)"
            )
            assert not any(shown)
            state = visit.state()
            assert (state["layer"], state["head"], state["query"]) == (0, 0, -1)
            assert page.locator("main .problem").count() == 0
            assert not visit.complaints
            page.goto("about:blank")


def test_a_link_to_a_model_that_is_not_here_offers_another(page_on):
    with page_on(byte_model()) as visit:
        visit.page.goto(f"{visit.url}/#model=nobody")
        visit.page.get_by_text("there is no model").or_(
            visit.page.get_by_text("There is no model")
        ).wait_for()
        visit.page.get_by_role("button", name="Show another model").click()
        visit.ready()
        assert visit.page.locator("main h1").inner_text() == "Machine"
