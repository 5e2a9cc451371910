"""Contrast, names of controls, reduced motion, zoom."""

from pathlib import Path

import pytest

from page_models import byte_model

pytestmark = pytest.mark.slow

AUDIT = (Path(__file__).parent / "audit.js").read_text().split("\n", 1)[1]
EDITED = (
    "#cell=blocks.0.attn.pattern@0,3,1"
    "&edits=[{%22name%22:%22blocks.0.attn.z%22,%22op%22:%22ablate%22}]"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_controls_have_contrast_and_names(page_on, scheme):
    with page_on(byte_model(), color_scheme=scheme) as visit:
        visit.go(EDITED)
        for number in range(visit.page.locator("nav.rail button").count()):
            visit.page.locator("nav.rail button").nth(number).click()
            visit.ready()
            assert visit.page.evaluate(AUDIT) == {"poor": [], "nameless": [], "twice": []}, (
                visit.state()["view"]
            )


def test_reduced_motion_disables_animations(page_on):
    with page_on(byte_model(), reduced_motion="reduce") as visit:
        visit.go()
        assert visit.page.evaluate("() => document.getAnimations().length") == 0


def test_zoomed_page_fits_the_window(page_on):
    """Zooming to 200 % equals a window half as wide."""
    with page_on(
        byte_model(), viewport={"width": 640, "height": 425}, device_scale_factor=2
    ) as visit:
        visit.go("#view=attention")
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 640
        assert visit.page.locator("form.prompt button").is_visible()
