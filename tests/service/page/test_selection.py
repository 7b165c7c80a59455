"""Photos that are selected together."""

from pathlib import Path

import pytest
from browsing import Watched, cards, shown_ids, with_token
from playwright.sync_api import Page, expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def middle(page: Page, i: int) -> tuple[float, float]:
    box = cards(page).nth(i).locator(".open").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def chosen(page: Page) -> list[int]:
    return page.locator(".card").evaluate_all(
        "cards => cards.map((card, i) => card.classList.contains('chosen-photo') ? i : -1).filter((i) => i >= 0)"
    )


def test_selection_by_shift_by_dragging_and_by_keys(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = with_token(watched, own_site, token)
    expect(cards(page).nth(5)).to_be_visible()
    ids = shown_ids(page)
    cards(page).nth(1).hover()
    cards(page).nth(1).locator(".tick").click()
    expect(page.locator("#selected")).to_have_text("1 photo selected")
    cards(page).nth(4).locator(".open").click(modifiers=["Shift"])
    expect(page.locator("#selected")).to_have_text("4 photos selected")
    assert chosen(page) == [1, 2, 3, 4]
    cards(page).nth(2).locator(".open").click()  # while some are selected a click selects
    assert chosen(page) == [1, 3, 4]
    page.keyboard.press("Escape")
    expect(page.locator("#selection")).to_be_hidden()
    page.mouse.move(*middle(page, 0))
    page.mouse.down()
    page.mouse.move(*middle(page, 2), steps=4)
    page.mouse.up()
    expect(page.locator("#viewer")).to_be_hidden()  # a drag opens nothing
    assert chosen(page) == [0, 1, 2]
    cards(page).nth(5).locator(".open").focus()
    page.keyboard.press("x")
    assert chosen(page) == [0, 1, 2, 5]
    page.get_by_label("Label for the selected photos").fill("seen")
    page.keyboard.press("Enter")
    expect(page.locator("#toast")).to_contain_text("seen added to 4 photos")
    expect(page.locator("#selection")).to_be_hidden()
    expect(cards(page).first.locator(".words")).to_contain_text("seen")
    with Collection.open(own) as collection:
        assert [photo.id for photo in collection.photos(carrying=["seen"])] == [ids[i] for i in (0, 1, 2, 5)]
    page.locator("#undo").click()
    expect(page.locator("#toast")).to_contain_text("Taken back")
    with Collection.open(own) as collection:
        assert collection.count(carrying=["seen"]) == 0


def test_many_are_marked_at_once(own_site: str, watched: Watched, token: str) -> None:
    page = with_token(watched, f"{own_site}/?missing=dog", token)
    expect(cards(page).nth(3)).to_be_visible()
    cards(page).first.locator(".open").focus()
    page.keyboard.press("x")
    cards(page).nth(2).locator(".open").focus()
    page.keyboard.press("Shift+X")
    page.get_by_role("button", name="✗ not dog").click()
    expect(page.locator("#marked")).to_have_text("3 photos without dog")
    expect(page.locator("#selection")).to_be_hidden()
