"""The page in Chromium: how long a person waits. Prints medians of several visits, with their spread.

python bench/page.py [--visits 5] [--keep]
"""

import argparse
import statistics
import sys
import time
import urllib.parse
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import clearhead as ch
import kept
from clearhead.serve.explorer.assets import PageAssets
from serving import run_server

BYTES = ch.Tokenizer.bytes()
LONG = ("the quick brown fox jumps over the lazy dog and " * 30)[:1024]
SETTLED = "!document.querySelector('main.pending')"
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-precise-memory-info"]
HOVER = """async () => {
  const map = document.querySelector("ch-map"), box = map.querySelector("canvas").getBoundingClientRect(), times = [];
  for (let i = 0; i < 30; i++) {
    const start = performance.now();
    const there = { clientX: box.x + 100 + 9 * i, clientY: box.y + 300 + 7 * i, bubbles: true };
    map.dispatchEvent(new PointerEvent("pointermove", there));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def until(page: Page, expression: str) -> float:
    """Milliseconds until something is so; the page's policy forbids playwright's own way to wait."""
    start = time.perf_counter()
    while not page.evaluate(expression):
        time.sleep(0.005)
    return 1000 * (time.perf_counter() - start)


def drawn(size: int) -> str:
    return f"() => document.querySelector('main ch-map')?.plan && document.querySelector('ch-map').size[0] === {size}"


ROWS: list[kept.Row] = []


def tell(what: str, values: list[float], target: str, unit: str = "ms") -> None:
    ROWS.append(kept.row(what, unit, values))
    spread = f"{min(values):.0f} – {max(values):.0f}"
    print(f"{what:<52} {statistics.median(values):8.0f} {unit}   ({spread}; target {target})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    kept.offer(parser)
    given = parser.parse_args()
    visits = given.visits
    small = ch.new("lecture-small", tokenizer=BYTES, vocab_size=256, n_layers=2)
    large = ch.new(
        "lecture-small",
        tokenizer=BYTES,
        vocab_size=256,
        n_layers=12,
        attention__n_heads=12,
        d_model=384,
        context_length=1024,
    )
    middle = ch.new(
        "lecture-small",
        tokenizer=BYTES,
        vocab_size=256,
        n_layers=6,
        d_model=384,
        attention__n_heads=6,
    )
    print(f"small {small!r}\nlarge {large!r}\nmiddle {middle!r}\n")
    models = {"small": small, "large": large, "middle": middle}
    with run_server(models, page=True) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        first(browser, server.url, visits)
        long_text(browser, server.url, visits)
        causal_click(browser, server.url, visits)
        browser.close()
    sizes()
    if given.keep:
        kept.write(ROWS, "playwright")


def first(browser: object, url: str, visits: int) -> None:
    times = []
    for _ in range(visits):
        page = browser.new_page()  # type: ignore[attr-defined]
        start = time.perf_counter()
        page.goto(f"{url}/#model=small&view=attention")
        until(page, "() => !!document.querySelector('main ch-map')?.plan")
        times.append(1000 * (time.perf_counter() - start))
        page.close()
    tell("2 layers: from nothing to the first picture of a head", times, "< 3000")


def long_text(browser: object, url: str, visits: int) -> None:
    usable = []
    hovers = []
    heads = []
    nodes = []
    heap = []
    for visit in range(visits):
        page = browser.new_page(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
        page.goto(f"{url}/#model=large&view=attention")
        until(page, "() => document.body.dataset.ready !== undefined")
        text = urllib.parse.quote(LONG[visit:] + LONG[:visit])
        start = time.perf_counter()
        page.goto(f"{url}/#model=large&view=attention&text={text}")
        until(page, drawn(1024))
        forward = page.evaluate(
            "() => parseFloat(document.querySelector('.count').textContent.split('·')[1])"
        )
        usable.append(1000 * (time.perf_counter() - start) - forward)
        until(page, "() => document.body.dataset.ready !== undefined")
        for head in range(1, 6):
            start = time.perf_counter()
            page.evaluate(
                "head => { window.before = document.querySelector('main ch-map').values; clearhead.set({head}); }",
                head,
            )
            until(page, "() => document.querySelector('main ch-map').values !== window.before")
            heads.append(1000 * (time.perf_counter() - start))
        page.evaluate("() => document.querySelector('main ch-map').scrollIntoView()")
        hovers += page.evaluate(HOVER)
        nodes.append(page.evaluate("() => document.querySelectorAll('*').length"))
        heap.append(page.evaluate("() => performance.memory.usedJSHeapSize / 1e6"))
        page.close()
    tell("1,024 tokens × 12 × 12: a head, after the forward pass", usable, "< 2000")
    tell("1,024 tokens × 12 × 12: pointing at another cell", hovers, "< 50")
    tell("1,024 tokens × 12 × 12: another head", heads, "< 200")
    tell("1,024 tokens × 12 × 12: elements", nodes, "< 5000", "nodes")
    tell("1,024 tokens × 12 × 12: heap", heap, "< 300", "MB")


def causal_click(browser: object, url: str, visits: int) -> None:
    times = []
    page = browser.new_page()  # type: ignore[attr-defined]
    page.goto(f"{url}/#model=middle&view=attention")
    until(page, "() => document.body.dataset.ready !== undefined")
    for head in range(visits):
        start = time.perf_counter()
        page.evaluate(
            "head => clearhead.set({edits: [{name: 'blocks.3.attn.z', op: 'ablate', head}]})", head
        )
        until(
            page,
            f"() => document.querySelector('.edits p') && clearhead.state.edits[0].head === {head} && {SETTLED}",
        )
        times.append(1000 * (time.perf_counter() - start))
    page.close()
    tell("10M parameters: a head switched off, until the answer", times, "< 300")


def sizes() -> None:
    shell = PageAssets()
    own = [asset for name, asset in shell.modules.items() if name.startswith("ch/")]
    tell("own JavaScript, as sent", [sum(len(asset.content) for asset in own) / 1e3], "< 200", "kB")
    tell(
        "the page with all its files",
        [sum(len(asset.content) for asset in shell.assets) / 1e3],
        "< 400",
        "kB",
    )
    tell(
        "the page, packed", [sum(len(asset.gzipped) for asset in shell.assets) / 1e3], "none", "kB"
    )


if __name__ == "__main__":
    main()
