"""What photo programs and cameras write beside the pixels: keywords, when, with what and where. Nothing is decoded.

Keywords stand in XMP, the XML that photo programs write into photos and into sidecars beside them. A packet is searched
for its lists of keywords, and these are replaced where they stand: every other byte of it stays.
"""

import io
import math
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape

from PIL import ExifTags, ImageFile, IptcImagePlugin, TiffImagePlugin

from hyphash.errors import MissingExtraError
from hyphash.files import open_regular
from hyphash.photos.decode import SUFFIXES, open_header

MAX_SIDECAR = 16 << 20  # bytes
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
SUBJECT = "http://purl.org/dc/elements/1.1/ subject"  # words without levels, which every program knows
HIERARCHICAL = "http://ns.adobe.com/lightroom/1.0/ hierarchicalSubject"  # animal|dog
PATHS = {  # animal/dog; programs that find these ask for no others
    "http://www.digikam.org/ns/1.0/ TagsList": ("digiKam", "Seq"),
    "http://ns.microsoft.com/photo/1.0/ LastKeywordXMP": ("MicrosoftPhoto", "Bag"),
}
WRITTEN = "urn:hyphash:1.0/ written"  # animal/dog, as hyphash wrote them: what differs was changed by others since
OURS = {SUBJECT: ("dc", "Bag"), HIERARCHICAL: ("lr", "Bag"), WRITTEN: ("hyphash", "Bag")}
LISTS = OURS | PATHS
EMPTY = (
    b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
    b' <rdf:RDF xmlns:rdf="%s">\n </rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>' % RDF.encode()
)


class Packet:
    """The lists of keywords in an XMP packet. ValueError where it is damaged, no UTF-8, or defines entities."""

    def __init__(self, data: bytes = EMPTY) -> None:
        self.data = data.rstrip(b"\0")
        self.lists: list[tuple[str, list[str], int, int]] = []  # name, words, and the bytes from … to
        self._path: list[str] = []
        self._about, self._end = "", -1  # what all of it is about, and where its last description ends
        self._start, self._words, self._text = 0, list[str](), list[str]()  # of a list
        self._parser = parser = expat.ParserCreate("utf-8", " ")
        parser.StartElementHandler, parser.EndElementHandler = self._begins, self._ends
        parser.CharacterDataHandler = self._says
        try:
            if b"<!DOCTYPE" in data.upper():  # it could define entities
                raise ValueError("it has a document type")
            parser.Parse(self.data, True)
            if self._end < 0:
                raise ValueError("no RDF in it")
        except (ValueError, expat.ExpatError) as error:
            raise ValueError(f"no XMP ({error})") from None

    def _begins(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._about = self._about or attributes.get(f"{RDF} about", "")
        if name in LISTS:
            self._start, self._words = self._parser.CurrentByteIndex, []
        if name in LISTS or name == f"{RDF} li":
            self._text = []

    def _says(self, text: str) -> None:
        self._text.append(text)

    def _ends(self, name: str) -> None:
        self._path.pop()
        at = self._parser.CurrentByteIndex
        if name == f"{RDF} li":
            self._words.append("".join(self._text))
        elif name in LISTS and self._path[-2:] == [f"{RDF} RDF", f"{RDF} Description"]:
            words = [*self._words] or [text for text in ["".join(self._text)] if text.strip()]
            self.lists.append((name, words, self._start, self._end_tag(name, at) or at))
        elif name == f"{RDF} RDF" and self._end_tag(name, at):
            self._end = at

    def _end_tag(self, name: str, at: int) -> int:
        """Where the tag is over that begins here and ends an element; 0: it has none, such as <dc:subject/>."""
        found = re.compile(rb"</([^\s<>:]+:)?%b\s*>" % name.split()[1].encode()).match(self.data, at)
        return found.end() if found else 0

    def words(self, *names: str) -> list[str]:
        """The keywords in these lists; levels of hierarchies have a / between them."""
        return [word.replace("|", "/") for name, words, *_ in self.lists if name in names for word in words]

    def having(self, labels: Iterable[str], ours: Iterable[str] | None = None) -> bytes:
        """The packet with these keywords and no others; those lists of other programs change that are there.

        `ours` are those that hyphash would have there, if not all.
        """
        labels = sorted(labels)
        wanted = dict.fromkeys(PATHS, labels) | {WRITTEN: labels if ours is None else sorted(ours)}
        wanted |= {SUBJECT: levels_of(labels), HIERARCHICAL: [label.replace("/", "|") for label in labels]}
        there = [name for name, *_ in self.lists]
        new = "".join(_list(name, wanted[name]) for name in OURS if name not in there)
        about = f'<rdf:Description xmlns:rdf="{RDF}" rdf:about="{escape(self._about, {chr(34): "&quot;"})}">'
        edits = [(self._end, self._end, f" {about}{new}</rdf:Description>\n " if new else "")]
        for name, words, start, end in self.lists:
            if words != (now := wanted.pop(name, None)):  # a program may have left a second one
                edits.append((start, end, "" if now is None else _list(name, now)))
        parts, at = list[bytes](), 0  # joined once: somebody may have sent a million lists
        for start, end, text in sorted(edits):
            parts += [self.data[at:start], text.encode()]
            at = end
        return Packet(b"".join([*parts, self.data[at:]])).data  # a label may have signs that XML cannot hold


def levels_of(labels: Iterable[str]) -> list[str]:
    """All words that labels are made of: of animal/dog, animal and dog."""
    return sorted({level for label in labels for level in label.split("/")})


def _list(name: str, words: Iterable[str]) -> str:
    (uri, local), (prefix, kind) = name.split(), LISTS[name]
    items = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in words)
    start = f'<{prefix}:{local} xmlns:{prefix}="{uri}" xmlns:rdf="{RDF}">'
    return f"{start}<rdf:{kind}>{items}</rdf:{kind}></{prefix}:{local}>"


