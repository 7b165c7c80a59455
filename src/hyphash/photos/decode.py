"""The one safe way from the bytes of a photo to pixels to network input.

Everything that reads a photo goes through `decode`. What the file claims to be does not count, its first
bytes do; its size is checked before a pixel is decoded; whatever it holds comes out as upright RGB.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from hyphash.errors import ConfigError, MissingExtraError, PhotoError, needs_extra

SUFFIXES = frozenset(  # lower case
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".tif", ".tiff"}
    | {".gif", ".bmp", ".heic", ".heif", ".hif"}
    | {".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".raf", ".orf", ".rw2", ".pef", ".srw", ".x3f"}
)
FORMATS = "JPEG, PNG, WebP, AVIF, TIFF, GIF, BMP, HEIC and RAW"
MAX_PIXELS = 100_000_000  # 300 MB of RGB; cameras of today stay below
MAX_SIZE = 4096  # of the square that a network sees
THUMBNAIL = 256  # pixels of the longer side
BAND = 64  # rows that are worked on at once
BYTES = 12  # a pixel takes while it is decoded: four as it is read, four as RGB, four upright
BYTES_OF_VIDEO = 20  # WebP, AVIF and HEIC, whose readers keep planes and frames of their own besides
MAX_BYTES = 1 << 30  # a photo of MAX_PIXELS fits, even 16 bits deep and uncompressed

Seen = dict[tuple[int, int], Image.Image]  # a photo at each scale at which it was decoded
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_READERS: dict[str, Callable[[io.BytesIO], ImageFile]] = {
    "JPEG": JpegImageFile, "PNG": PngImageFile, "WebP": WebPImageFile, "AVIF": AvifImageFile, "TIFF": TiffImageFile,
    "GIF": GifImageFile, "BMP": BmpImageFile,
}  # fmt: skip
_SIGNATURES = {  # what a file begins with
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "BMP": (b"BM",),
    "RAW": (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"FOVb", b"II\x1a\0\0\0HEAPCCDR"),
    "a PDF document": (b"%PDF",),
    "a zip archive": (b"PK\x03\x04",),
}
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
_UPRIGHT = {orientation: Image.Transpose[turn] for orientation, turn in enumerate(_TURNS, 2)}  # by EXIF orientation


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a photo becomes the input of a network; it belongs to the backbone and travels with it.

    `squash` scales the whole photo to a square, `crop` the largest square in its middle. Where several backbones stand
    side by side, the pixels are those that each of them sees, one after the other: `cut` parts them again.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize: Literal["squash", "crop"] = "squash"
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    beside: tuple["Preprocessing", ...] = field(default=(), repr=False)  # that of further backbones

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ConfigError(f"preprocessing: a size of {self.size} pixels; it must be at least 1, at most {MAX_SIZE}")
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0 or not np.isfinite(self.mean).all():
            raise ConfigError(f"preprocessing: mean {self.mean} and std {self.std}; each has three values, std above 0")
        for given, known in ((self.resize, ("squash", "crop")), (self.interpolation, ("bilinear", "bicubic"))):
            if given not in known:
                raise ConfigError(f"preprocessing: {given!r} is neither {' nor '.join(map(repr, known))}")

    @classmethod
    def side_by_side(cls, parts: "Sequence[Preprocessing]") -> "Preprocessing":
        """That of backbones which see the same photos."""
        return replace(parts[0], beside=tuple(parts[1:])) if parts[1:] else parts[0]

    @property
    def parts(self) -> "tuple[Preprocessing, ...]":
        """That of each backbone."""
        return (replace(self, beside=()), *self.beside) if self.beside else (self,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the pixels of a photo: (size, size, 3), of several (sum of size², 3)."""
        return (sum(part.size**2 for part in self.parts), 3) if self.beside else (self.size, self.size, 3)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """The photo as the network sees it."""
        return self.joined([part.resized(image) for part in self.parts])

    def view(self, number: int) -> "Preprocessing":
        """Another look at photos: how view `number` of them is seen, of which the first, 0, is the photo as it is."""
        return View(**vars(self), number=number) if number else self

    def resized(self, image: Image.Image) -> NDArray[np.uint8]:
        """The photo at the size of this backbone, (size, size, 3)."""
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return self._scaled(image, (left, top, side, side) if self.resize == "crop" else (0, 0, width, height))

    def _scaled(self, image: Image.Image, frame: tuple[float, float, float, float]) -> NDArray[np.uint8]:
        """What lies in a frame (left, top, width, height) of the photo."""
        left, top, width, height = frame
        method = Image.Resampling[self.interpolation.upper()]
        box = (left, top, left + width, top + height)
        return np.array(image.convert("RGB").resize((self.size, self.size), method, box=box), dtype=np.uint8)

    def joined(self, pixels: "Sequence[NDArray[np.uint8]]") -> NDArray[np.uint8]:
        """One photo, from what each backbone sees of it."""
        return np.concatenate([part.reshape(-1, 3) for part in pixels]) if self.beside else pixels[0]

    def cut(self, pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Photos as each backbone sees them, (n, size, size, 3)."""
        if not self.beside:
            return [pixels]
        ends = np.cumsum([part.size**2 for part in self.parts])
        pieces = zip(self.parts, np.split(pixels, ends[:-1], axis=1), strict=True)
        return [piece.reshape(-1, part.size, part.size, 3) for part, piece in pieces]

    def normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, size, size, 3) pixels → (n, 3, size, size) input: (pixels / 255 − mean) / std."""
        if self.beside:
            parts = [part.normalise(piece) for part, piece in zip(self.parts, self.cut(pixels), strict=True)]
            return np.concatenate([part.reshape(len(pixels), 3, -1) for part in parts], axis=2)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ConfigError(f"pixels come as uint8 of shape (n, size, size, 3), not {pixels.dtype} {pixels.shape}")
        values = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        values /= 255
        values -= np.asarray(self.mean, np.float32)[:, None, None]
        values /= np.asarray(self.std, np.float32)[:, None, None]
        return values


# Looks at a photo to train on: where a crop begins, as a share of what is left beside it, and whether it is mirrored.
# None is the whole. The mirror image comes first: it shows all that the photo shows. A crop has CROP of each side, 77 %
# of the area: labels hold for it still, while what lies at the edge moves or goes. Crops of opposite corners are
# mirrored in turn, so that among the first few no side of the photo and no direction is preferred.
VIEWS: tuple[tuple[tuple[float, float] | None, bool], ...] = (
    (None, False), (None, True), ((0, 0), False), ((1, 1), True), ((1, 0), False), ((0, 1), True),
    ((0.5, 0.5), False), ((0.5, 0.5), True), ((0, 0), True), ((1, 1), False), ((1, 0), True), ((0, 1), False),
)  # fmt: skip
CROP = 7 / 8


@dataclass(frozen=True, kw_only=True)
class View(Preprocessing):
    """One of VIEWS, at the size of a backbone."""

    number: int

    def _scaled(self, image: Image.Image, frame: tuple[float, float, float, float]) -> NDArray[np.uint8]:
        corner, mirrored = VIEWS[self.number]
        if corner:
            left, top, width, height = frame
            beside = 1 - CROP
            frame = left + corner[0] * beside * width, top + corner[1] * beside * height, CROP * width, CROP * height
        pixels = super()._scaled(image, frame)
        return np.ascontiguousarray(pixels[:, ::-1]) if mirrored else pixels


def decode(
    data: bytes, name: str = "photo", *, max_pixels: int = MAX_PIXELS, at_least: int = 0, seen: Seen | None = None
) -> Image.Image:
    """An upright RGB image from the bytes of a photo file; `name` is what errors call the photo.

    Rotated by its EXIF orientation, the first frame of an animation, transparency on white, CMYK, palettes
    and 16-bit grey converted. With `at_least`, a JPEG may come out smaller than it is (by 2, 4 or 8, which
    is faster), but both sides keep at least that many pixels. Raises PhotoError for everything that is
    no photo, is damaged or cut off, or has more than `max_pixels` pixels. What was `seen` of the same photo at
    the same scale is not decoded again.
    """
    with _pillow_errors(name):
        image = _opened(data, name, max_pixels)
        if at_least and isinstance(image, JpegImageFile):
            image.draft(None, (at_least, at_least))
        scale = image.size
        if seen and scale in seen:
            return seen[scale]
        image.load()
        turn = _UPRIGHT.get(_orientation(image))
        upright = _rgb(image)
        if turn is not None:
            upright = upright.transpose(turn)
    upright.info.clear()  # the orientation is used up: nobody may turn the photo again
    if seen is not None:
        seen[scale] = upright
    return upright


def dimensions(data: bytes, name: str = "photo") -> tuple[int, int]:
    """Width and height of the upright photo, from its header alone. Raises PhotoError where it cannot be read."""
    with _pillow_errors(name, "its size cannot be read"):
        image = open_header(data, name)
        width, height = image.size
        lying = _orientation(image) >= 5 and not isinstance(image, TiffImageFile)
        return (height, width) if lying else (width, height)  # the TIFF reader has swapped them itself


def memory_to_decode(data: bytes, name: str = "photo", *, max_pixels: int = MAX_PIXELS) -> int:
    """How many bytes it takes at most to decode a photo, from its header alone; PhotoError for too many pixels."""
    with _pillow_errors(name, "its size cannot be read"):
        width, height = _opened(data, name, max_pixels).size
    return width * height * (BYTES_OF_VIDEO if _kind(data) in ("WebP", "AVIF", "HEIC") else BYTES)


@contextmanager
def _pillow_errors(name: str, damage: str = "damaged or cut off") -> Iterator[None]:
    """Turn what Pillow raises over damaged and huge files, which is nearly anything, into errors that name them."""
    try:
        yield
    except (PhotoError, MissingExtraError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except MemoryError as error:
        raise _too_large(name, "not enough memory to decode it") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PhotoError(f"{name}: {damage} ({reason}); copy or export it again, or leave it out") from error


def thumbnail(image: Image.Image, size: int = THUMBNAIL) -> bytes:
    """A small JPEG of the image for pages and collections, its longer side at most `size` pixels."""
    small = image.convert("RGB")  # a copy: thumbnail() works in place
    small.thumbnail((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82, optimize=True)
    return file.getvalue()


def thumbnail_hash(image: Image.Image) -> bytes:
    """64 bits that survive scaling and compression: is each cell of an 8 × 9 grid darker than the one to its right."""
    grey = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    return np.packbits(grey[:, :-1] < grey[:, 1:]).tobytes()


def media_type(data: bytes) -> str:
    """What HTTP calls a photo file, by its first bytes.

    >>> media_type(b"GIF89a...")
    'image/gif'
    """
    kind = _kind(data)
    other = {"RAW": "image/x-dcraw", "HEIC": "image/heic"}.get(kind, "application/octet-stream")
    return f"image/{kind.lower()}" if kind in _READERS else other


def _kind(data: bytes) -> str:
    """What the first bytes say a file is: a key of _READERS, "HEIC", "RAW", or words for an error message."""
    if data[4:8] == b"ftyp":
        brands = {data[8:12], *(data[i : i + 4] for i in range(16, min(int.from_bytes(data[:4]), 256), 4))}
        if brands & {b"avif", b"avis", b"crx "}:
            return "RAW" if b"crx " in brands else "AVIF"
        return "HEIC" if brands & _HEIC_BRANDS else "a video"
    if data[:4] == b"RIFF":
        return "WebP" if data[8:12] == b"WEBP" else "a sound or video"
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for kind, signatures in _SIGNATURES.items():
        if data.startswith(signatures):
            return "RAW" if kind == "TIFF" and _is_raw(data) else kind
    if b"<svg" in start:
        return "an SVG drawing"
    return "a web page" if start.startswith((b"<!doctype html", b"<html")) else "not a photo"


def _is_raw(data: bytes) -> bool:
    """Whether a TIFF is what the sensor of a camera saw: DNG says so, in others the first picture is but a preview."""
    try:
        tags, file = ImageFileDirectory_v2(data[:8]), io.BytesIO(data)
        file.seek(tags.next)
        tags.load(file)
    except Exception:  # whoever decodes it will say what is wrong
        return False
    dng, sensor, reduced = 50706 in tags, tags.get(262) == 32803, tags.get(254) == 1 and 330 in tags
    return dng or sensor or reduced or data[8:10] == b"CR"


def open_header(data: bytes, name: str) -> ImageFile:
    """The image with its header read and no pixel decoded; of a RAW the preview inside.

    Not Image.open: it tries every format Pillow knows, and its limit is global to the process.
    """
    if not data:
        raise PhotoError(f"{name}: an empty file of 0 bytes; copy it again or leave it out")
    kind = _kind(data)
    if kind == "HEIC":
        with needs_extra("heic", "reading HEIC photos"):
            from pillow_heif import HeifImageFile
        return cast(ImageFile, HeifImageFile(io.BytesIO(data)))  # type: ignore[no-untyped-call]
    if kind == "RAW":
        return _preview(data, name)
    if kind not in _READERS:
        raise PhotoError(f"{name}: {kind}; hyphash reads {FORMATS}: convert it or leave it out")
    return _READERS[kind](io.BytesIO(data))


def _opened(data: bytes, name: str, max_pixels: int) -> ImageFile:
    image = open_header(data, name)
    width, height = image.size
    if width * height > max_pixels:
        raise _too_large(name, f"{width} × {height} pixels, the limit is {max_pixels / 1e6:g} million")
    return image


def _preview(data: bytes, name: str) -> ImageFile:
    """What the camera itself made of a RAW: the largest JPEG inside, which LibRaw tells how to turn upright."""
    with needs_extra("raw", "reading RAW photos"):
        import rawpy
    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            jpeg = raw.extract_thumb().data
            return JpegImageFile(io.BytesIO(jpeg if isinstance(jpeg, bytes) else b""))
    except (rawpy.LibRawError, SyntaxError) as error:
        reason = type(error).__name__
        raise PhotoError(f"{name}: a RAW without a JPEG in it ({reason}); export it as JPEG or leave it out") from error


def _too_large(name: str, what: str) -> PhotoError:
    return PhotoError(f"{name}: too large ({what}); export it smaller or leave it out")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 where there is none or it cannot be read. TIFF is upright once loaded."""
    with suppress(Exception):  # damaged EXIF is no reason to lose the photo
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def _rgb(image: Image.Image) -> Image.Image:
    """A new RGB image."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.has_transparency_data:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        for box in _bands(layer):
            part = layer.crop(box)
            white = Image.new("RGBA", part.size, "white")
            white.alpha_composite(part)
            layer.paste(white, box)
        return layer.convert("RGB")
    return image.convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """The image band by band: what is worked out for all of it at once takes several times its memory."""
    for top in range(0, image.height, BAND):
        yield 0, top, image.width, min(top + BAND, image.height)


def _eight_bits(image: Image.Image) -> NDArray[np.uint8]:
    """Deep grey as 8 bits. 16 bits have their white at 65,535.

    The 32-bit modes agree on no white: 0…1, 0…255 and 0…65,535 are taken as what they look like,
    anything else is stretched from its lowest to its highest value.
    """

    def values(box: tuple[int, int, int, int]) -> NDArray[np.float64]:
        return np.nan_to_num(np.asarray(image.crop(box)).astype(np.float64))

    ends = np.array([(part.min(), part.max()) for part in map(values, _bands(image))])
    lowest, highest, dark = ends[:, 0].min(), ends[:, 1].max(), 0.0
    if image.mode.startswith("I;16"):
        white = 65535.0
    elif lowest >= 0 and highest <= 65535:
        white = 1.0 if image.mode == "F" and highest <= 1 else 255.0 if highest <= 255 else 65535.0
    else:
        dark, white = lowest, max(highest - lowest, 1.0)
    return np.concatenate([np.rint((values(box) - dark) * (255 / white)).astype(np.uint8) for box in _bands(image)])
