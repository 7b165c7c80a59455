"""What happened to the collection."""

from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, with_token
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")


def test_what_happened_is_told_and_what_happens_comes_in(
    own_site: str, watched: Watched, own: Path, made: Any, token: str, tmp_path: Path
) -> None:
    def add(i: int) -> None:
        path = tmp_path / f"new-{i}.jpg"
        path.write_bytes(made.photo(i).read_bytes() + b"\0")
        with Collection.open(own) as collection:
            collection.add([path])

    add(0)
    page = with_token(watched, f"{own_site}/?view=activity", token)
    lines = page.locator(".line")
    expect(lines.first).to_contain_text("1 photo added new-0.jpg")
    add(1)
    expect(lines.first).to_contain_text("new-1.jpg")  # by itself
    page.get_by_role("tab", name="Search").click()
    expect(page.locator("#view-activity")).to_be_hidden()
