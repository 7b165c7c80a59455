"""One photo in full."""

import re
from pathlib import Path

import httpx
import pytest
from browsing import Watched, cards, query_of, shown_ids
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_full_view_more_like_this_and_back(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&rank=hamming")
    cards(page).nth(1).locator(".open").click()
    viewer = page.locator("#viewer")
    expect(viewer).to_be_visible()
    ids = shown_ids(page)
    assert query_of(page)["photo"] == [str(ids[1])]
    image = viewer.locator("img")
    expect(image).to_have_js_property("naturalWidth", 96)
    page.keyboard.press("ArrowRight")
    expect(viewer.locator("[data-term=Number]")).to_contain_text(f"photo {ids[2]} ")
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()
    page.wait_for_url(lambda url: "photo" not in url)
    cards(page).nth(2).get_by_text("more like this").click()
    expect(page.locator(".example figcaption")).to_have_text(f"photo {ids[2]}")
    expect(page.locator("#count")).to_have_text("65 photos, nearest first")
    assert ids[2] not in shown_ids(page)
    page.go_back()
    expect(page.locator("#labels .chip")).to_have_text(["dog×"])
    expect(page.locator("#count")).to_have_text("66 photos, nearest first")
    assert shown_ids(page)[:3] == ids[:3]


def test_relabelling_needs_the_token(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = watched.open(f"{own_site}/?label=dog&photo=5")
    page.get_by_role("button", name="Edit labels").click()
    field = page.get_by_label("Labels of this photo")
    field.fill("my own <b>")
    field.press("Enter")
    expect(page.locator("#edit .chip").last).to_contain_text("my own <b>")
    page.get_by_label("Token of the service").fill("wrong-token")
    page.get_by_role("button", name="Use token").click()
    expect(page.locator("#edit [role=alert]")).to_have_text("This is not the token of this service.")  # told at once
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#edit")).to_contain_text("this needs the token")
    page.get_by_label("Token of the service").fill(token)
    page.get_by_role("button", name="Use token").click()
    expect(page.get_by_label("Token of the service")).to_have_count(0)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#viewer .words")).to_contain_text("my own <b>")
    expect(page.locator(".card[data-id='5'] .words")).to_contain_text("my own <b>")
    with Collection.open(own) as collection:
        assert "my own <b>" in collection.get(5).labels
    assert [re.sub(r".*(401).*", r"\1", problem) for problem in watched.problems] == ["401", "401"]
    watched.problems.clear()


def test_what_is_known_of_a_photo_and_zoom(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog")
    cards(page).nth(1).locator(".open").click()
    viewer, stage = page.locator("#viewer"), page.locator(".stage")
    photo = httpx.get(f"{site}/api/photos/{shown_ids(page)[1]}").json()
    expect(viewer.locator("[data-term=Size]")).to_contain_text("96 × 96")
    expect(viewer.locator("[data-term=Folder]")).to_have_text(str(Path(photo["path"]).parent))
    expect(viewer.locator("[data-term=Number]")).to_be_hidden()  # of the expert view
    expect(stage).to_have_attribute("data-zoom", "1.00")
    page.keyboard.press("+")
    expect(stage).to_have_attribute("data-zoom", "1.50")
    assert "size=2048" in str(stage.locator("img").get_attribute("src"))
    page.keyboard.press("ArrowRight")  # moves within the photo
    moved = stage.locator("img").evaluate("img => new DOMMatrix(getComputedStyle(img).transform).e")
    assert moved < 0
    expect(viewer.locator("h2")).to_have_text(photo["name"])
    page.keyboard.press("0")
    expect(stage).to_have_attribute("data-zoom", "1.00")
    stage.locator("img").dblclick()
    expect(stage).to_have_attribute("data-zoom", "2.50")
    page.get_by_label("Smaller").click(click_count=3)
    expect(stage).to_have_attribute("data-zoom", "1.00")
    page.keyboard.press("ArrowRight")
    expect(viewer.locator("h2")).not_to_have_text(photo["name"])


def test_a_photo_that_is_not_there_is_told(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?photo=99999")
    expect(cards(page).first).to_be_visible()
    expect(page.locator("#notice")).to_contain_text("Photo 99999 is not in this collection")
    expect(page.locator("#viewer")).to_be_hidden()
    assert "photo" not in query_of(page)
    page.locator("#notice").get_by_label("Dismiss").click()
    expect(page.locator("#notice")).to_be_hidden()
    watched.problems[:] = [problem for problem in watched.problems if "404" not in problem]
