"""Fields of labels: completion, and what is taken."""

from pathlib import Path

import httpx
import pytest
from browsing import Watched, as_expert, cards, query_of, shown_ids, with_token
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_search_by_labels_with_completion(watched: Watched, site: str) -> None:
    page = watched.open(site)
    field = page.get_by_label("Labels to search with")
    field.press_sequentially("do")
    expect(page.locator("#labels .offers li").first).to_contain_text("dog")
    field.press("Enter")
    expect(page.locator("#labels .chip")).to_have_text(["dog×"])
    field.press_sequentially("-pers")
    expect(page.locator("#labels .offers li").first).to_contain_text("−person")
    field.press("Enter")
    expect(page.locator("#labels .chip.unwanted")).to_have_text(["−person×"])
    assert query_of(page) == {"label": ["dog"], "unwanted": ["person"]}
    expect(page.locator("#rank")).to_be_hidden()
    as_expert(page)
    page.get_by_role("button", name="Filters").click()
    page.select_option("#rank", "asymmetric")
    expect(page.locator("#count")).to_have_text("66 photos, nearest first")
    wanted = {"label": "dog", "unwanted": "person", "rank": "asymmetric", "k": 40}
    answer = httpx.get(f"{site}/api/search", params=wanted).json()
    expect(cards(page).first).to_have_attribute("data-id", str(answer["matches"][0]["id"]))
    assert shown_ids(page)[:40] == [match["id"] for match in answer["matches"]]
    page.get_by_label("Remove person").click()
    expect(page.locator("#labels .chip")).to_have_text(["dog×"])
    assert query_of(page) == {"label": ["dog"], "rank": ["asymmetric"]}


def test_offers_come_when_asked_for_and_are_never_in_the_way(watched: Watched, site: str) -> None:
    page = watched.open(site)
    field = page.get_by_label("Labels to search with")
    offers = page.locator("#labels .offers li")
    field.click()
    field.press("ArrowDown")
    expect(offers.first).to_contain_text("person")  # the most frequent
    field.press("ArrowDown")
    field.press("ArrowDown")
    second = offers.nth(1).locator("span").first.inner_text()
    field.press("Enter")
    expect(page.locator("#labels .chip")).to_have_text([f"{second}×"])
    page.wait_for_timeout(400)
    expect(offers.first).to_be_hidden()
    field.press_sequentially("zebra-crossing")
    expect(page.locator("#notice")).to_be_hidden()
    field.press("Enter")
    expect(page.locator("#notice")).to_contain_text("zebra-crossing")  # nobody knows that label
    field.press("Backspace")
    expect(page.locator("#notice")).to_be_hidden()
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]


def test_a_label_is_found_by_its_last_level(own_site: str, watched: Watched, own: Path, token: str) -> None:
    """Photos carry thing/dog and none dog, which the hasher knows."""
    with Collection.open(own) as collection:
        carriers = collection.photos(0, 60, carrying=["dog"])
        for photo in carriers:
            collection.relabel(photo.id, [label.replace("dog", "thing/dog") for label in photo.labels])
    page = with_token(watched, own_site, token)
    field = page.get_by_label("Labels to search with")
    field.press_sequentially("dog")
    expect(page.locator("#labels .offers li")).to_have_text([f"thing/dog{len(carriers)}", "dog0"])
    page.goto(f"{own_site}/?label=dog")
    expect(page.locator("#unlike")).to_contain_text("no photo here carries the label 'dog'; did you mean 'thing/dog'?")
    page.locator("#unlike").get_by_role("button", name="thing/dog").click()
    expect(page.locator("#count")).to_contain_text(f"{len(carriers)} carry thing/dog")
    expect(page.locator("#unlike")).to_be_hidden()


def test_enter_takes_the_completion_however_fast_one_types(own_site: str, watched: Watched, token: str) -> None:
    page = with_token(watched, own_site, token)
    page.route("**/api/labels*", lambda route: page.wait_for_timeout(300) or route.continue_())
    field = page.get_by_label("Labels to search with")
    field.focus()
    page.keyboard.type("do\n-pers\n")  # the second before the first has been completed
    expect(page.locator("#labels .chip")).to_have_text(["dog×", "−person×"])
    assert query_of(page) == {"label": ["dog"], "unwanted": ["person"]}
    page.goto(f"{own_site}/?photo=1")
    page.get_by_role("button", name="Edit labels").click()
    field = page.get_by_label("Labels of this photo")
    field.fill("")
    before = page.locator("#edit .chip").count()
    page.keyboard.type("zeb")  # nobody knows it: a new label
    expect(page.locator("#edit .offers li").last).to_have_text("zebnew label")
    page.keyboard.type("\n")
    page.keyboard.type("do")
    expect(page.locator("#edit .offers")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")  # as it stands
    expect(page.locator("#edit .chip")).to_have_count(before + 2)
    assert page.locator("#edit .chip").all_inner_texts()[before:] == ["zeb\n×", "do\n×"]
