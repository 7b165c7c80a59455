"""Photos as rows of Milvus, and back."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from hyphash.codes import bytes_for
from hyphash.engines import Photo, improper
from hyphash.engines.milvus.server import Field, Row
from hyphash.errors import CollectionError, LabelError

LONGEST_PATH = 8192  # bytes
LONGEST_LABEL = 512  # bytes
MOST_LABELS = 1024  # a photo
LARGEST_FACTS = 65_000  # bytes; Milvus takes 65,536 with its own spelling

PHOTO = ("id", "code", "path", "content", "labels", "facts")  # what makes a Photo


def fields(bits: int, *, partitions: int) -> tuple[Field, ...]:
    """The columns of a collection of photos. Whole numbers stand for what is looked up: no text has to be quoted."""
    columns = (
        Field("id", "INT64", {}),
        Field("code", "BINARY_VECTOR", {"dim": 8 * bytes_for(bits)}),  # Milvus takes multiples of 8
        Field("path", "VARCHAR", {"max_length": LONGEST_PATH}),
        Field("path_key", "INT64", {}),
        Field("content", "VARCHAR", {"max_length": 128}),
        Field("content_key", "INT64", {}),
        Field("look", "INT64", {}),
        Field("labels", "ARRAY", {"element_type": "VARCHAR", "max_capacity": MOST_LABELS, "max_length": LONGEST_LABEL}),
        Field("tagged", "BOOL", {}),
        Field("commit", "INT64", {}),  # that wrote the row
        Field("facts", "JSON", {}),
    )
    if not partitions:
        return columns
    return (*columns, Field("part", "INT64", {"is_partition_key": True}))


def to_row(photo: Photo, *, commit: int, stamp: str, partitions: int) -> Row:
    """The row of a photo, with what it carries in order; refused here is what Milvus would refuse in mid-batch."""
    if len(_encoded(photo.path)) > LONGEST_PATH:
        raise CollectionError(f"{photo.path[:40]!r}… is longer than {LONGEST_PATH} bytes; leave that photo out")
    for label in photo.labels:
        if len(_encoded(label)) > LONGEST_LABEL:
            raise LabelError(
                f"{photo.path}: the label {label[:40]!r}… is longer than {LONGEST_LABEL} bytes; shorten it"
            )
    if len(photo.labels) > MOST_LABELS:
        raise LabelError(f"{photo.path}: {len(photo.labels)} labels; Milvus keeps at most {MOST_LABELS} a photo")
    facts = {
        "size": photo.size,
        "modified": photo.modified,
        "width": photo.width,
        "height": photo.height,
        "look": photo.look.hex(),
        "given": photo.given,
        "refused": photo.refused,
        "added": photo.added,
        "changed": photo.changed,
        "stamp": stamp,  # of the commit
    }
    for text in (*(photo.given or ()), *photo.refused):
        _encoded(text)
    if len(_encoded(json.dumps(facts, ensure_ascii=False))) > LARGEST_FACTS:
        raise LabelError(
            f"{photo.path}: more than {LARGEST_FACTS} bytes of labels that its source gives or people turned down; "
            "shorten them"
        )
    row: Row = {
        "id": photo.id,
        "code": photo.code,
        "path": photo.path,
        "path_key": path_key(photo.path),
        "content": photo.content,
        "content_key": content_key(photo.content),
        "look": _number(photo.look if len(photo.look) == 8 else b""),
        "labels": list(photo.labels),
        "tagged": bool(photo.labels),
        "commit": commit,
        "facts": facts,
    }
    return row | {"part": photo.id % partitions} if partitions else row


def to_photo(row: Mapping[str, Any]) -> Photo:
    facts = _facts(row)
    given = facts["given"]
    return Photo(
        id=int(row["id"]),
        path=row["path"],
        content=row["content"],
        size=facts["size"],
        modified=facts["modified"],
        width=facts["width"],
        height=facts["height"],
        look=bytes.fromhex(facts["look"]),
        code=code_of(row),
        labels=tuple(row["labels"]),
        given=None if given is None else tuple(given),
        refused=tuple(facts["refused"]),
        added=facts["added"],
        changed=facts["changed"],
    )


def stamp_of(row: Mapping[str, Any]) -> str:
    """The stamp of the commit that wrote a row; none if that was an older hyphash."""
    return str(_facts(row).get("stamp", ""))


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return row["facts"] if isinstance(row["facts"], dict) else json.loads(row["facts"])


def code_of(row: Mapping[str, Any]) -> bytes:
    code = row["code"]
    return bytes(code if isinstance(code, bytes) else code[0])


def tidy(photo: Photo) -> Photo:
    """Labels of each kind once and in order; what is carried is not refused."""
    return replace(
        photo,
        labels=tuple(sorted(set(photo.labels))),
        given=None if photo.given is None else tuple(sorted(set(photo.given))),
        refused=tuple(sorted(set(photo.refused) - set(photo.labels))),
    )


def path_key(path: str) -> int:
    """A number that stands for a path; two paths may have the same, so the path itself is compared as well."""
    return _number(blake2b(_encoded(path), digest_size=8).digest())


def content_key(content: str) -> int:
    """The first 64 bits of a content."""
    return _number(bytes.fromhex(content)[:8])


def listed(numbers: Iterable[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"


def quoted(words: Iterable[str]) -> str:
    """Texts as a list in a condition."""
    return json.dumps(list(words), ensure_ascii=False)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise improper("Milvus", error) from None


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
