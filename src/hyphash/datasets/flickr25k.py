"""MIRFLICKR-25k: 25,000 photos with 24 or 38 labels, in the paper's split or the one other papers use.

Two layouts are read. The official one:
    mirflickr/im1.jpg … im25000.jpg
    mirflickr25k_annotations_v080/animals.txt, baby.txt, baby_r1.txt …   (photo numbers, one a line)
and a pack: one .npz file (or its parts, flickr25k_128.npz.part0 …) with all photos as JPEG, their labels
and both splits.

| split      | train | queries | database |                                                        |
| hyp2       | 4,000 | 1,000   | 19,581   | the paper's; the 419 photos without labels are in no part |
| deephash   | 4,000 | 1,000   | 20,000   | counts with the photos that have no labels              |
"""

import base64
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyphash.datasets import PUBLISHED, Labels, Parts, Remarks, Rows, absent, assemble, below, datasets
from hyphash.errors import ConfigError, DataError, PhotoError
from hyphash.photos import PhotoFiles

PHOTOS = 25_000
POTENTIAL, RELEVANT = (tuple(PUBLISHED["flickr25k"][kind]) for kind in ("potential", "relevant"))
STRICTER = "_r1"  # ends the name of a label that was annotated a second time
CLASSES = sorted([*POTENTIAL, *(label + STRICTER for label in RELEVANT)])
QUERIES, TRAIN, DATABASE, UNUSED = 0, 1, 2, 255  # the codes of a split, one a photo
ARRAYS = ("offset", "ids", "labels", "classes", "split_hyp2", "split_deephash")


@datasets("flickr25k")
def flickr25k(
    path: Path,
    *,
    labels: Literal[38, 24] = 38,
    split: Literal["hyp2", "deephash"] = "hyp2",
    keep_unlabelled: bool = False,
    skip_missing: bool = False,
) -> Rows:
    """MIRFLICKR-25k, as a pack or in its official layout.

    labels           38 as in the paper, or 24: without the stricter "relevant" annotations (_r1)
    split            hyp2 is the paper's, deephash the one of other papers
    keep_unlabelled  keep the photos without labels that the deephash split has
    skip_missing     leave out photos that are not there (official layout)
    """
    if labels not in (38, 24):
        raise ConfigError(f"flickr25k: labels={labels!r}; it is 38 or 24")
    if split not in ("hyp2", "deephash"):
        raise ConfigError(f"flickr25k: split={split!r}; it is 'hyp2' or 'deephash'")
    pack, remarks = _pack_files(path), Remarks()
    photos, classes, table, codes = _read_pack(pack, split) if pack else _read_official(path, split)
    train, queries, database = (np.flatnonzero(codes == code) for code in (TRAIN, QUERIES, DATABASE))
    unused = np.flatnonzero((codes == UNUSED) & ~table.any(axis=1))
    remarks.leave_out_unlabelled([photos.name(int(i)) for i in unused])
    columns = [j for j, label in enumerate(classes) if labels == 38 or not label.endswith(STRICTER)]
    classes, table = [classes[j] for j in columns], np.ascontiguousarray(table[:, columns])
    parts = Parts(train, queries, database)
    options = {"skip_missing": skip_missing, "keep_unlabelled": keep_unlabelled}
    return assemble("flickr25k", classes, photos, table, parts=parts, remarks=remarks, **options)


@dataclass(frozen=True)
class Pack:
    """Photos inside one file, or inside the parts it was cut into; read from disk when asked for.

    Plain values only: workers of a data loader get a copy of a few hundred kilobytes, not of the photos.
    """

    files: tuple[Path, ...]
    sizes: tuple[int, ...]
    start: int  # where the bytes of the first photo begin
    offset: NDArray[np.int64]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, index: int) -> str:
        return self.ids[index]

    def path(self, index: int) -> Path | None:  # noqa: ARG002  (the photos are no files)
        return None

    def read(self, index: int) -> bytes:
        begin, end = (self.start + int(self.offset[index + step]) for step in (0, 1))
        try:
            with _Joined(self.files, self.sizes) as pack:
                pack.seek(begin)
                data = pack.read(end - begin) or b""
        except OSError as error:
            raise PhotoError(
                f"{error.filename}: cannot be read ({error.strerror}); check that the pack is there"
            ) from error
        if len(data) != end - begin or not data:
            raise PhotoError(f"{self.files[0]}: photo {self.ids[index]!r} is cut off; copy the pack again")
        return data


Table = tuple[Pack | PhotoFiles, Sequence[str], Labels, NDArray[np.uint8]]  # classes, labels, codes of the split


# ── the pack ─────────────────────────────────────────────────────────────────────────────────────────────


