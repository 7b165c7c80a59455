"""Labels put right: marks on many photos, saved together."""

from pathlib import Path

import httpx
import pytest
from browsing import Watched, cards, query_of, shown_ids, with_token
from playwright.sync_api import expect

from hyphash.collection import Collection, Verdict

pytestmark = pytest.mark.needs("chromium")


def test_missing_and_wrong_labels_are_found_and_put_right(
    own_site: str, watched: Watched, own: Path, token: str
) -> None:
    with Collection.open(own) as collection:
        lacking, bearing = (photo.id for photo in collection.photos(0, 2, carrying=["dog"]))
        stranger = next(photo.id for photo in collection.photos(0, 60) if "dog" not in photo.labels)
        collection.relabel(lacking, ["nothing"])
        collection.accept(stranger, "dog")
    page = with_token(watched, f"{own_site}/?label=dog", token)
    page.get_by_role("button", name="should carry dog and do not").click()
    expect(page.locator("#count")).to_contain_text("dog, likeliest first")
    assert query_of(page) == {"missing": ["dog"]}
    expect(page.locator(f".card[data-id='{lacking}']")).to_be_visible()
    page.locator(f".card[data-id='{lacking}'] .marks .yes").click()
    other = next(id for id in shown_ids(page) if id != lacking)
    page.locator(f".card[data-id='{other}'] .open").focus()
    page.keyboard.press("n")
    expect(page.locator("#marked")).to_have_text("1 photo with dog · 1 without")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#toast")).to_contain_text("dog: accepted for 1 photo, refused for 1 photo")
    expect(page.locator(f".card[data-id='{lacking}']")).to_have_count(0)
    with Collection.open(own) as collection:
        assert ("dog" in collection.get(lacking).labels, "dog" in collection.get(other).refused) == (True, True)
    page.locator("#undo").click()
    expect(page.locator(f".card[data-id='{lacking}']")).to_be_visible()
    with Collection.open(own) as collection:
        assert (collection.get(lacking).labels, collection.get(other).refused) == (("nothing",), ())
    page.goto(f"{own_site}/?label=dog")
    page.get_by_role("button", name="carry dog and should not").click()
    expect(page.locator("#count")).to_contain_text("probably should not carry it")
    expect(cards(page).first).to_have_attribute("data-id", str(stranger))
    assert bearing in shown_ids(page)
    cards(page).first.locator(".marks .no").click()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(f".card[data-id='{stranger}']")).to_have_count(0)
    with Collection.open(own) as collection:
        assert "dog" in collection.get(stranger).refused


def test_many_photos_are_accepted_at_once(own_site: str, watched: Watched, own: Path, token: str) -> None:
    with Collection.open(own) as collection:
        for photo in collection.photos(0, 8, carrying=["person"]):
            collection.relabel(photo.id, [label for label in photo.labels if label != "person"])
    page = with_token(watched, f"{own_site}/?view=tag", token)
    reached = ["{label} {photos}".format(**one) for one in httpx.get(f"{own_site}/api/labels/lacking").json()]
    assert len(reached) < len(httpx.get(f"{own_site}/api/labels").json())
    expect(page.locator("#many button")).to_have_text(reached)
    page.locator("#many").get_by_role("button", name="person").click()
    answer = httpx.get(f"{own_site}/api/search", params={"missing": "person", "k": 40}).json()["matches"]
    sure = [match["id"] for match in answer if match["probability"] >= 0.95]
    assert len(sure) > 3
    expect(cards(page)).to_have_count(len(sure))
    expect(page.locator(".card.yes-marked")).to_have_count(len(sure))
    cards(page).nth(1).locator(".marks .yes").click()  # neither
    cards(page).nth(2).locator(".marks .no").click()
    expect(page.locator("#marked")).to_have_text(f"{len(sure) - 2} photos with person · 1 without")
    page.get_by_role("button", name="Save").click()
    expect(cards(page)).to_have_count(1)
    with Collection.open(own) as collection:
        carried = ["person" in collection.get(id).labels for id in sure]
    assert carried == [True, False, False] + [True] * (len(sure) - 3)
    page.keyboard.press("u")
    expect(cards(page)).to_have_count(len(sure))


def test_what_reaches_no_photo_is_not_offered(own_site: str, watched: Watched, own: Path, token: str) -> None:
    with Collection.open(own) as collection:
        for photo in collection.all_photos():
            for label in collection.hasher.classes:
                collection.refuse(photo.id, label)
    page = with_token(watched, f"{own_site}/?view=tag", token)
    expect(page.locator("#many")).to_have_text("None yet: no photo reaches 95 % for a label that it lacks.")
    with Collection.open(own) as collection:
        collection.judge(Verdict(id, "person", "forget") for id in range(1, 67))
        sure = {m.id for m in collection.search(missing="person", k=100) if (m.probability or 0) >= 0.95}
        collection.judge(Verdict(id, "person", "refuse") for id in sure)
    page.goto(f"{own_site}/?missing=person")
    expect(cards(page).first).to_be_visible()
    expect(page.get_by_role("button", name="Mark all from 95 %")).to_have_count(0)
    with Collection.open(own) as collection:
        collection.judge([Verdict(min(sure), "person", "forget")])
    page.reload()
    page.get_by_role("button", name="Mark all from 95 %").click()
    expect(page.locator(".card.yes-marked")).to_have_count(1)


def test_a_new_label_is_taught_by_five_photos(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = with_token(watched, f"{own_site}/?view=tag", token)
    page.get_by_label("Name of the new label").fill("pet")
    page.keyboard.press("Enter")
    expect(page.locator("#marking")).to_contain_text("0 of 5")
    field = page.get_by_label("Labels to search with")
    field.press_sequentially("dog,")
    expect(page.locator("#count")).to_contain_text("carry dog")
    for i in range(5):
        cards(page).nth(i).locator(".marks .yes").click()
    taught = shown_ids(page)[:5]
    page.get_by_label("Remove dog").click()
    expect(page.locator("#count")).to_contain_text("66 photos")
    expect(page.locator(".card.yes-marked")).to_have_count(len({*taught} & {*shown_ids(page)}))  # marks stay
    not_it = next(id for id in shown_ids(page) if id not in taught)
    page.locator(f".card[data-id='{not_it}'] .marks .no").click()
    page.get_by_role("button", name="Teach pet").click()
    expect(page.locator("#count")).to_contain_text("pet, likeliest first")
    expect(cards(page).nth(9)).to_be_visible()  # ten candidates to confirm
    assert not {*taught, not_it} & {*shown_ids(page)}
    with Collection.open(own) as collection:
        assert [photo.id for photo in collection.photos(carrying=["pet"])] == sorted(taught)
        assert collection.get(not_it).refused == ("pet",)
        assert "pet" in {tag.label for tag in collection.suggest(61, k=100)}
    page.goto(f"{own_site}/?label=pet")
    expect(page.locator("#count")).to_contain_text("5 carry pet")
    assert sorted(shown_ids(page)[:5]) == sorted(taught)
