"""What is asked for and what is then on the screen."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import Watched, cards, give, query_of, shown_ids
from playwright.sync_api import expect

pytestmark = pytest.mark.needs("chromium")
BITS = 32


@pytest.mark.parametrize("how", ["drop", "paste", "pick"])
def test_search_with_a_photo(watched: Watched, site: str, made: Any, how: str) -> None:
    page = watched.open(site)
    photo = made.photo(7, "database")
    if how == "pick":
        page.set_input_files("#file", photo)
    else:
        give(page, photo, how)
    expect(cards(page).first.locator(".distance")).to_have_text("0 bits")
    assert shown_ids(page)[0] == 8
    expect(page.locator(".example figcaption")).to_have_text("your photo")
    assert page.locator(".example img").get_attribute("src").startswith("blob:")  # type: ignore[union-attr]
    if how == "drop":  # the address alone brings the same photos back
        before = shown_ids(page)
        page.reload()
        expect(cards(page).first.locator(".distance")).to_have_text("0 bits")
        assert shown_ids(page) == before
        page.get_by_label("Remove your photo").click()
        expect(page.locator("#count")).to_contain_text("66 photos.")
        assert "place" not in query_of(page)


def test_what_is_no_photo_is_refused_with_a_reason(watched: Watched, site: str, tmp_path: Path) -> None:
    page = watched.open(site)
    (tmp_path / "a.jpg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    page.set_input_files("#file", tmp_path / "a.jpg")
    expect(page.locator("#notice")).to_contain_text("an SVG drawing")
    assert [re.sub(r".*(415).*", r"\1", problem) for problem in watched.problems] == ["415"]
    watched.problems.clear()  # the browser itself reports that answer


def test_scrolling_brings_all_photos_once(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?like=1&label=cat&rank=hamming")
    expect(cards(page).nth(39)).to_be_attached()
    assert len(shown_ids(page)) < 65
    page.mouse.wheel(0, 20_000)
    expect(cards(page).nth(64)).to_be_attached()
    assert len(set(shown_ids(page))) == len(shown_ids(page)) == 65
    expect(page.locator("#more")).to_be_hidden()
    distances = [int(text.split()[0]) for text in page.locator(".distance").all_inner_texts()]
    assert distances == sorted(distances)


def test_radius_and_filter_narrow_what_is_found(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&rank=hamming")
    expect(page.locator("#count")).to_have_text("66 photos, nearest first")
    expect(page.locator("#radius-shown")).to_have_text("any distance")
    page.locator("#radius").fill("9")
    expect(page.locator("#radius-shown")).to_have_text("9 bits")
    expect(page.locator("#count")).to_contain_text("within 9 bits")
    assert all(int(text.split()[0]) <= 9 for text in page.locator(".distance").all_inner_texts())
    assert query_of(page)["radius"] == ["9"]
    page.locator("#radius").fill(str(BITS))
    field = page.get_by_label("Only photos that carry")
    field.press_sequentially("person")
    field.press("Enter")
    total = httpx.get(f"{site}/api/photos", params={"carrying": "person"}).json()["total"]
    expect(page.locator("#count")).to_have_text(f"{total} photos, nearest first")
    labels = cards(page).evaluate_all("cards => cards.map((card) => card.querySelector('.words').textContent)")
    assert all("person" in words for words in labels)


def test_known_photos_come_first_then_the_probable(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&label=person")
    answer = httpx.get(f"{site}/api/search", params={"label": ["dog", "person"], "k": 40}).json()
    known, probable = answer["known"], answer["probable"]
    assert known > 1
    expect(page.locator("#count")).to_have_text(f"{known} carry both · {probable} probably")
    assert shown_ids(page)[:40] == [match["id"] for match in answer["matches"]]
    rows = page.locator("#grid > li").evaluate_all("rows => rows.map((row) => row.className.split(' ')[0])")
    borders = [i for i, row in enumerate(rows) if row == "border"]
    assert borders == [0, known + 1, known + probable + 2] if probable else [0, known + 1]
    expect(page.locator(".border").first).to_have_text("known to carry both")
    told = page.locator(".probability").all_inner_texts()
    assert told[:known] == ["✓ known"] * known
    assert all("%" in text for text in told[known:])
    expect(page.locator(".distance")).to_have_count(0)
    page.select_option("#every", "any_of")
    expect(page.locator("#count")).to_contain_text("carry one of them")
    assert query_of(page) == {"any_of": ["dog", "person"]}
    page.get_by_label("dog at least: any %").click()
    page.get_by_label("dog at least: ≥ 50 %").click()
    expect(page.get_by_label("dog at least: ≥ 80 %")).to_be_visible()
    assert query_of(page) == {"any_of": ["dog", "person"], "at_least": ["dog=0.8"]}
    expect(page.locator("#labels .chip")).to_have_text(["dog×", "person×"])
    page.goto(f"{site}/?label=dog&like=3")
    expect(cards(page).first.locator(".probability")).to_be_visible()  # a photo and labels together
    expect(cards(page).first.locator(".distance")).to_contain_text("bit")
    expect(page.locator(".border")).to_have_count(0)


def test_near_misses_and_queries_unlike_anything(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dgo&unwanted=person")
    expect(page.locator("#notice")).to_contain_text("did you mean 'dog'?")
    page.locator("#notice").get_by_role("button", name="dog").click()
    expect(page.locator("#notice")).to_be_hidden()
    assert query_of(page) == {"label": ["dog"], "unwanted": ["person"]}
    expect(page.locator("#unlike")).to_be_hidden()
    every = [offer["label"] for offer in httpx.get(f"{site}/api/labels").json()]
    page.goto(f"{site}/?{'&'.join(f'label={label}' for label in every[:12])}")
    expect(page.locator("#unlike")).to_contain_text("probably no photo here")
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]


def test_pictures_of_uploaded_photos_are_given_back(watched: Watched, site: str, made: Any) -> None:
    page = watched.page
    page.add_init_script(
        """const [create, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
        window.held = new Set();
        URL.createObjectURL = (file) => { const url = create(file); window.held.add(url); return url; };
        URL.revokeObjectURL = (url) => { window.held.delete(url); revoke(url); };"""
    )
    watched.open(site)
    shown = None
    for i in (0, 0, *range(12)):
        page.set_input_files("#file", made.photo(i, "database"))
        page.wait_for_function(
            "before => (document.querySelector('.example img')?.src ?? before) !== before", arg=shown
        )
        shown = page.locator(".example img").get_attribute("src")
    held = page.evaluate("[...window.held]")
    assert len(held) == 8
    assert shown in held
