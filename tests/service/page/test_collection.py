"""The collection as a whole."""

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, as_expert, with_token
from playwright.sync_api import expect

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")
BITS = 32


def test_second_tab_shows_the_collection(watched: Watched, site: str, made: Any) -> None:
    page = watched.open(site)
    page.get_by_role("tab", name="Collection").click()
    with Collection.open(made.collection) as collection:
        stats = collection.stats()
        expected = collection.cooccurrence(list(stats.labels)[:2])
    expect(page.locator(".cloud .word")).to_have_count(len(stats.labels))
    expect(page.locator(".figure b").first).to_have_text("66")
    expect(page.locator(".bar")).to_have_count(BITS)
    expect(page.get_by_text("bits", exact=False).locator("visible=true")).to_have_count(0)
    as_expert(page)
    expect(page.get_by_role("heading", name="Balance of the bits")).to_be_visible()
    tallest = page.locator(".bar").nth(3).evaluate("bar => bar.offsetHeight / bar.parentElement.clientHeight")
    assert tallest == pytest.approx(stats.balance[3], abs=0.02)
    together = page.locator(".matrix tbody tr").first.locator("td").nth(1)
    expect(together).to_have_text(str(expected[0, 1]))
    canvas = page.locator(".map")
    canvas.scroll_into_view_if_needed()
    expect(canvas).to_have_attribute("data-seen", "66")
    page.get_by_label("Nearer").click(click_count=6)
    expect(canvas).not_to_have_attribute("data-seen", "66")
    page.get_by_label("Farther").click(click_count=7)
    expect(canvas).to_have_attribute("data-seen", "66")
    painted = canvas.evaluate(
        "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    )
    assert painted > 20
    page.locator(".cloud .word").filter(has_text=re.compile("^cat$")).click()
    expect(page.locator("#labels .chip")).to_have_text(["cat×"])


SIDECAR = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>theirs</rdf:li>
</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"""


def test_files_that_say_otherwise_are_shown(
    own_site: str, watched: Watched, own: Path, made: Any, token: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.jpg"
    path.write_bytes(made.photo(0).read_bytes() + b"\0")
    with Collection.open(own) as collection:
        collection.add([path], labels=[["ours"]])
    (tmp_path / "odd.jpg.xmp").write_text(SIDECAR)
    page = with_token(watched, f"{own_site}/?view=collection", token)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".conflicts li")).to_have_text(["odd.jpg says theirs as well"])
    assert (tmp_path / "odd.jpg.xmp").read_text() == SIDECAR
    page.locator(".conflicts button").click()
    expect(page.locator("#viewer h2")).to_have_text("odd.jpg")
