"""The page as a whole: colours, phones, screen readers, and nothing that runs by itself."""

import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import Watched, as_expert, cards, with_token
from playwright.sync_api import Page, expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")
READY = {  # an address of every view, and what is there when it is drawn
    "?label=dog&unwanted=cat&like=3": ".card",
    "?label=dog&label=person": ".card",
    "?missing=dog": ".card .marks",
    "?view=collection": ".map[data-seen]",
    "?view=tag": ".offered li",
    "?photo=2": "#viewer[open]",
    "?view=timeline": "#grid .card, #count:not(:empty)",
    "?view=duplicates": "#duplicates-told:not(:empty)",
    "?view=activity": "#view-activity > *",
}


def test_dark_mode_follows_the_system_and_the_button(watched: Watched, site: str) -> None:
    page = watched.open(site)

    def back() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour))

    assert back() > 600
    page.emulate_media(color_scheme="dark")
    assert back() < 150
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()  # dark, whatever the system says
    assert back() < 150
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert back() < 150


def test_fits_a_phone(own_site: str, watched: Watched, token: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 360, "height": 740})
    with_token(watched, own_site, token)
    for address, ready in READY.items():
        page.goto(f"{own_site}/{address}")
        page.wait_for_selector(ready)
        assert (address, page.evaluate("document.documentElement.scrollWidth") <= 360) == (address, True)
        tabs = page.get_by_role("tab", include_hidden=True).all()
        assert len(tabs) == 6
        for one in tabs:
            tab = one.bounding_box()
            assert tab is not None
            assert tab["x"] >= 0
            assert tab["x"] + tab["width"] <= 360


def test_nothing_runs_from_labels_or_file_names(own_site: str, watched: Watched, own: Path, made: Any) -> None:
    script = "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
    with Collection.open(own) as collection:
        data = made.photo(1, "database").read_bytes() + b"\0"
        added = collection.add_bytes(data, f"{script.replace('/', '')}.jpg", labels=[script, "javascript:window.hit=1"])
        collection.relabel(1, [script])
    page = watched.open(f"{own_site}/?label=dog&carrying={script.replace('<', '%3C').replace('>', '%3E')}")
    expect(cards(page)).to_have_count(2)
    expect(cards(page).first.locator(".words")).to_contain_text(script)
    page.goto(f"{own_site}/?photo={added.id}")
    expect(page.locator("#viewer h2")).to_contain_text("<img src=x onerror=window.hit=1>")
    page.goto(f"{own_site}/?view=collection")
    expect(page.locator(".cloud")).to_contain_text(script)
    page.get_by_role("tab", name="Search").click()
    page.get_by_label("Labels to search with").fill("<img")
    expect(page.locator("#labels .offers")).to_contain_text(script)
    page.goto(f"{own_site}/?label={script.replace('<', '%3C').replace('>', '%3E')}&place=%3Cscript%3E&view=%3Cb%3E")
    expect(page.locator("#notice")).to_be_visible()
    assert page.evaluate("window.hit") is None
    assert page.locator("main img[src='x'], main script").count() == 0
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]


def test_script_that_got_in_all_the_same_would_not_run(watched: Watched, site: str) -> None:
    page = watched.open(site)
    ran = page.evaluate(
        """async () => {
            const told = [];
            document.addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
            const box = document.createElement("div");
            box.innerHTML = "<img src='data:,' onerror='window.hit=1'>";
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            const far = document.createElement("img");
            far.src = "https://example.invalid/a.png";
            document.body.append(box, script, far);
            await new Promise((done) => setTimeout(done, 300));
            return [window.hit ?? null, [...new Set(told)].sort()];
        }"""
    )
    assert ran == [None, ["img-src", "script-src-attr", "script-src-elem"]]
    watched.problems.clear()
    watched.asked.clear()


def serious(page: Page) -> list[str]:
    """What a person who listens to the page or cannot see it well would stumble over."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:120]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("look", ["light", "dark"])
def test_screen_readers_find_nothing_serious(own_site: str, watched: Watched, token: str, look: str) -> None:
    """On a screen by day, on a phone by night."""
    page = watched.page
    page.emulate_media(color_scheme=look)  # type: ignore[arg-type]
    if look == "dark":
        page.set_viewport_size({"width": 390, "height": 800})
    with_token(watched, own_site, token)
    for address, ready in READY.items():
        page.goto(f"{own_site}/{address}")
        page.wait_for_selector(ready)
        assert (address, serious(page)) == (address, [])
    page.goto(own_site)
    page.get_by_role("button", name="Filters").click()
    as_expert(page)
    cards(page).first.locator(".open").focus()
    page.keyboard.press("x")
    page.get_by_label("Settings and keys").click()
    assert serious(page) == []


def test_controls_fold(watched: Watched, site: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 360, "height": 740})
    watched.open(site)
    expect(page.get_by_label("Only photos that carry")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    field = page.get_by_label("Only photos that carry")
    expect(field).to_be_visible()
    field.fill("dog")
    field.press("Enter")
    expect(page.locator("#filters-on")).to_have_text("1")
    page.get_by_role("button", name="Filters").click()
    expect(field).to_be_hidden()
    page.reload()  # what narrows the photos is never hidden from those who open the address
    expect(page.locator("#carrying .chip")).to_have_text(["dog×"])
    expect(field).to_be_visible()
