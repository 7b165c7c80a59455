"""The page in a real browser: what a person does, and what is then on the screen."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import programs
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from hyphash.collection import Collection

pytestmark = pytest.mark.needs("chromium")

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 30_000  # ms; machines that run tests are busy
BITS = 32

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.program("chromium"), args=FLAGS)
        yield browser
        browser.close()


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


def test_colours_say_how_many_labels_match(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&label=person&rank=asymmetric")
    expect(cards(page).first).to_be_visible()
    found = cards(page).evaluate_all(
        """cards => cards.map((card) => ({
            labels: [...card.querySelectorAll(".word")].map((word) => word.textContent),
            shared: [...card.querySelectorAll(".word.shared")].map((word) => word.textContent),
            share: card.querySelector(".share").textContent,
            classes: card.className.trim(),
        }))"""
    )
    assert not all(card["labels"] for card in found)
    for card in found:
        if not card["labels"]:  # nobody knows
            assert (card["share"], card["classes"]) == ("no labels", "card")
            continue
        shared = [label for label in card["labels"] if label in ("dog", "person")]
        assert card["shared"] == shared
        assert card["share"] == f"{len(shared)} of 2 labels"
        assert card["classes"] == ("card bad", "card", "card good")[len(shared)]
    assert {len(card["shared"]) for card in found if card["labels"]} == {0, 1, 2}
    good = page.locator(".card.good").first.evaluate("card => getComputedStyle(card).borderBottomColor")
    bad = page.locator(".card.bad").first.evaluate("card => getComputedStyle(card).borderBottomColor")
    assert (good, bad) == ("rgb(18, 131, 59)", "rgb(194, 47, 47)")


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


def test_full_view_more_like_this_and_back(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?label=dog&rank=hamming")
    cards(page).nth(1).locator(".open").click()
    viewer = page.locator("#viewer")
    expect(viewer).to_be_visible()
    ids = shown_ids(page)
    assert query_of(page)["photo"] == [str(ids[1])]
    image = viewer.locator("img")
    expect(image).to_have_js_property("naturalWidth", 96)
    page.keyboard.press("ArrowRight")
    expect(viewer.locator("[data-term=Number]")).to_contain_text(f"photo {ids[2]} ")
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()
    page.wait_for_url(lambda url: "photo" not in url)
    cards(page).nth(2).get_by_text("more like this").click()
    expect(page.locator(".example figcaption")).to_have_text(f"photo {ids[2]}")
    expect(page.locator("#count")).to_have_text("65 photos, nearest first")
    assert ids[2] not in shown_ids(page)
    page.go_back()
    expect(page.locator("#labels .chip")).to_have_text(["dog×"])
    expect(page.locator("#count")).to_have_text("66 photos, nearest first")
    assert shown_ids(page)[:3] == ids[:3]


def test_keys_alone_are_enough(watched: Watched, site: str) -> None:
    page = watched.open(site)
    expect(cards(page).nth(10)).to_be_attached()
    page.keyboard.press("/")
    expect(page.get_by_label("Labels to search with")).to_be_focused()
    page.keyboard.type("dog,")
    expect(page.locator("#count")).to_contain_text("probably")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    expect(cards(page).first.locator(".open")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    under = """cards => {
        const below = cards.find((card) => card.offsetTop > cards[1].offsetTop).offsetTop;
        const middle = (card) => card.offsetLeft + card.offsetWidth / 2;
        const aside = (card) => Math.abs(middle(card) - middle(cards[1]));
        return cards.indexOf(cards.filter((card) => card.offsetTop === below).sort((a, b) => aside(a) - aside(b))[0]);
    }"""
    expect(cards(page).nth(cards(page).evaluate_all(under)).locator(".open")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#viewer")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()
    page.keyboard.press("m")
    expect(page.locator(".example figcaption")).to_contain_text("photo ")


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


def test_wandering_on_the_map_ends_at_a_photo(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?view=collection")
    canvas = page.locator(".map")
    expect(canvas).to_have_attribute("data-seen", "66")
    flat = httpx.get(f"{site}/api/map").json()
    box = canvas.bounding_box()
    assert box is not None
    i = flat["x"].index(max(flat["x"]))  # at the rim, where nothing lies over it
    side = min(box["width"], box["height"]) / 2 * 0.92
    x, y = box["width"] / 2 + flat["x"][i] * side, box["height"] / 2 - flat["y"][i] * side
    canvas.hover(position={"x": x, "y": y})
    expect(page.locator(".tip img")).to_be_visible()
    canvas.click(position={"x": x, "y": y})
    expect(page.locator("#viewer")).to_contain_text(f"photo {flat['ids'][i]} ")


def test_a_map_that_was_replaced_paints_no_more(own_site: str, watched: Watched, own: Path) -> None:
    page = watched.page
    page.add_init_script(
        """const real = HTMLCanvasElement.prototype.getContext;
        window.ghosts = 0;
        HTMLCanvasElement.prototype.getContext = function (...kind) {
          if (!this.isConnected) window.ghosts += 1;
          return real.apply(this, kind);
        };"""
    )
    watched.open(f"{own_site}/?view=collection")
    expect(page.locator(".map")).to_have_attribute("data-seen", "66")
    page.locator(".map").evaluate("map => { map.dataset.old = true; }")
    with Collection.open(own) as collection:
        collection.remove([1])
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("tab", name="Collection").click()
    expect(page.locator(".map:not([data-old])")).to_have_attribute("data-seen", re.compile("6[56]"))
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert page.evaluate("window.ghosts") == 0


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


def test_relabelling_needs_the_token(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = watched.open(f"{own_site}/?label=dog&photo=5")
    page.get_by_role("button", name="Edit labels").click()
    field = page.get_by_label("Labels of this photo")
    field.fill("my own <b>")
    field.press("Enter")
    expect(page.locator("#edit .chip").last).to_contain_text("my own <b>")
    page.get_by_label("Token of the service").fill("wrong-token")
    page.get_by_role("button", name="Use token").click()
    expect(page.locator("#edit [role=alert]")).to_have_text("This is not the token of this service.")  # told at once
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#edit")).to_contain_text("this needs the token")
    page.get_by_label("Token of the service").fill(token)
    page.get_by_role("button", name="Use token").click()
    expect(page.get_by_label("Token of the service")).to_have_count(0)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#viewer .words")).to_contain_text("my own <b>")
    expect(page.locator(".card[data-id='5'] .words")).to_contain_text("my own <b>")
    with Collection.open(own) as collection:
        assert "my own <b>" in collection.get(5).labels
    assert [re.sub(r".*(401).*", r"\1", problem) for problem in watched.problems] == ["401", "401"]
    watched.problems.clear()


def test_third_tab_tags_photos(own_site: str, watched: Watched, own: Path, token: str) -> None:
    page = watched.open(f"{own_site}/?view=tag")
    page.get_by_label("Token of the service").fill(token)
    page.keyboard.press("Enter")
    offers = page.locator(".offered li")
    expect(offers).to_have_count(9)
    expect(page.locator("#left")).to_have_text("6 to go")
    names = page.locator(".offer").all_inner_texts()
    first = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"][0]
    expect(page.locator(".tagging h2")).to_have_text(first["name"])
    page.get_by_label(f"Accept {names[1]}", exact=True).click()
    expect(page.locator("#carried")).to_have_text(names[1])
    page.get_by_label(f"Refuse {names[0]}", exact=True).click()
    expect(offers).to_have_count(7)
    page.keyboard.press("1")
    expect(page.locator("#carried .chip")).to_have_count(2)
    with Collection.open(own) as collection:
        photo = collection.get(first["id"])
    assert (photo.labels, photo.refused) == (tuple(sorted((names[1], names[2]))), (names[0],))
    page.get_by_role("button", name="Next photo").click()
    expect(page.locator("#left")).to_have_text("5 to go")
    for left in range(4, 0, -1):
        page.get_by_role("button", name="Pass over").click()
        expect(page.locator("#left")).to_have_text(f"{left} to go")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-tag")).to_contain_text("5 photos passed over")


def with_token(watched: Watched, address: str, token: str) -> Page:
    """A page of somebody who has given the token."""
    watched.page.add_init_script(f"sessionStorage.setItem('hyphash-token', '{token}')")
    return watched.open(address)


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


def test_likely_labels_are_accepted_by_one_key_and_taken_back(
    own_site: str, watched: Watched, own: Path, token: str
) -> None:
    page = with_token(watched, f"{own_site}/?view=tag", token)
    expect(page.locator(".offered li")).to_have_count(9)
    queue = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"]
    for photo in queue:  # to one that has likely labels
        tags = httpx.get(f"{own_site}/api/photos/{photo['id']}/suggestions", params={"k": 9}).json()
        expect(page.locator(".tagging h2")).to_have_text(photo["name"])
        likely = [tag["label"] for tag in tags if tag["likely"]]
        if likely:
            break
        page.keyboard.press("ArrowRight")
    assert page.locator(".offered li.likely .offer").all_inner_texts() == likely
    assert "%" in page.locator(".percent").first.inner_text()
    left = page.locator("#left").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("#left")).not_to_have_text(left)
    with Collection.open(own) as collection:
        assert collection.get(photo["id"]).labels == tuple(sorted(likely))
    page.keyboard.press("u")
    expect(page.locator(".tagging h2")).to_have_text(photo["name"])
    expect(page.locator("#left")).to_have_text(left)
    expect(page.locator("#carried .chip")).to_have_count(0)
    with Collection.open(own) as collection:
        assert collection.get(photo["id"]).labels == ()


def test_many_photos_are_accepted_at_once(own_site: str, watched: Watched, own: Path, token: str) -> None:
    with Collection.open(own) as collection:
        for photo in collection.photos(0, 8, carrying=["person"]):
            collection.relabel(photo.id, [label for label in photo.labels if label != "person"])
    page = with_token(watched, f"{own_site}/?view=tag", token)
    page.locator("#many").get_by_role("button", name="person", exact=True).click()
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


@pytest.mark.parametrize(
    "press",
    [
        "document.getElementById('next').click()",
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))",
    ],
)
def test_pressing_twice_skips_no_photo(own_site: str, watched: Watched, token: str, press: str) -> None:
    waiting = httpx.get(f"{own_site}/api/photos?telling=1").json()["photos"]
    page = watched.open(f"{own_site}/?view=tag")
    page.get_by_label("Token of the service").fill(token)
    page.keyboard.press("Enter")
    expect(page.locator(".tagging h2")).to_have_text(waiting[0]["name"])
    page.evaluate(f"{press}; {press}")  # the second before the next photo is on the screen
    expect(page.locator("#left")).to_have_text("5 to go")
    expect(page.locator(".tagging h2")).to_have_text(waiting[1]["name"])


def test_read_only_service_says_so(watched: Watched, site: str) -> None:
    page = watched.open(f"{site}/?view=tag")
    expect(page.locator("#view-tag")).to_contain_text("read-only")
    page.goto(f"{site}/?photo=1")
    expect(page.locator("#viewer")).to_be_visible()
    expect(page.get_by_role("button", name="Edit labels")).to_have_count(0)
    page.goto(f"{site}/?missing=dog")
    expect(cards(page).first).to_be_visible()
    expect(page.locator(".marks, #marking:visible")).to_have_count(0)


def test_dark_mode_follows_the_system_and_the_button(watched: Watched, site: str) -> None:
    page = watched.open(site)

    def back() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour))

    assert back() > 600
    page.emulate_media(color_scheme="dark")
    assert back() < 150
    page.emulate_media(color_scheme="light")
    page.locator("#theme").click()  # dark, whatever the system says
    assert back() < 150
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert back() < 150


@pytest.mark.parametrize(
    "address", ["?label=dog&unwanted=cat&like=3", "?missing=dog", "?view=collection", "?view=tag", "?photo=2"]
)
def test_fits_a_phone(own_site: str, watched: Watched, token: str, address: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(own_site)
    page.evaluate("token => sessionStorage.setItem('hyphash-token', token)", token)
    watched.open(f"{own_site}/{address}")
    ready = {"?view=collection": ".map", "?view=tag": ".offered li", "?photo=2": "#viewer[open]"}
    page.wait_for_selector(ready.get(address, ".card"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("Search", "Collection", "Tag"):
        tab = page.get_by_role("tab", name=name, include_hidden=True).bounding_box()
        assert tab is not None
        assert tab["x"] >= 0
        assert tab["x"] + tab["width"] <= 360


def test_nothing_runs_from_labels_or_file_names(own_site: str, watched: Watched, own: Path, made: Any) -> None:
    script = "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
    with Collection.open(own) as collection:
        data = made.photo(1, "database").read_bytes() + b"\0"
        added = collection.add_bytes(data, f"{script.replace('/', '')}.jpg", labels=[script, "javascript:window.hit=1"])
        collection.relabel(1, [script])
    page = watched.open(f"{own_site}/?label=dog&carrying={script.replace('<', '%3C').replace('>', '%3E')}")
    expect(cards(page)).to_have_count(2)
    expect(cards(page).first.locator(".word").first).to_have_text(script)
    page.goto(f"{own_site}/?photo={added.id}")
    expect(page.locator("#viewer h2")).to_contain_text("<img src=x onerror=window.hit=1>")
    page.goto(f"{own_site}/?view=collection")
    expect(page.locator(".cloud")).to_contain_text(script)
    page.get_by_role("tab", name="Search").click()
    page.get_by_label("Labels to search with").fill("<img")
    expect(page.locator("#labels .offers li").first).to_contain_text(script)
    page.goto(f"{own_site}/?label={script.replace('<', '%3C').replace('>', '%3E')}&place=%3Cscript%3E&view=%3Cb%3E")
    expect(page.locator("#notice")).to_be_visible()
    assert page.evaluate("window.hit") is None
    assert page.locator("main img[src='x'], main script").count() == 0
    watched.problems[:] = [problem for problem in watched.problems if "422" not in problem]


def test_script_that_got_in_all_the_same_would_not_run(watched: Watched, site: str) -> None:
    page = watched.open(site)
    ran = page.evaluate(
        """async () => {
            const told = [];
            document.addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
            const box = document.createElement("div");
            box.innerHTML = "<img src='data:,' onerror='window.hit=1'>";
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            const far = document.createElement("img");
            far.src = "https://example.invalid/a.png";
            document.body.append(box, script, far);
            await new Promise((done) => setTimeout(done, 300));
            return [window.hit ?? null, [...new Set(told)].sort()];
        }"""
    )
    assert ran == [None, ["img-src", "script-src-attr", "script-src-elem"]]
    watched.problems.clear()
    watched.asked.clear()
