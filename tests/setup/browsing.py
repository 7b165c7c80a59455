"""What tests of the page share: a page that is watched, and ways to look at it."""

import base64
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, expect

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 30_000  # ms; machines that run tests are busy

expect.set_options(timeout=PATIENCE)


class Watched:
    """A page, what went wrong on it, and all it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str) -> Page:
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")
        return self.page


def cards(page: Page) -> Any:
    return page.locator(".card")


def shown_ids(page: Page) -> list[int]:
    return [int(id) for id in page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.id)")]


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def as_expert(page: Page) -> None:
    """Ask for what the workshop talks of: bits, codes, orders."""
    page.get_by_label("Settings and keys").click()
    page.get_by_label("Expert view").check()
    page.keyboard.press("Escape")


def with_token(watched: Watched, address: str, token: str) -> Page:
    """A page of somebody who has given the token."""
    watched.page.add_init_script(f"sessionStorage.setItem('hyphash-token', '{token}')")
    return watched.open(address)


def give(page: Page, photo: Path, how: str) -> None:
    """Drop or paste a photo file."""
    data = base64.b64encode(photo.read_bytes()).decode()
    page.evaluate(
        """([data, name, how]) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name, { type: "image/jpeg" }));
            const event = how === "drop"
              ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
              : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
            document.body.dispatchEvent(event);
        }""",
        [data, photo.name, how],
    )
