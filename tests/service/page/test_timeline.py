"""Photos by month, and filters by what their files say."""

import io
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, cards, query_of, shown_ids, with_token
from PIL import Image
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")

TAKEN = [
    "2019:05:03 14:30:00",
    "2019:05:20 09:00:00",
    "2018:12:24 18:00:00",
    "2021:07:01 12:00:00",
    "2019:05:31 23:59:00",
]


@pytest.fixture
def dated(own: Path, made: Any) -> dict[str, int]:
    """Photos that say when and where they were taken, the first three of dogs; time → number."""
    numbers = {}
    with Collection.open(own) as collection:
        for i, taken in enumerate(TAKEN):
            exif = Image.Exif()
            exif.get_ifd(0x8769)[0x9003] = taken
            exif[0x0110] = "Leica M6" if i % 2 else "Nikon F3"
            exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 12.0, 0.0), 3: "E", 4: (16.0, 22.0 + i, 0.0)})
            file = io.BytesIO()
            with Image.open(made.photo(i)) as image:
                image.save(file, "JPEG", exif=exif)
            added = collection.add_bytes(
                file.getvalue(), f"dated-{i}.jpg", labels=["dated", *(["lately"] if i < 3 else [])]
            )
            numbers[taken] = added.id
    return numbers


def test_photos_by_month_of_all_and_of_a_result(
    own_site: str, watched: Watched, dated: dict[str, int], token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=timeline", token)
    headings = page.locator("#grid .border h2")
    expect(headings).to_have_text(["July 2021", "May 2019", "December 2018"])
    newest = [dated[taken] for taken in sorted(TAKEN, reverse=True)]
    assert shown_ids(page) == newest
    expect(page.locator("#count")).to_have_text("5 photos, newest first · 66 photos without a date")
    month = page.get_by_role("button", name="May 2019: 3 photos")
    month.click()
    expect(headings).to_have_text(["May 2019", "December 2018"])
    assert query_of(page) == {"view": ["timeline"], "month": ["2019-05"]}
    expect(month).to_have_attribute("aria-pressed", "true")
    cards(page).first.locator(".open").click()
    expect(page.locator("#viewer [data-term=Taken]")).to_have_text("31 May 2019 at 23:59")
    page.keyboard.press("Escape")
    page.goto(f"{own_site}/?view=timeline&label=lately")
    expect(headings).to_have_text(["May 2019", "December 2018"])
    assert {dated[TAKEN[0]], dated[TAKEN[1]], dated[TAKEN[2]]} <= set(shown_ids(page))
    page.goto(f"{own_site}/?view=timeline&taken=2019-05-10..2019-06-30")
    expect(headings).to_have_text(["May 2019"])
    assert shown_ids(page) == [dated[TAKEN[4]], dated[TAKEN[1]]]
    page.get_by_role("tab", name="Search").click()  # the same question, best first
    expect(page.locator("#count")).to_have_text("2 photos, newest first")
    expect(page.locator("#months")).to_be_hidden()


@pytest.mark.usefixtures("dated")
def test_a_timeline_whose_dates_are_gathered_still_says_so_and_comes(own_site: str, watched: Watched) -> None:
    waiting = [{"months": [], "undated": 0, "unread": 71}]
    watched.page.route(
        "**/api/timeline", lambda route: route.fulfill(json=waiting.pop()) if waiting else route.continue_()
    )
    page = watched.open(f"{own_site}/?view=timeline")
    expect(page.locator("#count")).to_have_text("Still reading when your photos were taken …")
    expect(page.locator("#count")).to_have_text("5 photos, newest first · 66 photos without a date")


def test_filters_and_facts_that_lead_to_others(
    own_site: str, watched: Watched, dated: dict[str, int], token: str
) -> None:
    page = with_token(watched, own_site, token)
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Taken from").fill("2019-01-01")
    page.get_by_label("Taken to").fill("2019-12-31")
    page.get_by_label("Taken to").blur()
    expect(cards(page)).to_have_count(3)
    page.get_by_label("Camera").fill("leica")
    expect(cards(page)).to_have_count(1)
    expect(page.locator("#filters-on")).to_have_text("2")
    assert query_of(page) == {"taken": ["2019-01-01..2019-12-31"], "camera": ["leica"]}
    page.reload()
    expect(page.get_by_label("Taken to")).to_have_value("2019-12-31")
    cards(page).first.locator(".open").click()
    viewer = page.locator("#viewer")
    expect(viewer.locator("[data-term=Camera]")).to_have_text("Leica M6")
    expect(viewer.locator("[data-term=Place]")).to_have_text("48.2000° N, 16.3833° E")
    viewer.locator("[data-term=Place] button").click()
    expect(page.locator("#count")).to_contain_text("5 photos")  # a minute of longitude is 1.2 km here
    assert query_of(page)["near"] == ["48.2,16.383333,5km"]
    page.get_by_label("Near a place").fill("nowhere")
    expect(page.locator("#notice")).to_contain_text("cannot be understood")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#filters-on")).to_be_hidden()
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]
