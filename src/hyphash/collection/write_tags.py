"""Tags go home: what photos carry here, written to sidecars beside them or into the photos themselves.

Files that say otherwise are shown and left alone, unless it is said whose word counts. What is written is read back as
the same labels, and written again it changes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import ImageSequence

from hyphash.errors import PhotoError, StorageError, needs_extra
from hyphash.files import write_atomically
from hyphash.photos import Problem, media_type, metadata, read_bytes
from hyphash.photos.decode import open_header
from hyphash.photos.metadata import EMPTY, Packet, levels_of
from hyphash.stores import Photo

if TYPE_CHECKING:
    from hyphash.collection import Collection

Conflicts = Literal["show", "keep", "ours"]
WITH_IPTC = ("image/jpeg", "image/tiff")  # as well as XMP, which all have
EMBEDDED = (*WITH_IPTC, "image/png", "image/webp")


@dataclass(frozen=True)
class Tags:
    """What the files of a photo shall say, and where they say otherwise than the collection."""

    id: int
    path: str
    labels: tuple[str, ...]  # that stand in its files then
    unknown: tuple[str, ...]  # keywords in its files that it does not carry here
    dropped: tuple[str, ...]  # labels that somebody took out of its files since they were written
    files: tuple[str, ...] = ()  # that change
    status: Literal["unchanged", "conflict", "planned", "written"] = "unchanged"


def write_tags(
    collection: "Collection", photos: Iterable[Photo], *, conflicts: Conflicts = "show", embed: bool = False,
    stem: bool = False, dry_run: bool = False,
) -> Iterator[Tags | Problem]:  # fmt: skip
    """Write the labels of photos home, one after the other. Photos of which nobody has said anything are passed over.

    `embed` writes into photos that can take it, and to the sidecars that they have. A new sidecar is photo.jpg.xmp, by
    its `stem` photo.xmp. Of conflicts, `keep` lets stand what files say and adds ours, `ours` writes ours alone.
    """
    for photo in photos:
        if not photo.labels and not photo.refused:
            continue
        try:
            tags, edits = _edits(photo, conflicts, embed=embed, stem=stem)
            if edits and conflicts == "show" and (tags.unknown or tags.dropped):
                tags = replace(tags, status="conflict")
            elif edits:
                tags = replace(tags, status="planned" if dry_run else "written")
                _write(collection, photo, {} if dry_run else edits)
            yield tags
        except (PhotoError, StorageError) as error:
            yield Problem(photo.path, str(error))
        except (OSError, ValueError) as error:
            yield Problem(photo.path, f"{photo.path}: its tags cannot be written ({error}); mend its sidecar or labels")


def _edits(photo: Photo, conflicts: Conflicts, *, embed: bool, stem: bool) -> tuple[Tags, dict[Path, bytes]]:
    """What is to be written, by file."""
    path = Path(photo.path)
    if not path.is_absolute():
        raise PhotoError(f"{photo.path}: came from no file, so nothing can be written beside it")
    data = read_bytes(path)
    if hashlib.sha256(data).hexdigest() != photo.facts.content:  # or the collection was sent by somebody
        raise PhotoError(f"{path}: has changed since it was indexed; index it again")
    found = metadata.read(data, path)
    ours = {label for label in photo.labels if not any(other.startswith(f"{label}/") for other in photo.labels)}
    covered = {*photo.labels, *levels_of(ours), *found.written}
    unknown = tuple(word for word in found.keywords if word not in covered)
    dropped = tuple(word for word in found.written if word in ours and word not in found.keywords)
    here = (ours - {*dropped}) | {*unknown} if conflicts == "keep" else ours
    inside = embed and media_type(data) in EMBEDDED
    edits = {path.resolve(): changed} if inside and (changed := _embedded(data, here, ours, path)) != data else {}
    for file in _sidecars(path, new=bool(here) and not inside, stem=stem):
        packet = metadata.read_sidecar(file) if file.exists() else None
        changed = (packet or Packet()).having(here, ours)
        edits |= {file: changed} if packet is None or changed != packet.data else {}
    return Tags(photo.id, photo.path, tuple(sorted(here)), unknown, dropped, tuple(map(str, edits))), edits


def _sidecars(path: Path, *, new: bool, stem: bool) -> list[Path]:
    """Those that a photo has to itself; else, if a `new` one may be made, its name."""
    short = path.with_suffix(".xmp")
    named = short if stem and not metadata.is_shared(short, path) else path.with_name(f"{path.name}.xmp")
    return metadata.own_sidecars(path) or ([named] if new else [])


def _embedded(data: bytes, labels: set[str], ours: set[str], path: Path) -> bytes:
    """A photo file with these keywords and no others, and with the same pixels and everything else as before."""
    with needs_extra("tags", "writing tags into photos"):
        import exiv2
    exiv2.LogMsg.setLevel(exiv2.LogMsg.Level.mute)
    words, with_iptc = levels_of(labels), media_type(data) in WITH_IPTC
    try:
        image, header = exiv2.ImageFactory.open(data), open_header(data, str(path))
        image.readMetadata()
        packet = Packet(metadata.xmp_of(header) or image.xmpPacket().encode() or EMPTY)
        xmp = packet.having(labels, ours)
        if xmp == packet.data and (not with_iptc or metadata.iptc_keywords(header) == words):
            return data
        image.setXmpPacket(xmp.decode())
        image.writeXmpFromPacket(True)  # byte for byte
        if with_iptc:
            _set_iptc(image.iptcData(), words)
        image.writeMetadata()
        changed = bytes(image.io().data())
    except exiv2.Exiv2Error as error:
        raise PhotoError(
            f"{path}: tags cannot be written into it ({error.message}); leave out --embed for a sidecar"
        ) from None
    if list(_frames(changed)) != list(_frames(data)):
        raise PhotoError(f"{path}: its pixels would change with tags in it; leave out --embed for a sidecar")
    return changed


def _set_iptc(iptc: Any, words: Iterable[str]) -> None:
    """Replace the keywords. Where other fields are in no charset that is named or known, words of ASCII alone fit."""
    import exiv2

    key = "Iptc.Application2.Keywords"
    while (found := iptc.findKey(exiv2.IptcKey(key))) != iptc.end():
        iptc.erase(found)
    fitting = [word for word in words if word.isascii() or iptc.detectCharset()]
    for word in fitting:
        iptc.add(exiv2.IptcKey(key), exiv2.StringValue(word))
    if not all(map(str.isascii, fitting)):
        iptc["Iptc.Envelope.CharacterSet"] = "\x1b%G"  # UTF-8


def _frames(data: bytes) -> Iterator[tuple[str, tuple[int, int], bytes]]:
    for frame in ImageSequence.Iterator(open_header(data, "photo")):
        yield frame.mode, frame.size, hashlib.sha256(frame.tobytes()).digest()


def _write(collection: "Collection", photo: Photo, edits: dict[Path, bytes]) -> None:
    """Files first; a photo that is another file now is still the same photo here, with all that is known of it."""
    for file, data in edits.items():
        write_atomically(file, data)
    if (changed := edits.get(Path(photo.path).resolve())) is None:
        return
    content, before = hashlib.sha256(changed).hexdigest(), photo.facts.content
    if thumbnail := collection.thumbnails.get(before):
        collection.thumbnails.put({content: thumbnail})
    if collection.originals.path(before):
        collection.originals.keep(content, changed)

    def store(fingerprint: str) -> None:
        for known in collection.store.get([photo.id]):
            facts = replace(known.facts, content=content, size=len(changed), modified=0)  # its time will be seen
            collection.store.upsert([replace(known, facts=facts, given=None)], fingerprint=fingerprint)

    collection.with_hasher(lambda hasher: store(hasher.fingerprint))