@dataclass(frozen=True)
class Metadata:
    """What is known of a photo from its file and its sidecars."""

    keywords: tuple[str, ...] = ()  # animal/dog: a level of a hierarchy, and below it another
    taken: int | None = None  # by the clock on the wall where it was taken, in seconds since 1970 there
    camera: str = ""
    latitude: float | None = None  # in degrees, north and east of 0
    longitude: float | None = None
    written: tuple[str, ...] = ()  # keywords that hyphash has put there, whatever became of them


def read(data: bytes, path: Path | None = None) -> Metadata:
    """What a photo's bytes say, and with its path its sidecars; what is damaged or defines entities counts as none."""
    packets, flat, exif = list[Packet](), list[str](), dict[str, Any]()
    for file in sidecars(path) if path else ():
        with suppress(OSError, ValueError):
            packets.append(read_sidecar(file))
    try:
        image = _opened(data)
        flat, exif = iptc_keywords(image), _exif(image)
        packets += [Packet(packet)] if (packet := xmp_of(image)) else []
    except MissingExtraError:
        raise
    except Exception:  # whoever decodes the photo will say what is wrong with it
        pass

    def words(*names: str) -> list[str]:
        return [word for packet in packets for word in packet.words(*names)]

    keywords = _joined(flat + words(SUBJECT), words(HIERARCHICAL, *PATHS))
    return Metadata(keywords, written=tuple(words(WRITTEN)), **exif)


def _opened(data: bytes) -> ImageFile.ImageFile:
    """The header of a photo; a RAW that is a TIFF inside says more than the preview in it."""
    with suppress(Exception):
        return TiffImagePlugin.TiffImageFile(io.BytesIO(data))
    return open_header(data, "photo")


def _joined(flat: Iterable[str], paths: Iterable[str]) -> tuple[str, ...]:
    """Keywords each once: those with their levels, and those words besides that are no level of any of them."""
    paths, flat = ([unicodedata.normalize("NFC", word).strip(" \t\r\n\0/") for word in some] for some in (paths, flat))
    levels = {*levels_of(paths)}
    words = [*(word.replace("|", "/") for word in flat if word not in levels), *paths]
    return tuple(dict.fromkeys(word for word in words if word))


def sidecars(path: Path) -> list[Path]:
    """Those that are there: photo.jpg.xmp, and photo.xmp."""
    return [file for file in (path.with_name(f"{path.name}.xmp"), path.with_suffix(".xmp")) if file.is_file()]


def is_shared(sidecar: Path, path: Path) -> bool:
    """Whether a photo.xmp goes with several photos, such as a photo.dng and a photo.jpg."""
    others = (sidecar.with_suffix(suffix) for suffix in SUFFIXES if suffix != path.suffix.lower())
    return sidecar.stem == path.stem and any(other.is_file() for other in others)


def own_sidecars(path: Path) -> list[Path]:
    """Those that a photo has to itself."""
    return [file for file in sidecars(path) if not is_shared(file, path)]


def read_sidecar(file: Path) -> Packet:
    with open_regular(file) as opened:
        return Packet(opened.read(MAX_SIDECAR))


def xmp_of(image: ImageFile.ImageFile) -> bytes:
    """The XMP packet inside a photo; empty: there is none."""
    packet: bytes | str = image.info.get("xmp", b"")
    return packet.encode() if isinstance(packet, str) else packet


def iptc_keywords(image: ImageFile.ImageFile) -> list[str]:
    with suppress(Exception):  # damaged metadata
        found = (IptcImagePlugin.getiptcinfo(image) or {}).get((2, 25), [])
        return [_text(word) for word in (found if isinstance(found, list) else [found])]
    return []


def _text(data: bytes) -> str:
    """IPTC text: UTF-8 in all files that say so and most that do not, else Latin-1."""
    with suppress(UnicodeDecodeError):
        return data.decode()
    return data.decode("latin-1")


def _exif(image: ImageFile.ImageFile) -> dict[str, Any]:
    """When, with what and where a photo was taken, as far as EXIF has it."""
    exif = image.getexif()
    more, gps = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.GPSInfo)
    base = ExifTags.Base
    times = (more.get(base.DateTimeOriginal), more.get(base.DateTimeDigitized), exif.get(base.DateTime))
    make, model = (str(exif.get(tag, "")).strip(" \0") for tag in (base.Make, base.Model))
    known = make.split()[:1] == model.split()[:1]  # most models begin with the name of their maker
    camera = model if known else f"{make} {model}".strip()
    latitude, longitude = _degrees(gps, 1, "S", 90), _degrees(gps, 3, "W", 180)
    place = {} if latitude is None or longitude is None else {"latitude": latitude, "longitude": longitude}
    taken = next((time for time in map(_wall_time, times) if time is not None), None)
    return {"taken": taken, "camera": "".join(filter(str.isprintable, camera))[:200], **place}


def _wall_time(text: object) -> int | None:
    with suppress(ValueError):
        return int(datetime.strptime(str(text)[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return None


def _degrees(gps: dict[int, Any], tag: int, negative: str, limit: int) -> float | None:
    """Of a side (N or S, E or W) and the degrees, minutes and seconds in the tag after it."""
    with suppress(TypeError, ValueError, ZeroDivisionError):
        degrees = math.fsum(float(part) / 60**i for i, part in enumerate(gps.get(tag + 1) or [math.nan]))
        if abs(degrees) <= limit:
            degrees = round(degrees, 6)  # a tenth of a metre
            return -degrees if str(gps.get(tag)).upper().startswith(negative) else degrees
    return None
