"""Keywords in XMP, the XML that photo programs write into photos and into sidecars beside them.

A packet is searched for its lists of keywords, and these are replaced where they stand: every other byte of it stays.
"""

from collections.abc import Iterable
from xml.parsers import expat
from xml.sax.saxutils import escape

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
        self._start, self._words, self._text = 0, list[str](), ""  # of a list
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
            self._text = ""

    def _says(self, text: str) -> None:
        self._text += text

    def _ends(self, name: str) -> None:
        self._path.pop()
        at = self._parser.CurrentByteIndex
        if name == f"{RDF} li":
            self._words.append(self._text)
            self._text = ""
        elif name in LISTS and self._path[-2:] == [f"{RDF} RDF", f"{RDF} Description"]:
            words = [*self._words] or [text for text in [self._text] if text.strip()]
            self.lists.append((name, words, self._start, self.data.index(b">", at) + 1))
        elif name == f"{RDF} RDF" and self.data.startswith(b"</", at):
            self._end = at

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
        for i, (name, words, start, end) in enumerate(self.lists):
            first = name not in there[:i]  # a program may have left a second one
            if not first or words != wanted[name]:
                edits.append((start, end, _list(name, wanted[name]) * first))
        data = self.data
        for start, end, text in sorted(edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return Packet(data).data  # a label may have signs that XML cannot hold


def levels_of(labels: Iterable[str]) -> list[str]:
    """All words that labels are made of: of animal/dog, animal and dog."""
    return sorted({level for label in labels for level in label.split("/")})


def _list(name: str, words: Iterable[str]) -> str:
    (uri, local), (prefix, kind) = name.split(), LISTS[name]
    items = "".join(f"<rdf:li>{escape(word)}</rdf:li>" for word in words)
    start = f'<{prefix}:{local} xmlns:{prefix}="{uri}" xmlns:rdf="{RDF}">'
    return f"{start}<rdf:{kind}>{items}</rdf:{kind}></{prefix}:{local}>"
