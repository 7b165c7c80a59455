"""What the page says of learning from labels; that it works is tests/test_refining.py's business."""

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, cards, with_token
from playwright.sync_api import Route, expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")

GAIN = {"before": 0.612, "after": 0.701, "low": 0.05, "high": 0.12, "p": 0.001}
IDLE = {"said": 320, "since": 120, "enough": True, "running": False, "what": "", "done": 0, "total": 0, "error": ""}
LAST = {"moved": True, "fingerprint": "", "when": "2026-03-04T10:00:00", "said": 320, "photos": 250, "held_out": 50,
        "labels": 12, "search": GAIN, "suggestions": GAIN}  # fmt: skip


def test_it_is_offered_runs_in_sight_and_says_what_it_gained(own_site: str, watched: Watched, token: str) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        method, begun = route.request.method, "POST" in asked
        asked.append(method)
        now = {"since": 0, "enough": False, "last": LAST} if begun else {"last": None}
        if method == "POST":
            now |= {"running": True, "what": "epochs", "done": 3, "total": 20}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(IDLE | now))

    watched.page.route("**/api/refine", answer)
    page = with_token(watched, f"{own_site}/?view=tag", token)
    panel = page.locator("#learning")
    expect(panel).to_contain_text("120 new labels since it last learned, 320 in all: enough to learn from")
    panel.get_by_role("button", name="Learn now").click()
    expect(panel).to_contain_text("Learning, rounds: 3 of 20")
    expect(page.locator("#gained")).to_contain_text("searches 61.2 % → 70.1 % right")
    expect(page.locator("#gained")).to_contain_text("The collection uses it.")
    assert asked.count("POST") == 1


def test_photos_that_are_being_taken_in_are_told_and_come(own_site: str, watched: Watched, own: Path) -> None:
    answers = [{"running": True, "what": "photos", "done": 1200, "total": 5000}, {}]
    gate = []

    def answer(route: Route) -> None:
        now = answers[-1] if gate else answers[0]
        route.fulfill(status=200, content_type="application/json", body=json.dumps(IDLE | {"last": None} | now))

    watched.page.route("**/api/refine", answer)
    page = watched.open(own_site)
    expect(page.locator("#work")).to_contain_text("photos: 1,200 of 5,000")
    expect(page.locator("#count")).to_contain_text("66 photos")
    with Collection.open(own) as collection:
        collection.remove([1])
    gate.append("open")
    expect(page.locator("#work")).to_be_hidden()
    expect(page.locator("#count")).to_contain_text("65 photos")


def test_photos_appear_while_they_are_taken_in(own_site: str, watched: Watched, own: Path, made: Any) -> None:
    """The page is open before `hyphash start` has come to the first photo."""
    running: list[str] = []

    def answer(route: Route) -> None:
        what = running[-1] if running else ""
        now = {"running": bool(running), "what": what, "done": 2, "total": 2, "last": None}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(IDLE | now))

    watched.page.route("**/api/refine", answer)
    with Collection.open(own) as collection:
        collection.remove([photo.id for photo in collection.all_photos()])
    page = watched.open(own_site)
    expect(page.locator("#count")).to_have_text("No photos here yet.")
    running.append("photos")
    expect(page.locator("#work")).to_contain_text("photos: 2 of 2")
    for i, told in enumerate(["1 photo.", "2 photos."]):
        with Collection.open(own) as collection:
            collection.add_bytes(made.photo(i).read_bytes() + b"\0", f"new-{i}.jpg")
        expect(page.locator("#count")).to_contain_text(told)
        expect(cards(page)).to_have_count(i + 1)
    running.append("epochs")
    expect(page.locator("#work")).to_have_text("Learned; comparing it with what was there …")
    running.clear()
    expect(page.locator("#work")).to_be_hidden()
    expect(cards(page)).to_have_count(2)
    page.get_by_role("tab", name="Collection").click()
    expect(page.locator("#view-collection")).to_contain_text("No photo carries a label yet.")
    expect(page.locator("#view-collection")).not_to_contain_text("Labels that go together")  # of which there are none