def _pack_files(path: Path) -> list[Path]:
    """The pack's file or parts at `path`; none where the layout is another."""
    if path.is_file():
        if ".npz.part" not in path.name:
            return [path]
        path, pattern = path.parent, path.name.partition(".part")[0]
    elif path.is_dir():
        pattern = "flickr25k*.npz"
    else:
        raise absent(path, "flickr25k")
    whole = sorted(path.glob(pattern))
    if whole:
        return whole[:1]
    parts = sorted(path.glob(f"{pattern}.part*"), key=lambda part: int(part.suffix[5:] or 0))
    if [part.suffix for part in parts] != [f".part{i}" for i in range(len(parts))]:
        raise DataError(f"{path}: parts of the pack are missing; there is only {', '.join(p.name for p in parts)}")
    return parts


def _read_pack(parts: list[Path], split: str) -> Table:
    sizes = tuple(part.stat().st_size for part in parts)
    try:
        with np.load(io.BufferedReader(_Joined(parts, sizes)), allow_pickle=False) as pack:
            arrays = {name: pack[name] for name in ARRAYS}
            start, length = _place_of_jpeg(pack.zip)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{parts[0]}: not a whole Flickr-25k pack ({error}); copy all of its parts again") from error
    offset, labels, codes = arrays["offset"], arrays["labels"], arrays[f"split_{split}"]
    ids = tuple(str(name) for name in arrays["ids"])
    sound = (
        labels.shape == (len(ids), len(arrays["classes"]))
        and offset.shape == (len(ids) + 1,)
        and codes.shape == (len(ids),)
        and offset[0] == 0
        and offset[-1] == length
        and (np.diff(offset) > 0).all()
        and np.isin(codes, (QUERIES, TRAIN, DATABASE, UNUSED)).all()
    )
    if not sound:
        raise DataError(f"{parts[0]}: the arrays of the pack do not fit together; copy the pack again")
    photos = Pack(tuple(parts), sizes, start, offset.astype(np.int64), ids)
    return photos, arrays["classes"].tolist(), labels.astype(np.uint8), codes


def _place_of_jpeg(archive: zipfile.ZipFile) -> tuple[int, int]:
    """Where the array of all photos begins in the file, and how many bytes it has."""
    entry = archive.getinfo("jpeg.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError("its photos are compressed once more, save it with numpy.savez")
    file: Any = archive.fp
    file.seek(entry.header_offset + 26)  # the local header: 30 bytes, then name and extra field
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    file.seek(entry.header_offset + 30 + name + extra)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.uint8 or len(shape) != 1:
        raise ValueError(f"its photos are {dtype} of shape {shape}, not bytes")
    return file.tell(), shape[0]


class _Joined(io.RawIOBase):
    """Several files, one after the other, as one that can be read and sought."""

    def __init__(self, files: Sequence[Path], sizes: Sequence[int]) -> None:
        self.files = files
        self.sizes = sizes
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (0, self.position, sum(self.sizes))[whence]
        return self.position

    def readinto(self, buffer: Any) -> int:
        data, first = b"", 0  # where the current file begins in the whole
        for path, size in zip(self.files, self.sizes, strict=True):
            low, high = max(self.position - first, 0), min(self.position + len(buffer) - first, size)
            if low < high:
                with path.open("rb") as file:
                    file.seek(low)
                    data += file.read(high - low)
            first += size
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


# ── the official layout ──────────────────────────────────────────────────────────────────────────────────


def _read_official(path: Path, split: str) -> Table:
    annotation, photo = below(path, "clouds_r1.txt"), below(path, "im1.jpg")
    if annotation is None or photo is None:
        raise absent(path, "flickr25k")
    labels = np.zeros((PHOTOS, len(CLASSES)), np.uint8)
    for j, label in enumerate(CLASSES):
        labels[_numbers(annotation.with_name(f"{label}.txt")) - 1, j] = 1
    names = tuple(f"im{i}.jpg" for i in range(1, PHOTOS + 1))
    return PhotoFiles(names, photo.parent), CLASSES, labels, paper_split(split)


def _numbers(path: Path) -> NDArray[np.int64]:
    """The photo numbers in an annotation file."""
    if not path.is_file():
        raise DataError(f"{path}: this annotation file is missing; unpack mirflickr25k_annotations_v080 again")
    numbers = []
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not text.strip():
            continue
        if not text.strip().isdecimal() or not 1 <= int(text) <= PHOTOS:
            raise DataError(
                f"{path}:{line}: {text.strip()!r} is not the number of a photo (1 to {PHOTOS}); "
                "unpack mirflickr25k_annotations_v080 again"
            )
        numbers.append(int(text))
    return np.array(numbers, np.int64)


def paper_split(name: str) -> NDArray[np.uint8]:
    """The code of every photo in a published split; im1.jpg comes first.

    The file holds, for each split, a line with its name and the codes in base 85: two bits a photo, four
    photos a byte from the lowest bits up, 3 for unused.
    """
    text = (files("hyphash.datasets") / "flickr25k_split.txt").read_text(encoding="ascii")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    start = lines.index(f"split {name}") + 1
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("split ")), len(lines))
    packed = np.frombuffer(base64.b85decode("".join(lines[start:end])), np.uint8)
    codes = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)[:PHOTOS]
    return np.where(codes == 3, UNUSED, codes).astype(np.uint8)
