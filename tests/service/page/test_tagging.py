"""Photos tagged one after the other."""

from pathlib import Path

import httpx
import pytest
from browsing import Watched, cards, with_token
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_third_tab_tags_photos(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = watched.open(f"{own_site}/?view=tag")
    page.get_by_label("Token of the service").fill(token)
    page.keyboard.press("Enter")
    offers = page.locator(".offered li")
    expect(offers).to_have_count(9)
    expect(page.locator("#left")).to_have_text("6 to go")
    names = page.locator(".offer").all_inner_texts()
    first = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"][0]
    expect(page.locator(".tagging h2")).to_have_text(first["name"])
    page.get_by_label(f"Accept {names[1]}", exact=True).click()
    expect(page.locator("#carried")).to_have_text(names[1])
    page.get_by_label(f"Refuse {names[0]}", exact=True).click()
    expect(offers).to_have_count(7)
    page.keyboard.press("1")
    expect(page.locator("#carried .chip")).to_have_count(2)
    with Collection.open(own) as collection:
        photo = collection.get(first["id"])
    assert (photo.labels, photo.refused) == (tuple(sorted((names[1], names[2]))), (names[0],))
    page.get_by_role("button", name="Next photo").click()
    expect(page.locator("#left")).to_have_text("5 to go")
    for left in range(4, 0, -1):
        page.get_by_role("button", name="Pass over").click()
        expect(page.locator("#left")).to_have_text(f"{left} to go")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-tag")).to_contain_text("5 photos passed over")


def test_likely_labels_are_accepted_by_one_key_and_taken_back(
    own_site: str, watched: Watched, own: Path, token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=tag", token)
    expect(page.locator(".offered li")).to_have_count(9)
    queue = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"]
    for photo in queue:  # to one that has likely labels
        tags = httpx.get(f"{own_site}/api/photos/{photo['id']}/suggestions", params={"k": 9}).json()
        expect(page.locator(".tagging h2")).to_have_text(photo["name"])
        likely = [tag["label"] for tag in tags if tag["likely"]]
        if likely:
            break
        page.keyboard.press("ArrowRight")
    assert page.locator(".offered li.likely .offer").all_inner_texts() == likely
    assert "%" in page.locator(".percent").first.inner_text()
    left = page.locator("#left").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#left")).not_to_have_text(left)
    with Collection.open(own) as collection:
        assert collection.get(photo["id"]).labels == tuple(sorted(likely))
    page.keyboard.press("u")
    expect(page.locator(".tagging h2")).to_have_text(photo["name"])
    expect(page.locator("#left")).to_have_text(left)
    expect(page.locator("#carried .chip")).to_have_count(0)
    with Collection.open(own) as collection:
        assert collection.get(photo["id"]).labels == ()


@pytest.mark.parametrize(
    "press",
    [
        "document.getElementById('next').click()",
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))",
    ],
)
def test_pressing_twice_skips_no_photo(own_site: str, watched: Watched, token: str, press: str) -> None:
    waiting = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"]
    page = watched.open(f"{own_site}/?view=tag")
    page.get_by_label("Token of the service").fill(token)
    page.keyboard.press("Enter")
    expect(page.locator(".tagging h2")).to_have_text(waiting[0]["name"])
    page.evaluate(f"{press}; {press}")  # the second before the next photo is on the screen
    expect(page.locator("#left")).to_have_text("5 to go")
    expect(page.locator(".tagging h2")).to_have_text(waiting[1]["name"])


def test_read_only_service_says_so(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?view=tag")
    expect(page.locator("#view-tag")).to_contain_text("read-only")
    page.goto(f"{site}/?photo=1")
    expect(page.locator("#viewer")).to_be_visible()
    expect(page.get_by_role("button", name="Edit labels")).to_have_count(0)
    page.goto(f"{site}/?missing=dog")
    expect(cards(page).first).to_be_visible()
    expect(page.locator(".marks, #marking:visible")).to_have_count(0)


def test_a_wrong_token_is_told_and_arrows_go_back(own_site: str, watched: Watched, token: str) -> None:
    page = watched.open(f"{own_site}/?view=tag")
    page.get_by_label("Token of the service").fill("not-this-one")
    page.keyboard.press("Enter")
    expect(page.locator("#view-tag [role=alert]")).to_have_text("This is not the token of this service.")
    page.get_by_label("Token of the service").fill(token)
    page.keyboard.press("Enter")
    name, left = page.locator(".tagging h2"), page.locator("#left")
    expect(left).to_have_text("6 to go")
    names = [name.inner_text()]
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)  # nothing was done yet
    page.keyboard.press("ArrowLeft")  # nothing before the first
    for i in (5, 4):
        page.keyboard.press("ArrowRight")
        expect(left).to_have_text(f"{i} to go")
        names.append(name.inner_text())
    for i in (1, 0):
        page.keyboard.press("ArrowLeft")
        expect(name).to_have_text(names[i])
    expect(left).to_have_text("6 to go")
    page.keyboard.press("ArrowRight")
    expect(name).to_have_text(names[1])
    watched.problems[:] = [problem for problem in watched.problems if "401" not in problem]
