"""Keywords in XMP, the XML that photo programs write into photos and into sidecars beside them.

A packet is searched for its lists of keywords, and these are replaced where they stand: every other byte of it stays.
"""

from collections.abc import Iterable
from typing import NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
SUBJECT = "http://purl.org/dc/elements/1.1/ subject"  # words without levels, which every program knows
HIERARCHICAL = "http://ns.adobe.com/lightroom/1.0/ hierarchicalSubject"  # animal|dog
PATHS = {  # animal/dog; programs that find these ask for no others
    "http://www.digikam.org/ns/1.0/ TagsList": ("digiKam", "Seq"),
    "http://ns.microsoft.com/photo/1.0/ LastKeywordXMP": ("MicrosoftPhoto", "Bag"),
}
WRITTEN = "urn:hyphash:1.0/ written"  # animal/dog, as hyphash wrote them: what differs was changed by others since
LISTS = {SUBJECT: ("dc", "Bag"), HIERARCHICAL: ("lr", "Bag"), WRITTEN: ("hyphash", "Bag")} | PATHS
EMPTY = (
    b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
    b' <rdf:RDF xmlns:rdf="%s">\n </rdf:RDF>\n</x:xmpmeta>\n<?xpacket end="w"?>' % RDF.encode()
)


class Words(NamedTuple):
    """A list of keywords, and where it stands in the bytes of its packet."""

    name: str  # one of LISTS
    words: tuple[str, ...]
    start: int
    end: int


class Packet:
    """The lists of keywords in an XMP packet. ValueError where it is damaged, no UTF-8, or defines entities."""

    def __init__(self, data: bytes = EMPTY) -> None:
        self.data = data.rstrip(b"\0")
        self.lists: list[Words] = []
        self._about, self._end = "", -1  # what all of it is about, and where the last description ends
        self._path: list[str] = []
        self._items: list[str] = []
        self._text = ""
        self._start = 0
        self._parser = parser = expat.ParserCreate("utf-8", " ")
        parser.StartElementHandler, parser.EndElementHandler = self._begins, self._ends
        parser.CharacterDataHandler = self._says
        parser.StartDoctypeDeclHandler = _refuse  # before it could define an entity
        try:
            parser.Parse(self.data, True)
        except expat.ExpatError as error:
            raise ValueError(f"no XMP ({error})") from None
        if self._end < 0:
            raise ValueError("no XMP (no RDF in it)")

    def _begins(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if self._path[-2:] == [f"{RDF} RDF", f"{RDF} Description"]:
            self._about = self._about or attributes.get(f"{RDF} about", "")
        if name in LISTS:
            self._start, self._items = self._parser.CurrentByteIndex, []
        if name in LISTS or name == f"{RDF} li":
            self._text = ""

    def _says(self, text: str) -> None:
        self._text += text

    def _ends(self, name: str) -> None:
        self._path.pop()
        at = self._parser.CurrentByteIndex
        if name == f"{RDF} li":
            self._items.append(self._text)
            self._text = ""
        elif name in LISTS and self._path[-2:] == [f"{RDF} RDF", f"{RDF} Description"]:
            words = tuple(self._items or filter(str.strip, [self._text]))
            self.lists.append(Words(name, words, self._start, self.data.index(b">", at) + 1))
        elif name == f"{RDF} RDF" and self.data[at : at + 2] == b"</":
            self._end = at

    def words(self, *names: str) -> list[str]:
        """The keywords in these lists; levels of hierarchies have a / between them."""
        return [word.replace("|", "/") for found in self.lists if found.name in names for word in found.words]

    def having(self, labels: Iterable[str], ours: Iterable[str] | None = None) -> bytes:
        """The packet with these keywords and no others; those lists of other programs change that are there.

        `ours` are those that hyphash would have there, if not all.
        """
        labels = sorted(labels)
        wanted = dict.fromkeys(PATHS, labels) | {WRITTEN: labels if ours is None else sorted(ours)}
        wanted[SUBJECT] = sorted({level for label in labels for level in label.split("/")})
        wanted[HIERARCHICAL] = [label.replace("/", "|") for label in labels]
        there = [found.name for found in self.lists]
        new = "".join(_list(name, wanted[name]) for name in (SUBJECT, HIERARCHICAL, WRITTEN) if name not in there)
        about = f"<rdf:Description xmlns:rdf={quoteattr(RDF)} rdf:about={quoteattr(self._about)}>"
        edits = [(self._end, self._end, f" {about}{new}</rdf:Description>\n " if new else "")]
        for i, found in enumerate(self.lists):
            first = found.name not in there[:i]  # a program may have left a second one
            same = first and [*found.words] == wanted[found.name]
            edits += [] if same else [(found.start, found.end, _list(found.name, wanted[found.name]) * first)]
        data = self.data
        for start, end, text in sorted(edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data


def _refuse(*_: object) -> None:
    raise ValueError("no XMP (it has a document type)")


def _list(name: str, words: Iterable[str]) -> str:
    uri, local = name.split()
    prefix, kind = LISTS[name]
    items = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in words)
    spaces = f"xmlns:{prefix}={quoteattr(uri)} xmlns:rdf={quoteattr(RDF)}"
    return f"<{prefix}:{local} {spaces}><rdf:{kind}>{items}</rdf:{kind}></{prefix}:{local}>"
