"""The moving picture of the page in README.md, of what the tests of the page do, on a collection of the drawn sample.

`make picture` writes docs/images/page.webp. What takes long (scenes, run, collection) stays in build/picture.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import programs
from browsing import FLAGS, Watched, cards, give, with_token
from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page, expect, sync_playwright

import hyphash
from hyphash.datasets import label_names
from hyphash.datasets.sample import draw
from hyphash.photos import PhotoFiles

ROOT = Path(__file__).parents[2]
WORK, PICTURE = ROOT / "build" / "picture", ROOT / "docs" / "images" / "page.webp"
COLLECTION = WORK / "My photos"
SIZE, SHOWN = {"width": 1080, "height": 720}, (900, 600)
SCENES, UNTAGGED = 600, 20
SHAPES = ((4, 3), (3, 4), (16, 9), (3, 2), (1, 1), (2, 3))
TOKEN = "for-the-picture-alone"
LOADED = """() => [...document.images].every((image) => (image.complete && image.naturalWidth)
  || !image.checkVisibility() || image.getBoundingClientRect().top > innerHeight)"""
POINTER = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))  # an arrow, from its tip on


def dated(scene: Path, file: Path, dice: random.Random) -> None:
    """The scene as a photo: in a shape that cameras make, with the time at which it was taken."""
    across, down = dice.choice(SHAPES)
    taken = f"{dice.randint(2022, 2025)}:{dice.randint(1, 12):02}:{dice.randint(1, 28):02} 12:30:00"
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = taken
    with Image.open(scene) as image:
        unit = image.width / max(across, down)
        left, top = (image.width - across * unit) / 2, (image.height - down * unit) / 2
        image.crop((left, top, image.width - left, image.height - top)).save(file, quality=92, exif=exif)


def prepare() -> Path:
    """A photo to search with; beside it a collection whose last photos nobody has tagged."""
    query = WORK / "sample" / "queries" / "00003.jpg"
    if COLLECTION.is_dir():
        return query
    draw(WORK / "sample", train=SCENES, queries=20, size=480)
    splits = hyphash.load_dataset(WORK / "sample")
    hyphash.train(WORK / "sample", into=WORK / "run", bits=48)
    (WORK / "photos").mkdir(exist_ok=True)
    dice, files = random.Random(3), []
    for i in range(SCENES):
        files.append(WORK / "photos" / f"scene-{i:03}.jpg")
        dated(Path(splits.database.path(i)), files[-1], dice)
    labels = label_names(splits.database.labels, splits.classes)
    labels[-UNTAGGED:] = [[]] * UNTAGGED
    with hyphash.Collection.create(COLLECTION, WORK / "run") as collection:
        collection.add(PhotoFiles(files), labels=labels)
    return query


def carried(name: str) -> list[str]:
    """The labels that the scene of this photo has."""
    splits = hyphash.load_dataset(WORK / "sample")
    number = int(name.removeprefix("scene-").removesuffix(".jpg"))
    return label_names(splits.database.labels, splits.classes)[number]


@contextmanager
def serving() -> Iterator[str]:
    """The address of a service of the collection."""
    options = ["--port", "0", "--log", "error", "--seconds", "300"]
    command = [sys.executable, "-m", "hyphash", "serve", str(COLLECTION), *options]
    with subprocess.Popen(command, env=os.environ | {"HYPHASH_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout
        try:
            yield next(word for line in one.stdout for word in line.split() if word.startswith("http"))
        finally:
            one.terminate()


class Film:
    """Screenshots of a page, each with the milliseconds that it stays."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.lasting: list[int] = []
        self.pointer = (620.0, 420.0)

    def shot(self, lasting: int) -> None:
        frame = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        tip = [(self.pointer[0] + x, self.pointer[1] + y) for x, y in POINTER]
        ImageDraw.Draw(frame).polygon(tip, fill="black", outline="white")
        self.frames.append(frame.resize(SHOWN, Image.Resampling.LANCZOS))
        self.lasting.append(lasting)

    def click(self, target: Locator) -> None:
        """The pointer goes there in four steps, and clicks."""
        box = target.bounding_box()
        assert box
        start, end = self.pointer, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for step in (0.4, 0.75, 0.95, 1.0):
            self.pointer = (start[0] + step * (end[0] - start[0]), start[1] + step * (end[1] - start[1]))
            self.page.mouse.move(*self.pointer)
            self.shot(60)
        target.click()

    def type(self, text: str, into: Locator) -> None:
        for letter in text:
            into.press_sequentially(letter)
            self.shot(110)

    def settled(self, lasting: int) -> None:
        """A shot when every picture in sight is there, and no message above them."""
        expect(self.page.locator("#toast")).to_be_hidden()
        self.page.wait_for_timeout(300)
        self.page.wait_for_function(LOADED)
        self.page.wait_for_timeout(500)
        self.shot(lasting)

    def save(self, file: Path) -> None:
        first, *others = self.frames
        first.save(file, save_all=True, append_images=others, duration=self.lasting, loop=0, quality=70, method=6)


def act(film: Film, query: Path) -> None:
    """By words, by a photo, tagging, and by month."""
    page = film.page
    film.settled(700)
    field = page.get_by_label("Labels to search with")
    film.click(field)
    for word in ("dog", "person"):
        film.type(word, field)
        field.press("Enter")
        expect(page.locator("#labels .chip").filter(has_text=word)).to_be_visible()
    film.settled(1500)
    give(page, query, "drop")
    expect(page.locator(".example img")).to_be_visible()
    for word in ("dog", "person"):
        page.get_by_label(f"Remove {word}").click()
    film.settled(1500)
    page.get_by_role("button", name="Clear").click()
    film.click(page.get_by_role("tab", name="Tag"))
    expect(page.locator(".offered li").first).to_be_visible()
    film.settled(1400)
    for label in carried(page.locator(".tagging h2").inner_text()):
        if (right := page.get_by_label(f"Accept {label}", exact=True)).is_visible():
            film.click(right)
            expect(page.locator("#carried")).to_contain_text(label)
            page.wait_for_timeout(300)
    film.settled(800)
    page.keyboard.press("ArrowRight")
    film.settled(600)
    film.click(page.get_by_role("tab", name="Timeline"))
    expect(cards(page).first).to_be_visible()
    film.settled(1100)
    film.click(page.locator("#months button").nth(18))
    film.settled(1500)


def main() -> None:
    query = prepare()
    with serving() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.program("chromium"), args=FLAGS)
        film = Film(with_token(Watched(browser.new_page(viewport=SIZE, color_scheme="light")), address, TOKEN))
        act(film, query)
        browser.close()
    film.save(PICTURE)


if __name__ == "__main__":
    main()
