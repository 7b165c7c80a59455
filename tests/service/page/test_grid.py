"""Photos in rows: their shapes, colours, and the way from one to the next."""

import io
from pathlib import Path

import pytest
from browsing import Watched, cards
from PIL import Image
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_colours_say_how_many_labels_match(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&label=person&rank=asymmetric")
    expect(cards(page).first).to_be_visible()
    found = cards(page).evaluate_all(
        """cards => cards.map((card) => ({
            labels: [...card.querySelectorAll(".word")].map((word) => word.textContent),
            shared: [...card.querySelectorAll(".word.shared")].map((word) => word.textContent),
            share: card.querySelector(".share").textContent,
            classes: card.className.trim(),
        }))"""
    )
    assert not all(card["labels"] for card in found)
    for card in found:
        if not card["labels"]:  # nobody knows
            assert (card["share"], card["classes"]) == ("no labels", "card")
            continue
        shared = [label for label in card["labels"] if label in ("dog", "person")]
        assert card["shared"] == shared
        assert card["share"] == f"{len(shared)} of 2 labels"
        assert card["classes"] == ("card bad", "card", "card good")[len(shared)]
    assert {len(card["shared"]) for card in found if card["labels"]} == {0, 1, 2}
    good = page.locator(".card.good").first.evaluate("card => getComputedStyle(card).borderBottomColor")
    bad = page.locator(".card.bad").first.evaluate("card => getComputedStyle(card).borderBottomColor")
    assert (good, bad) == ("rgb(18, 131, 59)", "rgb(194, 47, 47)")
    page.goto(f"{site}/?label=dog")
    expect(page.locator(".card .probability", has_text="%").first).to_be_visible()
    expect(page.locator(".share", has_text="of 1 label")).to_have_count(0)  # the probability says it


def test_keys_alone_are_enough(watched: Watched, site: str) -> None:
    page = watched.open(site)
    expect(cards(page).nth(10)).to_be_attached()
    page.keyboard.press("/")
    expect(page.get_by_label("Labels to search with")).to_be_focused()
    page.keyboard.type("dog,")
    expect(page.locator("#count")).to_contain_text("probably")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    expect(cards(page).first.locator(".open")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    under = """cards => {
        const below = cards.find((card) => card.offsetTop > cards[1].offsetTop).offsetTop;
        const middle = (card) => card.offsetLeft + card.offsetWidth / 2;
        const aside = (card) => Math.abs(middle(card) - middle(cards[1]));
        return cards.indexOf(cards.filter((card) => card.offsetTop === below).sort((a, b) => aside(a) - aside(b))[0]);
    }"""
    expect(cards(page).nth(cards(page).evaluate_all(under)).locator(".open")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#viewer")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()
    page.keyboard.press("m")
    expect(page.locator(".example figcaption")).to_contain_text("photo ")


SHAPES = [(240, 135), (90, 160), (160, 160), (300, 100), (135, 240), (200, 150), (150, 200), (240, 160), (96, 96)]


def test_photos_of_all_shapes_fill_rows_and_none_is_cropped(own_site: str, watched: Watched, own: Path) -> None:
    with Collection.open(own) as collection:
        for i, (width, height) in enumerate(SHAPES * 2):
            file = io.BytesIO()
            Image.new("RGB", (width, height), (10 * i, 90, 200 - 9 * i)).save(file, "PNG")
            collection.add_bytes(file.getvalue(), f"{i}.png", labels=["shape"])
    page = watched.open(f"{own_site}/?carrying=shape")
    expect(cards(page)).to_have_count(2 * len(SHAPES))
    page.wait_for_function("() => [...document.querySelectorAll('.card img')].every((img) => img.complete)")
    found = cards(page).evaluate_all(
        """cards => cards.map((card) => {
            const img = card.querySelector("img"), box = img.getBoundingClientRect();
            const { right } = card.getBoundingClientRect();
            return { row: card.offsetTop, natural: img.naturalWidth / img.naturalHeight, right, ...box.toJSON() };
        })"""
    )
    for card, (width, height) in zip(found, SHAPES * 2, strict=True):
        assert card["natural"] == pytest.approx(width / height, rel=0.02)
        assert card["width"] / card["height"] == pytest.approx(card["natural"], rel=0.02)
    rows = [[card for card in found if card["row"] == top] for top in sorted({card["row"] for card in found})]
    assert len(rows) > 1
    for row in rows:
        assert max(card["height"] for card in row) - min(card["height"] for card in row) < 1.5
    full = [row[-1]["right"] for row in rows[:-1]]
    assert max(full) - min(full) < 1.5  # all end at the right margin
    like = cards(page).nth(1).get_by_text("more like this")
    assert like.evaluate("button => getComputedStyle(button).opacity") == "0"  # covers no photo
    cards(page).nth(1).hover()
    expect(like).to_have_css("opacity", "1")
