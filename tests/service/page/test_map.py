"""The map of the photos."""

import re
from pathlib import Path

import httpx
import pytest
from browsing import Watched
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_wandering_on_the_map_ends_at_a_photo(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?view=collection")
    canvas = page.locator(".map")
    expect(canvas).to_have_attribute("data-seen", "66")
    flat = httpx.get(f"{site}/api/map").json()
    box = canvas.bounding_box()
    assert box is not None
    i = flat["x"].index(max(flat["x"]))  # at the rim, where nothing lies over it
    side = min(box["width"], box["height"]) / 2 * 0.92
    x, y = box["width"] / 2 + flat["x"][i] * side, box["height"] / 2 - flat["y"][i] * side
    canvas.hover(position={"x": x, "y": y})
    expect(page.locator(".tip img")).to_be_visible()
    canvas.click(position={"x": x, "y": y})
    expect(page.locator("#viewer")).to_contain_text(f"photo {flat['ids'][i]} ")


def test_a_map_that_was_replaced_paints_no_more(own_site: str, watched: Watched, own: Path) -> None:
    page = watched.page
    page.add_init_script(
        """const real = HTMLCanvasElement.prototype.getContext;
        window.ghosts = 0;
        HTMLCanvasElement.prototype.getContext = function (...kind) {
          if (!this.isConnected) window.ghosts += 1;
          return real.apply(this, kind);
        };"""
    )
    watched.open(f"{own_site}/?view=collection")
    expect(page.locator(".map")).to_have_attribute("data-seen", "66")
    page.locator(".map").evaluate("map => { map.dataset.old = true; }")
    with Collection.open(own) as collection:
        collection.remove([1])
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("tab", name="Collection").click()
    expect(page.locator(".map:not([data-old])")).to_have_attribute("data-seen", re.compile("6[56]"))
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert page.evaluate("window.ghosts") == 0
