"""A real browser for all tests of the page: what a person does, and what is then on the screen."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import programs
import pytest
from browsing import FLAGS, Watched
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a file of tests and no longer: while it runs its event loop runs, and others could not run theirs."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.program("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A fresh page; the test fails if a script on it failed, or if it asked anybody but the service.

    Tests name it after their service: so the page is closed before the service stops.
    """
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    watched = Watched(context.new_page())
    yield watched
    context.close()
    assert watched.problems == []
    hosts = {urlsplit(url).netloc.partition(":")[0] for url in watched.asked if not url.startswith("blob:")}
    assert hosts <= {"127.0.0.1"}
