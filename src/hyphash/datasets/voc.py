"""PASCAL VOC: photos with boxes around objects of 20 classes, of which hashing uses the classes.

    VOCdevkit/VOC2007/JPEGImages/000001.jpg …
    VOCdevkit/VOC2007/Annotations/000001.xml …
    VOCdevkit/VOC2007/ImageSets/Main/trainval.txt, test.txt      (VOC-2012: train.txt, val.txt)

|          | train = database  | queries       |
| voc2007  | 5,011 (trainval)  | 4,952 (test)  |
| voc2012  | 5,717 (train)     | 5,823 (val)   |

`voc` reads photos of one's own in the same layout: any classes, lists trainval/test or train/val if there are
any, else a seeded split.
"""

from pathlib import Path, PurePath
from xml.etree import ElementTree

import numpy as np

from hyphash.datasets import PUBLISHED, Parts, Remarks, Rows, absent, assemble, datasets, multi_hot
from hyphash.datasets.folder import photos_under
from hyphash.datasets.own import OWN, Choices, Row, own_photos
from hyphash.errors import DataError, LabelError
from hyphash.photos import PhotoFiles

CLASSES = tuple(PUBLISHED["voc"]["classes"])
LISTS = {"VOC2007": ("trainval", "test"), "VOC2012": ("train", "val")}


@datasets("voc2007")
def voc2007(path: Path, *, difficult: bool = True, skip_missing: bool = False) -> Rows:
    """PASCAL VOC 2007: trainval to train on and search in, test as queries.

    difficult     whether objects marked difficult count; in the paper they do
    skip_missing  leave out photos that are not there
    """
    return _benchmark(path, "VOC2007", difficult, skip_missing)


@datasets("voc2012")
def voc2012(path: Path, *, difficult: bool = True, skip_missing: bool = False) -> Rows:
    """PASCAL VOC 2012: train to train on and search in, val as queries. Its options are those of voc2007."""
    return _benchmark(path, "VOC2012", difficult, skip_missing)


@datasets("voc")
def voc(path: Path, *, difficult: bool = True, choices: Choices = OWN) -> Rows:
    """Your own photos in the layout of a VOC devkit: JPEGImages, Annotations, perhaps ImageSets.

    difficult  whether objects marked difficult count
    """
    root = _devkit(path)
    remarks = Remarks()
    split_of = _own_lists(root, remarks.notes)
    by_stem = {PurePath(name).stem: name for name in photos_under(root / "JPEGImages")}
    rows = []
    for file in sorted((root / "Annotations").glob("*.xml")):
        if split_of and file.stem not in split_of:
            continue
        named, labels = _read_annotation(file, difficult)
        image = by_stem.get(file.stem, named or f"{file.stem}.jpg")
        rows.append(Row(image, tuple(sorted(labels)), str(file), split_of.get(file.stem, ())))
    return own_photos("voc", rows, root, choices=choices, remarks=remarks, root=root / "JPEGImages")


def _benchmark(path: Path, year: str, difficult: bool, skip_missing: bool) -> Rows:
    root = _devkit(path, year)
    train, queries = (_ids(root / "ImageSets" / "Main" / f"{name}.txt") for name in LISTS[year])
    if shared := sorted(set(train) & set(queries)):
        raise DataError(f"{root}: photo {shared[0]!r} is in both image sets; unpack the devkit again")
    ids = [*train, *queries]
    label_sets = []
    for name in ids:
        file = root / "Annotations" / f"{name}.xml"
        _, labels = _read_annotation(file, difficult)
        if unknown := sorted(set(labels) - set(CLASSES)):
            raise LabelError(
                f"{file}: {unknown[0]!r} is none of the 20 classes of VOC; read photos of your own with --dataset voc"
            )
        label_sets.append(labels)
    photos = PhotoFiles(tuple(f"{name}.jpg" for name in ids), root / "JPEGImages")
    trained, asked = np.split(np.arange(len(ids)), [len(train)])
    table, parts = multi_hot(label_sets, CLASSES), Parts(trained, asked, trained)
    return assemble(year.lower(), CLASSES, photos, table, parts=parts, skip_missing=skip_missing)


def _devkit(path: Path, year: str = "VOC*") -> Path:
    """The folder with Annotations and JPEGImages, of the year where one is given."""
    for place in (*sorted(path.glob(f"VOCdevkit/{year}")), *sorted(path.glob(year)), path):
        if (place / "Annotations").is_dir() and (place / "JPEGImages").is_dir():
            return place
    archives = {"VOC2007": "trainval and test archives", "VOC2012": "trainval archive"}.get(year, "devkit")
    raise absent(path, "voc", title=year.replace("VOC", "PASCAL VOC "), archives=archives, year=year)


def _ids(file: Path) -> list[str]:
    """The photos of an image set; those with a class in their name add a column of 1, 0 and −1."""
    if not file.is_file():
        raise DataError(f"{file}: this image set is missing; unpack both the trainval and the test archive")
    return [line.split()[0] for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def _own_lists(root: Path, notes: list[str]) -> dict[str, tuple[str, ...]]:
    """The part of every photo that ImageSets/Main names; empty where it names no queries."""
    main = root / "ImageSets" / "Main"
    for train, queries in LISTS.values():
        if (main / f"{train}.txt").is_file() and (main / f"{queries}.txt").is_file():
            notes.append(f"split of ImageSets/Main: {train} to train on and search in, {queries} as queries")
            rest: dict[str, tuple[str, ...]] = dict.fromkeys(_ids(main / f"{train}.txt"), ("database", "train"))
            return rest | dict.fromkeys(_ids(main / f"{queries}.txt"), ("queries",))
    return {}


def _read_annotation(file: Path, difficult: bool) -> tuple[str, set[str]]:
    """The photo's file name, and the classes of the objects in it."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
            raise LabelError(f"{file}: an annotation that defines entities is not read; remove the DOCTYPE")
        root = ElementTree.fromstring(text)
    except FileNotFoundError:
        raise DataError(f"{file}: this annotation is missing; unpack the devkit again") from None
    except (ElementTree.ParseError, UnicodeDecodeError, ValueError) as error:
        raise LabelError(f"{file}: not an XML annotation ({error}); unpack or export it again") from None
    objects = (item for item in root.iterfind("object") if difficult or item.findtext("difficult", "0").strip() != "1")
    return root.findtext("filename", "").strip(), {item.findtext("name", "").strip() for item in objects} - {""}
