"""One scene: choose classes that go together, a background that suits them or does not, and put everything in place.

A scene is a single SVG document, so it has clean edges at any size, and it depends on its generator alone.
"""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import jinja2

from hyphash.datasets.sample.glyphs import Glyph, catalogue, document, glyph, rasterise, read_text

if TYPE_CHECKING:
    from PIL import Image

BOX = 160  # the width and height that scenes are laid out in
OBJECTS = {1: 0.25, 2: 0.35, 3: 0.25, 4: 0.15}  # how many objects a scene has
COMPANION = 0.85  # a further object is one that goes with those already there
UNSUITED = 0.5  # the background is one that the scene's first class does not belong to
UNSEEN = 0.4  # an object of a query scene is a variant that training never saw
TRIES = 6  # places looked at for an object

Box = tuple[float, float, float, float]  # left, top, width, height
Layer = tuple[float, str]  # depth in the order of painting, SVG


@dataclass(frozen=True)
class Placed:
    """One object: what it is, how it is drawn, and where (as shares of the scene)."""

    labels: tuple[str, ...]
    variant: str
    box: Box


@dataclass(frozen=True)
class Scene:
    """What is on a scene."""

    background: str
    suited: bool  # whether the first class belongs to this background
    objects: tuple[Placed, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Every class in the scene, in the order of `classes()`."""
        shown = {label for placed in self.objects for label in placed.labels}
        return tuple(name for name in classes() if name in shown)


@cache
def classes() -> tuple[str, ...]:
    return tuple(catalogue()["classes"])


def draw_scene(rng: Random, *, size: int = 160, unseen: bool = False) -> "tuple[Image.Image, Scene]":
    """A scene as a picture of `size` × `size` pixels, and what is on it.

    `unseen` draws a scene for queries: half of its objects are variants that no other part shows.
    """
    from PIL import Image, ImageEnhance

    scene, svg = compose(rng, unseen=unseen)
    with Image.open(io.BytesIO(rasterise(svg, size))) as drawn:
        image = drawn.convert("RGB")
    image = ImageEnhance.Contrast(image).enhance(rng.uniform(0.75, 1.15))
    return ImageEnhance.Brightness(image).enhance(rng.uniform(0.78, 1.12)), scene


def compose(rng: Random, *, unseen: bool = False) -> tuple[Scene, str]:
    """What is on a scene, and its SVG document: everything but the pixels, and quickly."""
    chosen = choose_classes(rng)
    background, suited = choose_background(rng, chosen)
    place = catalogue()["backgrounds"][background]
    drawing: Any = _backdrops().make_module({"rng": rng})  # macros that draw from this generator
    horizon = rng.uniform(*place["horizon"]) if place else BOX
    backdrop, ground = getattr(drawing, background)(horizon), horizon + place.get("ground", 0)
    wanted = _with_variants(rng, chosen, unseen)
    objects, layers = _place(rng, drawing, wanted, background, ground)
    layers += _decor(rng, background, ground)
    layers.sort(key=lambda layer: layer[0])  # what stands lower is nearer and covers what is behind it
    body = backdrop + "".join(markup for _, markup in layers) + drawing.light()
    return Scene(background, suited, tuple(objects)), document(body, BOX)


@cache
def _backdrops() -> jinja2.Template:
    def one_decimal(value: Any) -> Any:
        return f"{value:.1f}" if isinstance(value, float) else value

    environment = jinja2.Environment(finalize=one_decimal, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"max": max, "min": min, "round": round}
    return environment.from_string(read_text("backdrops.svg"))


def choose_classes(rng: Random) -> list[str]:
    """One to four class names; each after the first likes the company of those before it."""
    table = catalogue()["classes"]
    weights = {name: entry["weight"] for name, entry in table.items()}
    (count,) = rng.choices(list(OBJECTS), list(OBJECTS.values()))
    chosen = [_pick(rng, weights)]
    while len(chosen) < count:
        friends: Counter[str] = Counter()
        for name in chosen:
            friends.update(table[name]["with"])
        chosen.append(_pick(rng, friends if rng.random() < COMPANION else weights))
    return chosen


def choose_background(rng: Random, chosen: Sequence[str]) -> tuple[str, bool]:
    """A background for the scene, and whether its first class belongs there.

    Among those that suit the first class, one that suits most of the others; or, for the unsuited half, among
    those that do not, one that suits fewest.
    """
    table = catalogue()["classes"]
    suited = rng.random() >= UNSUITED
    allowed = [name for name in catalogue()["backgrounds"] if (name in table[chosen[0]]["suits"]) == suited]
    welcome = {name: sum(name in table[other]["suits"] for other in chosen) for name in allowed}
    best = (max if suited else min)(welcome.values())
    return rng.choice([name for name in allowed if welcome[name] == best]), suited


def _pick(rng: Random, weights: Mapping[str, float]) -> str:
    (name,) = rng.choices(list(weights), list(weights.values()))
    return name


def _with_variants(rng: Random, chosen: Sequence[str], unseen: bool) -> list[tuple[tuple[str, ...], str]]:
    """Decide how each class is drawn; a pair of classes may become one glyph (a cyclist, a rider)."""
    rest, wanted = list(chosen), []

    def variant(entry: dict[str, Any]) -> str:
        chosen: str = rng.choice(entry["unseen" if unseen and rng.random() < UNSEEN else "seen"])
        return chosen

    for pair in catalogue()["pairs"]:
        if all(label in rest for label in pair["labels"]) and rng.random() < 0.5:
            for label in pair["labels"]:
                rest.remove(label)
            wanted.append((tuple(pair["labels"]), variant(pair)))
    wanted += [((name,), variant(catalogue()["classes"][name])) for name in rest]
    return wanted


@dataclass(frozen=True)
class _Spot:
    """A place for an object: the middle of its lower edge, its scale, whether it is in the air, its box."""

    x: float
    y: float
    scale: float
    flying: bool
    box: Box


def _spot(rng: Random, shape: Glyph, kind: dict[str, Any], background: str, ground: float, *, count: int) -> _Spot:
    """A random place in the scene: on the ground, larger the nearer; or in the air."""
    flying = bool(kind.get("flies")) and background != "room" and rng.random() < 0.7
    if flying or background == "sky":
        y, near = rng.uniform(45, min(ground + 5, 150)), rng.uniform(0.2, 0.9)
    else:
        y = rng.uniform(ground + 6, 156)
        near = (y - ground) / (BOX - ground)
    crowd = 1.2 - 0.1 * count
    scale = kind["size"] / 100 * BOX * rng.uniform(0.85, 1.15) * (0.85 + 0.35 * near) * crowd / shape.extent
    width, height = (shape.right - shape.left) * scale, (shape.bottom - shape.top) * scale
    x = rng.uniform(width * 0.45, BOX - width * 0.45)
    y = max(y, height + 2)
    return _Spot(x, y, scale, flying, (x - width / 2, y - height, width, height))


def _overlap(one: Box, other: Box) -> float:
    """Common area, as a share of the smaller box."""
    common = 1.0
    for start in (0, 1):
        end = min(one[start] + one[start + 2], other[start] + other[start + 2])
        common *= max(0.0, end - max(one[start], other[start]))
    return common / min(one[2] * one[3], other[2] * other[3])


def _place(
    rng: Random, drawing: Any, wanted: list[tuple[tuple[str, ...], str]], background: str, ground: float
) -> tuple[list[Placed], list[Layer]]:
    """Find room for every object, each where it covers least of those before it, and draw them."""
    objects: list[Placed] = []
    layers: list[Layer] = []
    taken: list[Box] = []
    for labels, variant in wanted:
        shape = glyph(variant)
        kind = max((catalogue()["classes"][label] for label in labels), key=lambda entry: entry["size"])
        tries = [_spot(rng, shape, kind, background, ground, count=len(wanted)) for _ in range(TRIES)]
        spot = min(tries, key=lambda spot: sum(_overlap(spot.box, box) for box in taken))
        taken.append(spot.box)
        swims = kind.get("swims")
        under = "" if spot.flying else drawing.support(background, spot.x, spot.y, spot.box[2], swims)
        turn, mirror = rng.gauss(0, 9 if spot.flying else 4), rng.random() < 0.5
        markup = under + shape.standing(spot.x, spot.y, spot.scale, turn=turn, mirror=mirror)
        layers.append((spot.y - BOX if spot.flying else spot.y, markup))
        left, top, width, height = (round(value / BOX, 3) for value in spot.box)
        objects.append(Placed(labels, variant, (left, top, width, height)))
    return objects, layers


def _decor(rng: Random, background: str, ground: float) -> list[Layer]:
    """Trees, lamps, flowers and the like, which belong to no class: (depth, SVG) of each."""
    kinds = catalogue()["decor"][background]
    layers: list[Layer] = []

    bands = (  # what, at most how many, between which heights, how large, how far behind the objects
        ("far", 2, (ground - 3, ground + 3), (20, 40), 0),
        ("near", 3, (ground + 6, 158), (15, 27), 0),
        ("air", 2, (26, min(ground - 8, 150)), (13, 26), 2 * BOX),
    )
    for kind, most, heights, sizes, behind in bands:
        for _ in range(rng.randint(0, most) if kinds[kind] else 0):
            shape, x, y = glyph(rng.choice(kinds[kind])), rng.uniform(6, BOX - 6), rng.uniform(*heights)
            markup = shape.standing(x, y, rng.uniform(*sizes) / shape.extent, mirror=rng.random() < 0.5)
            layers.append((y - behind, markup))
    return layers
