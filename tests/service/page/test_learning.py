"""What the page says of learning from labels; that it works is tests/test_refining.py's business."""

import json

import pytest
from browsing import Watched, with_token
from playwright.sync_api import Route, expect

pytestmark = pytest.mark.needs("chromium")

GAIN = {"before": 0.612, "after": 0.701, "low": 0.05, "high": 0.12, "p": 0.001}
IDLE = {"said": 320, "since": 120, "enough": True, "running": False, "what": "", "done": 0, "total": 0, "error": ""}
LAST = {"moved": True, "fingerprint": "", "when": "2026-03-04T10:00:00", "said": 320, "photos": 250, "held_out": 50,
        "labels": 12, "search": GAIN, "suggestions": GAIN}  # fmt: skip


def test_it_is_offered_runs_in_sight_and_says_what_it_gained(own_site: str, watched: Watched, token: str) -> None:
    answers = [
        IDLE | {"last": None},
        IDLE | {"running": True, "what": "epochs", "done": 3, "total": 20, "last": None},  # begun
        IDLE | {"since": 0, "enough": False, "last": LAST},
    ]
    asked = []

    def answer(route: Route) -> None:
        asked.append(route.request.method)
        body = json.dumps(answers.pop(0) if len(answers) > 1 else answers[0])
        route.fulfill(status=200, content_type="application/json", body=body)

    watched.page.route("**/api/refine", answer)
    page = with_token(watched, f"{own_site}/?view=tag", token)
    panel = page.locator("#learning")
    expect(panel).to_contain_text("120 new labels since it last learned, 320 in all: enough to learn from")
    panel.get_by_role("button", name="Learn now").click()
    expect(panel).to_contain_text("epochs: 3 of 20")
    expect(page.locator("#gained")).to_contain_text("searches 61.2 % → 70.1 % right")
    expect(page.locator("#gained")).to_contain_text("The collection uses it.")
    assert asked == ["GET", "POST", "GET"]
