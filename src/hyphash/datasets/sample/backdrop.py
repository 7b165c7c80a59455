"""Five backgrounds as SVG in a box of 160 × 160. Each drawing of one differs in light, colours and layout."""

from collections.abc import Callable
from random import Random

BOX = 160

DAY = (("#5aaee8", "#d8f0fb"), ("#7cc4f0", "#f4f8ee"), ("#8fb8de", "#e9eef2"), ("#6fb7d9", "#fdf3d8"))
EVENING = (("#5b6fb5", "#f7b58a"), ("#7a6aa8", "#fbcf9d"), ("#3f5a94", "#e8a6a1"))


Backdrop = tuple[str, float]  # SVG, and the height at which its ground begins (the box's own height: there is none)


def gradient(name: str, top: str, bottom: str) -> str:
    """A vertical gradient that shapes use as `url(#name)`."""
    return (
        f'<linearGradient id="{name}" x1="0" y1="0" x2="0" y2="1"><stop offset="0" stop-color="{top}"/>'
        f'<stop offset="1" stop-color="{bottom}"/></linearGradient>'
    )


def rectangle(x: float, y: float, width: float, height: float, fill: str, *more: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" {" ".join(more)}/>'


def ellipse(x: float, y: float, rx: float, ry: float, fill: str, *more: str) -> str:
    return f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{rx:.1f}" ry="{ry:.1f}" fill="{fill}" {" ".join(more)}/>'


def path(line: str, fill: str, *more: str) -> str:
    return f'<path d="{line}" fill="{fill}" {" ".join(more)}/>'


def cloud(rng: Random, x: float, y: float, width: float, *, fill: str = "#ffffff", opacity: float = 0.9) -> str:
    """A flat-bottomed heap of circles, `width` wide, with its bottom at y."""
    puffs = []
    for i in range(5):
        radius = width * (0.13 + 0.1 * rng.random()) * (1.25 if 0 < i < 4 else 0.8)
        puffs.append(ellipse(x + width * (i / 5 - 0.4), y - radius * 0.7, radius, radius, fill))
    bar = rectangle(x - width / 2, y - width * 0.12, width, width * 0.13, fill, f'rx="{width * 0.06:.1f}"')
    return f'<g opacity="{opacity:.2f}">{"".join(puffs)}{bar}</g>'


def hill(rng: Random, y: float, fill: str, swing: float) -> str:
    """A smooth rise and fall across the scene, filled to the bottom."""
    a, b, c = (y + swing * (2 * rng.random() - 1) for _ in range(3))
    ridge = f"C40 {a - swing:.1f} 55 {b + swing:.1f} 85 {b:.1f}S130 {c - swing:.1f} 160 {c:.1f}"
    return path(f"M0 {a:.1f}{ridge}V160H0z", fill)


def heavens(rng: Random, depth: float) -> str:
    """Sky over the upper `depth` units: gradient, sun, clouds."""
    evening = rng.random() < 0.25
    svg = gradient("heavens", *rng.choice(EVENING if evening else DAY))
    svg += rectangle(0, 0, BOX, depth + 30, "url(#heavens)")
    if rng.random() < 0.5:
        x, y, r = rng.uniform(15, 145), rng.uniform(12, max(16, depth * 0.6)), rng.uniform(8, 13)
        y = min(y + (depth * 0.3 if evening else 0), depth)
        disc, glow = ("#ffd9a0", "#ffb36b") if evening else ("#fff3b0", "#fff7d0")
        svg += ellipse(x, y, r * 1.9, r * 1.9, glow, 'fill-opacity=".35"') + ellipse(x, y, r, r, disc)
    tone = "#f6d5c4" if evening else "#ffffff"
    for _ in range(rng.randint(0, 3)):
        x, y, width = rng.uniform(5, 155), rng.uniform(15, max(20, depth * 0.8)), rng.uniform(22, 48)
        svg += cloud(rng, x, y, width, fill=tone, opacity=0.75)
    return svg


def meadow(rng: Random) -> Backdrop:
    horizon = rng.uniform(58, 84)
    far, near, front = rng.choice(
        (("#9cc7a2", "#8fc95a", "#5f9e3c"), ("#a9c3b4", "#b5cf5f", "#7fa63a"), ("#8fb3a8", "#7cbf6a", "#4c8f45"))
    )
    svg = heavens(rng, horizon)
    svg += hill(rng, horizon - 12, far, 9) + hill(rng, horizon - 3, near, 5)
    svg += gradient("grass", near, front) + hill(rng, horizon + 4, "url(#grass)", 2)
    if rng.random() < 0.4:  # a path that narrows towards the horizon
        end, start = rng.uniform(50, 110), rng.uniform(20, 140)
        left = f"M{start - 22:.1f} 160Q{end - 20:.1f} {horizon + 35:.1f} {end:.1f} {horizon + 5:.1f}"
        right = f"Q{end - 6:.1f} {horizon + 40:.1f} {start + 22:.1f} 160z"
        svg += path(left + right, "#e6d3a3", 'fill-opacity=".8"')
    for _ in range(rng.randint(5, 12)):
        x, y = rng.uniform(0, 160), rng.uniform(horizon + 12, 158)
        svg += path(f"M{x:.1f} {y:.1f}l-2-4m2 4v-5m0 5l2-4", "none", f'stroke="{front}" stroke-width="1.1"')
    return svg, horizon + 6


def house(rng: Random, x: float, width: float, ground: float) -> str:
    """A town house with windows, a door and a roof."""
    wall = rng.choice(("#e8c9a0", "#d98f6c", "#c9d3b0", "#b7c7d9", "#e7d9c4", "#d9a5a0", "#a9b8a5", "#cfc3dd"))
    top = ground - rng.uniform(36, 62)
    svg = rectangle(x, top, width, ground - top, wall, 'stroke="#6b5c55" stroke-width=".8"')
    if rng.random() < 0.6:
        tile = rng.choice(("#a5533c", "#7c5a4e", "#5f6b7a"))
        svg += path(f"M{x - 2:.1f} {top:.1f}h{width + 4:.1f}l-{width / 2 + 2:.1f}-{width * 0.42:.1f}z", tile)
    pane = rng.choice(("#bfe0f2", "#f7e7a6", "#9fb7c9"))
    columns = max(2, round(width / 13))
    for row in range(int((ground - top - 16) // 13)):
        for column in range(columns):
            left = x + width * (column + 0.5) / columns - 2.8
            svg += rectangle(left, top + 5 + 13 * row, 5.6, 7.5, pane, 'stroke="#5b5048" stroke-width=".6"')
    return svg + rectangle(x + width * rng.uniform(0.2, 0.6), ground - 11, 6.5, 11, "#6d4c3d")


def street(rng: Random) -> Backdrop:
    ground = rng.uniform(72, 90)
    svg, x = heavens(rng, ground), rng.uniform(-14, 0)
    while x < BOX:
        width = rng.uniform(24, 42)
        if rng.random() < 0.88:
            svg += house(rng, x, width, ground)
        x += width + rng.choice((0, 0, 2, 9))
    kerb = ground + rng.uniform(16, 24)
    svg += rectangle(0, ground, BOX, 90, rng.choice(("#cfc9bf", "#d8d3c4", "#bcbab5")))
    joints = "".join(f"M{x} {ground:.1f}l{(x - 80) * 0.12:.1f} {kerb - ground:.1f}" for x in range(8, BOX, 16))
    svg += f'<path d="{joints}" stroke="#a9a49a" stroke-width=".6"/>'
    road = rng.choice(("#6c6f75", "#7c7a78", "#5b6068"))
    svg += gradient("road", road, "#4b4e54") + rectangle(0, kerb, BOX, 90, "url(#road)")
    svg += rectangle(0, kerb, BOX, 2.4, "#e6e2d8")
    line = (kerb + BOX) / 2 + rng.uniform(-6, 8)
    for x in range(-rng.randint(0, 20), BOX, 30):
        svg += rectangle(x, line, 17, 3, rng.choice(("#f2efe6", "#f5d76a")), 'fill-opacity=".85"')
    return svg, ground + 5


def window(rng: Random, x: float, y: float) -> str:
    """A window with a view and curtains."""
    width, height = rng.uniform(28, 40), rng.uniform(30, 40)
    svg = gradient("view", *rng.choice(DAY + EVENING)) + rectangle(x, y, width, height, "url(#view)")
    svg += path(f"M{x:.1f} {y + height:.1f}v-8q{width / 3:.1f}-9 {width:.1f} 1v7z", "#8fbf6a")
    bars = f"M{x + width / 2:.1f} {y:.1f}v{height:.1f}M{x:.1f} {y + height / 2:.1f}h{width:.1f}"
    svg += f'<path d="{bars}" stroke="#fffaf0" stroke-width="2"/>'
    svg += rectangle(x, y, width, height, "none", 'stroke="#fffaf0" stroke-width="3"')
    cloth = rng.choice(("#d98f8f", "#8fa9d9", "#e5c06a", "#a9c98f", "#c9a5d3"))
    for side in (x - 6, x + width - 4):
        svg += rectangle(side, y - 4, 10, height + 12, cloth, 'rx="2"')
    return svg + rectangle(x - 9, y - 6, width + 18, 2.4, "#7a5a44")


def room(rng: Random) -> Backdrop:
    floor = rng.uniform(88, 106)
    wall, wood = rng.choice((("#f3e3c7", "#c08a55"), ("#d9e6e3", "#a9744a"), ("#e8d5d9", "#b58d67"),
                             ("#dfe3f0", "#8f6a4c"), ("#efe9d9", "#caa472"), ("#cfdcc2", "#9c6f4a")))  # fmt: skip
    svg = gradient("wall", wall, "#fbf7ee") + rectangle(0, 0, BOX, floor, "url(#wall)")
    paper = rng.random()
    if paper < 0.35:
        for x in range(0, BOX, 14):
            svg += rectangle(x, 0, 6, floor, "#ffffff", 'fill-opacity=".35"')
    elif paper < 0.6:
        for y in range(7, int(floor), 14):
            for x in range(7 + (y % 28) // 2, BOX, 14):
                svg += ellipse(x, y, 1.4, 1.4, "#b9896b", 'fill-opacity=".35"')
    if rng.random() < 0.7:
        svg += window(rng, rng.uniform(10, 115), rng.uniform(12, 22))
    svg += gradient("boards", wood, "#e0b98a") + rectangle(0, floor, BOX, BOX - floor, "url(#boards)")
    joints = "".join(f"M{80 + i * 13} {floor:.1f}L{80 + i * 26} 160" for i in range(-8, 9))
    svg += f'<path d="{joints}" stroke="#7c5636" stroke-width=".6" stroke-opacity=".55"/>'
    svg += rectangle(0, floor - 4, BOX, 4, "#fffaf0")
    if rng.random() < 0.55:
        rug = rng.choice(("#b5554a", "#4f7fa8", "#7a9a5a", "#a06a9a", "#d0a24c"))
        at = rng.uniform(50, 110), (floor + BOX) / 2 + 4
        svg += ellipse(*at, 55, 16, rug) + ellipse(*at, 46, 12, "none", 'stroke="#fff3dc" stroke-width="1.6"')
    return svg, floor + 4


def sea(rng: Random) -> Backdrop:
    horizon = rng.uniform(58, 84)
    near, deep = rng.choice(
        (("#7cc7e0", "#1f6fa5"), ("#8fd6cf", "#2a8a95"), ("#9fbfd9", "#3d6a96"), ("#86b8d6", "#25577f"))
    )
    svg = heavens(rng, horizon) + gradient("water", near, deep) + rectangle(0, horizon, BOX, BOX, "url(#water)")
    for _ in range(rng.randint(14, 26)):
        y, x = rng.uniform(horizon + 3, 158), rng.uniform(-5, 155)
        length = 3 + (y - horizon) * 0.16
        wave = f"M{x:.1f} {y:.1f}q{length / 2:.1f}-{length / 4:.1f} {length:.1f} 0t{length:.1f} 0"
        svg += path(wave, "none", 'stroke="#e9f7fb" stroke-width="1.2" stroke-opacity=".6"')
    if rng.random() < 0.35:
        shore = rng.uniform(140, 150)
        for y, colour in ((shore - 3, "#ffffff"), (shore, "#ecd9a4")):  # foam, then sand
            svg += path(f"M0 {y:.1f}Q60 {y - 6:.1f} 160 {y + 4:.1f}V160H0z", colour)
    return svg, horizon + 8


def sky(rng: Random) -> Backdrop:
    svg = heavens(rng, BOX)
    if rng.random() < 0.25:
        x, radius = rng.uniform(30, 130), rng.uniform(60, 85)
        for i, colour in enumerate(("#e8736a", "#f2a65a", "#f6e06e", "#8ccf7e", "#6fa8dc", "#9a7fc9")):
            r = radius - 4 * i
            svg += ellipse(x, 150, r, r, "none", f'stroke="{colour}" stroke-width="4" stroke-opacity=".45"')
    for _ in range(rng.randint(1, 4)):
        x, y, width, opacity = (rng.uniform(*span) for span in ((5, 155), (30, 150), (35, 80), (0.5, 0.95)))
        svg += cloud(rng, x, y, width, opacity=opacity)
    if rng.random() < 0.3:
        svg += hill(rng, 150, "#8fae9a", 6)
    return svg, BOX


BACKDROPS: dict[str, Callable[[Random], Backdrop]] = {draw.__name__: draw for draw in (meadow, street, room, sea, sky)}
