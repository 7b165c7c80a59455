"""Photos that are here twice."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, with_token
from PIL import Image, ImageOps
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def twins(own: Path, made: Any, tmp_path: Path) -> list[Path]:
    """A photo of the collection with a label, its exact copy, and a smaller one with another label."""
    large, copy, small = (tmp_path / name for name in ("large.png", "copy.png", "small.webp"))
    with Image.open(made.photo(3)) as image:
        mirrored = ImageOps.mirror(image)  # which no other photo here is like
        mirrored.resize((384, 384)).save(large)
        mirrored.resize((192, 192)).save(small, quality=95)
    shutil.copy(large, copy)
    with Collection.open(own) as collection:
        for path, labels in ((large, ["one"]), (copy, []), (small, ["two"])):
            collection.add([path], labels=[labels])
    return [large, copy, small]


def test_the_best_is_kept_and_the_others_can_come_back(
    own_site: str, watched: Watched, own: Path, twins: list[Path], token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=duplicates", token)
    group = page.locator(".twins").filter(has_text="large.png")
    expect(group.locator(".twin")).to_have_count(3)
    expect(group.locator(".twin").last).to_contain_text("small.webp")
    expect(group.locator(".twin").last.locator(".differs").first).to_have_text("192 × 192")
    expect(group.locator(".badge")).to_have_count(1)
    group.get_by_role("radio").first.check()
    kept = group.locator(".twin b").first.inner_text()
    group.get_by_role("button", name="move 2 to the trash").click()
    expect(group).to_have_count(0)
    expect(page.locator("#toast")).to_contain_text("2 photos moved to the trash")
    expect(page.locator("#in-trash")).to_contain_text("2 in the trash")
    assert sorted(path.name for path in twins if path.exists()) == [kept]
    with Collection.open(own) as collection:
        (photo,) = collection.photos(carrying=["two"])
        assert (Path(photo.path).name, photo.labels) == (kept, ("one", "two"))
    page.locator("#undo").click()
    expect(group.locator(".twin")).to_have_count(3)
    assert all(path.exists() for path in twins)
    with Collection.open(own) as collection:
        labels = {Path(photo.path).name: photo.labels for photo in collection.photos(60, 20)}
    assert labels["small.webp"] == ("two",)
    assert labels[kept] in (("one",), ())


@pytest.mark.usefixtures("twins")
def test_a_group_that_is_kept_does_not_come_back(own_site: str, watched: Watched, token: str) -> None:
    page = with_token(watched, f"{own_site}/?view=duplicates", token)
    group = page.locator(".twins").filter(has_text="large.png")
    group.get_by_role("button", name="Keep all").click()
    expect(group).to_have_count(0)
    page.reload()
    expect(page.locator("#duplicates-told")).not_to_contain_text("Comparing")
    expect(group).to_have_count(0)


def test_the_trash_is_emptied_only_by_those_who_are_sure(
    own_site: str, watched: Watched, twins: list[Path], token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=duplicates", token)
    group = page.locator(".twins").filter(has_text="large.png")
    group.get_by_role("button", name="move 2 to the trash").click()
    trash = page.locator("#in-trash")
    trash.get_by_role("button", name="empty the trash").click()
    page.get_by_role("button", name="Keep them").click()
    expect(trash).to_contain_text("2 in the trash")
    trash.get_by_role("button", name="empty the trash").click()
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#toast")).to_contain_text("2 photos deleted")
    expect(trash).to_have_text("")
    assert sum(path.exists() for path in twins) == 1


def test_photos_in_the_trash_are_seen_and_come_back_one_by_one(
    own_site: str, watched: Watched, twins: list[Path], token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=duplicates", token)
    group = page.locator(".twins").filter(has_text="large.png")
    group.get_by_role("button", name="move 2 to the trash").click()
    page.locator("#in-trash").get_by_role("button", name="show").click()
    pictures = page.locator("#trash img")
    expect(pictures).to_have_count(2)
    page.wait_for_function("() => [...document.querySelectorAll('#trash img')].every((one) => one.naturalWidth > 0)")
    first = page.locator("#trash li").first
    name = first.locator("b").inner_text()
    first.get_by_role("button", name="Bring back").click()
    expect(page.locator("#toast")).to_have_text(f"{name} brought back")  # Undo would take back what was before that
    expect(pictures).to_have_count(1)
    assert sum(path.exists() for path in twins) == 2
    page.locator("#in-trash").get_by_role("button", name="bring all back").click()
    expect(page.locator("#trash")).to_be_hidden()
    assert all(path.exists() for path in twins)


def test_nothing_can_be_moved_where_nothing_may_change(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?view=duplicates")
    expect(page.locator("#duplicates-told")).not_to_contain_text("Comparing")
    expect(page.locator("#view-duplicates .button")).to_have_count(0)
