"""The page in Debian's Chromium, on a server in this process."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from clearhead.serve.registry import ModelRegistry
from serving import run_server

CHROMIUM = "/usr/bin/chromium"
READY = "body[data-ready]"


class Visit:
    """An open page, with its console errors and external requests."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.complaints = []
        self.outside = []
        page.on(
            "console",
            lambda message: message.type == "error" and self.complaints.append(message.text),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url):
        if not url.startswith((self.url, "data:", "blob:", "file:")):
            self.outside.append(url)

    def go(self, state=""):
        self.page.goto(f"{self.url}/{state}")
        return self.ready()

    def ready(self):
        self.page.wait_for_selector(READY, timeout=20000)
        return self

    def set(self, **patch):
        self.page.evaluate("patch => clearhead.set(patch)", patch)
        return self.ready()

    def state(self):
        return self.page.evaluate("() => ({...clearhead.state})")

    def wait_until(self, expression, seconds=30):
        """Poll an expression; the content security policy forbids wait_for_function."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"timed out: {expression}"
            time.sleep(0.02)


@pytest.fixture(scope="module")  # playwright blocks other event loops in its thread
def browser():
    sync = pytest.importorskip(
        "playwright.sync_api", reason="NO BROWSER TESTS: playwright is not installed"
    )
    if not Path(CHROMIUM).exists():
        pytest.skip(f"NO BROWSER TESTS: there is no {CHROMIUM}")
    with sync.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page_on(browser):
    """`with page_on(models) as visit:` with models by name, a registry, or one model."""

    @contextmanager
    def opened(models, allow_downloads=False, **options):
        models = models if isinstance(models, dict | ModelRegistry) else {"model": models}
        with run_server(models, page=True, allow_downloads=allow_downloads) as server:
            context = browser.new_context(
                accept_downloads=True, **{"viewport": {"width": 1200, "height": 850}, **options}
            )
            try:
                visit = Visit(context.new_page(), server.url)
                visit.server = server
                visit.context = context
                yield visit
            finally:
                context.close()

    return opened
