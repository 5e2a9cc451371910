"""Latency of the page in Chromium: medians of several visits, with their spread.

python bench/page.py [--visits 5] [--save]
"""

import argparse
import statistics
import sys
import time
import urllib.parse
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import benchmark_results
import clearhead as ch
from clearhead.serve.explorer.assets import PageAssets
from serving import run_server

BYTES = ch.Tokenizer.bytes()
LONG = ("the quick brown fox jumps over the lazy dog and " * 30)[:1024]
SETTLED = "!document.querySelector('main.pending')"
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-precise-memory-info"]
HOVER = """async () => {
  const map = document.querySelector("ch-heatmap");
  const box = map.querySelector("canvas").getBoundingClientRect();
  const times = [];
  for (let i = 0; i < 30; i++) {
    const start = performance.now();
    const there = { clientX: box.x + 100 + 9 * i, clientY: box.y + 300 + 7 * i, bubbles: true };
    map.dispatchEvent(new PointerEvent("pointermove", there));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push(performance.now() - start);
  }
  return times;
}"""


def wait_until(page: Page, expression: str) -> float:
    """Milliseconds until an expression is true. The page's CSP forbids playwright's wait_for."""
    start = time.perf_counter()
    while not page.evaluate(expression):
        time.sleep(0.005)
    return 1000 * (time.perf_counter() - start)


def is_drawn(size: int) -> str:
    has_map = "document.querySelector('main ch-heatmap')?.layout"
    return f"() => {has_map} && document.querySelector('ch-heatmap').dataShape[0] === {size}"


ROWS: list[benchmark_results.Row] = []


def report(workload: str, values: list[float], target: str, unit: str = "ms") -> None:
    ROWS.append(benchmark_results.measure(workload, unit, values))
    spread = f"{min(values):.0f} – {max(values):.0f}"
    print(f"{workload:<66} {statistics.median(values):8.0f} {unit}   ({spread}; target {target})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    visits = args.visits
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
        cold_start(browser, server.url, visits)
        long_text(browser, server.url, visits)
        head_ablation(browser, server.url, visits)
        browser.close()
    sizes()
    if args.save:
        benchmark_results.save(ROWS, "playwright")


def cold_start(browser: object, url: str, visits: int) -> None:
    times = []
    for _ in range(visits):
        page = browser.new_page()  # type: ignore[attr-defined]
        start = time.perf_counter()
        page.goto(f"{url}/#model=small&view=attention")
        wait_until(page, "() => !!document.querySelector('main ch-heatmap')?.layout")
        times.append(1000 * (time.perf_counter() - start))
        page.close()
    report("2-layer model: cold start to the first attention map", times, "< 3000")


def long_text(browser: object, url: str, visits: int) -> None:
    first_maps = []
    hovers = []
    heads = []
    nodes = []
    heap = []
    for visit in range(visits):
        page = browser.new_page(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
        page.goto(f"{url}/#model=large&view=attention")
        wait_until(page, "() => document.body.dataset.ready !== undefined")
        text = urllib.parse.quote(LONG[visit:] + LONG[:visit])
        start = time.perf_counter()
        page.goto(f"{url}/#model=large&view=attention&text={text}")
        wait_until(page, is_drawn(1024))
        forward = page.evaluate(
            "() => parseFloat(document.querySelector('.count').textContent.split('·')[1])"
        )
        first_maps.append(1000 * (time.perf_counter() - start) - forward)
        wait_until(page, "() => document.body.dataset.ready !== undefined")
        for head in range(1, 6):
            start = time.perf_counter()
            page.evaluate(
                "head => { window.before = document.querySelector('main ch-heatmap').values; "
                "clearhead.set({head}); }",
                head,
            )
            wait_until(
                page, "() => document.querySelector('main ch-heatmap').values !== window.before"
            )
            heads.append(1000 * (time.perf_counter() - start))
        page.evaluate("() => document.querySelector('main ch-heatmap').scrollIntoView()")
        hovers += page.evaluate(HOVER)
        nodes.append(page.evaluate("() => document.querySelectorAll('*').length"))
        heap.append(page.evaluate("() => performance.memory.usedJSHeapSize / 1e6"))
        page.close()
    report(
        "1,024 tokens × 12 × 12: first attention map after the forward pass", first_maps, "< 2000"
    )
    report("1,024 tokens × 12 × 12: hover over another cell", hovers, "< 50")
    report("1,024 tokens × 12 × 12: switch to another head", heads, "< 200")
    report("1,024 tokens × 12 × 12: DOM nodes", nodes, "< 5000", "nodes")
    report("1,024 tokens × 12 × 12: JavaScript heap", heap, "< 300", "MB")


def head_ablation(browser: object, url: str, visits: int) -> None:
    times = []
    page = browser.new_page()  # type: ignore[attr-defined]
    page.goto(f"{url}/#model=middle&view=attention")
    wait_until(page, "() => document.body.dataset.ready !== undefined")
    for head in range(visits):
        start = time.perf_counter()
        page.evaluate(
            "head => clearhead.set({edits: [{name: 'blocks.3.attn.z', op: 'ablate', head}]})", head
        )
        wait_until(
            page,
            "() => document.querySelector('.edits p') && "
            f"clearhead.state.edits[0].head === {head} && {SETTLED}",
        )
        times.append(1000 * (time.perf_counter() - start))
    page.close()
    report("10M parameters: time to the result of a head ablation", times, "< 300")


def sizes() -> None:
    assets = PageAssets()
    own = [asset for name, asset in assets.modules.items() if name.startswith("ch/")]
    report(
        "own JavaScript, transferred",
        [sum(len(asset.content) for asset in own) / 1e3],
        "< 200",
        "kB",
    )
    report(
        "page with all files",
        [sum(len(asset.content) for asset in assets.assets) / 1e3],
        "< 400",
        "kB",
    )
    report(
        "page with all files, compressed",
        [sum(len(asset.gzipped) for asset in assets.assets) / 1e3],
        "none",
        "kB",
    )


if __name__ == "__main__":
    main()
