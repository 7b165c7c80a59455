"""A RAW as a camera writes it, in a few bytes: a DNG with what the sensor saw, and a preview or none."""

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

BYTE, ASCII, SHORT, LONG, RATIONAL, SIGNED = 1, 2, 3, 4, 5, 10  # types of TIFF
LETTERS = {BYTE: "B", SHORT: "H", LONG: "I", RATIONAL: "II", SIGNED: "ii"}


def directory(tags: dict[int, tuple[int, Any]], start: int) -> bytes:
    """An image file directory at `start`, little-endian, with its values behind it."""
    entries, values = struct.pack("<H", len(tags)), b""
    for tag, (kind, given) in sorted(tags.items()):
        packed = (
            given if kind == ASCII else b"".join(struct.pack(f"<{LETTERS[kind]}", *np.atleast_1d(x)) for x in given)
        )
        entries += struct.pack("<HHI", tag, kind, len(given))
        if len(packed) > 4:
            place = start + 2 + 12 * len(tags) + 4 + len(values)
            values += packed + b"\0" * (len(packed) % 2)
            packed = struct.pack("<I", place)
        entries += packed.ljust(4, b"\0")
    return entries + bytes(4) + values


def dng(preview: Image.Image | None, *, orientation: int = 1, dng: bool = True) -> bytes:
    """A DNG; without `dng`, what older cameras write: a TIFF that begins with a preview."""
    width, height = 64, 48
    seen = np.random.default_rng(0).integers(0, 4000, (height, width), dtype="<u2").tobytes()
    file = io.BytesIO()
    if preview:
        preview.save(file, "JPEG", quality=95)
    jpeg = file.getvalue() + b"\0" * (len(file.getvalue()) % 2)
    raw_at = 8 + len(jpeg)
    sensor = {
        254: (LONG, [0]), 256: (LONG, [width]), 257: (LONG, [height]), 258: (SHORT, [16]), 259: (SHORT, [1]),
        262: (SHORT, [32803]), 273: (LONG, [raw_at]), 277: (SHORT, [1]), 278: (LONG, [height]),
        279: (LONG, [len(seen)]), 33421: (SHORT, [2, 2]), 33422: (BYTE, [0, 1, 1, 2]), 50714: (RATIONAL, [(0, 1)]),
        50717: (LONG, [4095]),
    }  # fmt: skip
    camera: dict[int, tuple[int, Any]] = {
        271: (ASCII, b"Maker\0"), 272: (ASCII, b"Model X\0"), 274: (SHORT, [orientation]),
        306: (ASCII, b"2021:06:05 14:03:02\0"),
    }  # fmt: skip
    if dng:
        eye = [(int(i % 4 == 0), 1) for i in range(9)]
        camera |= {
            50706: (BYTE, [1, 4, 0, 0]), 50707: (BYTE, [1, 1, 0, 0]), 50708: (ASCII, b"Maker Model X\0"),
            50721: (SIGNED, eye), 50778: (SHORT, [21]),
        }  # fmt: skip
    if preview is None:
        return b"II*\0" + struct.pack("<I", raw_at + len(seen)) + seen + directory(sensor | camera, raw_at + len(seen))
    below_at = raw_at + len(seen)
    below = directory(sensor, below_at)
    shown = {
        254: (LONG, [1]), 256: (LONG, [preview.width]), 257: (LONG, [preview.height]), 258: (SHORT, [8, 8, 8]),
        259: (SHORT, [7]), 262: (SHORT, [6]), 273: (LONG, [8]), 277: (SHORT, [3]), 278: (LONG, [preview.height]),
        279: (LONG, [len(jpeg)]), 330: (LONG, [below_at]),
    }  # fmt: skip
    first_at = below_at + len(below)
    return b"II*\0" + struct.pack("<I", first_at) + jpeg + seen + below + directory(shown | camera, first_at)
