"""Tags go home: read back the same, nothing else changes in any file, and what files say otherwise is shown."""

import csv
import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from raw import dng

from hyphash.collection import Collection
from hyphash.collection.write_tags import Tags, write_tags
from hyphash.datasets import with_parents
from hyphash.photos import Problem, metadata
from hyphash.photos.metadata import HIERARCHICAL, Packet

COLUMNS = (  # what exiftool writes into the photos that are drawn
    "EXIF:DateTimeOriginal", "EXIF:Make", "EXIF:Model", "EXIF:GPSLatitude", "EXIF:GPSLatitudeRef", "EXIF:GPSLongitude",
    "EXIF:GPSLongitudeRef", "EXIF:ExposureTime", "EXIF:ImageDescription", "XMP-dc:Title", "XMP-xmp:Rating",
    "XMP-dc:Creator", "XMP-photoshop:City", "IPTC:City", "IPTC:Caption-Abstract", "XMP-dc:Subject", "IPTC:Keywords",
)  # fmt: skip
KINDS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF"}


def written(collection: Collection, **choices: Any) -> list[Tags]:
    found = list(write_tags(collection, collection.all_photos(), **choices))
    assert not [one for one in found if isinstance(one, Problem)]
    return [one for one in found if isinstance(one, Tags)]


def statuses(collection: Collection, **choices: Any) -> dict[str, str]:
    return {Path(tags.path).name: tags.status for tags in written(collection, **choices)}


def keywords(path: Path) -> list[str]:
    return sorted(metadata.read(path.read_bytes(), path).keywords)


def reindexed(collection: Collection, photos: list[Path]) -> Any:
    return collection.add(photos, labels=[keywords(path) for path in photos])


@pytest.mark.parametrize("embed", [False, True])
def test_labels_are_read_back_and_nothing_happens_twice(
    filled: Collection, hasher: Any, photos: list[Path], embed: bool
) -> None:
    filled.relabel(1, ["animal/cat", "sea", "Übung"])
    before = {photo.id: (photo.labels, photo.refused, photo.code, photo.added) for photo in filled.all_photos()}
    pictures = {photo.id: filled.thumbnail(photo.id) for photo in filled.all_photos()}
    encoded = hasher.encoder.encoded
    done = statuses(filled, embed=embed)
    assert set(done.values()) == {"written"}
    assert len(done) == 8  # nobody has said anything of the other two
    for photo in filled.all_photos():
        assert with_parents(keywords(Path(photo.path))) == photo.labels
    assert set(statuses(filled, embed=embed).values()) == {"unchanged"}
    result = reindexed(filled, photos)
    assert (result.added, result.moved, result.problems) == (0, 0, ())
    assert reindexed(filled, photos).unchanged == 10
    after = {photo.id: (photo.labels, photo.refused, photo.code, photo.added) for photo in filled.all_photos()}
    assert after == before
    assert hasher.encoder.encoded == encoded  # the same photos still, though their files are others
    assert {photo.id: filled.thumbnail(photo.id) for photo in filled.all_photos()} == pictures
    assert filled.verify() == []
    assert len(list(photos[0].parent.iterdir())) == (10 if embed else 18)


def test_nothing_is_written_by_a_dry_run(filled: Collection, photos: list[Path]) -> None:
    before = {path: path.read_bytes() for path in photos}
    for embed in (False, True):
        assert set(statuses(filled, embed=embed, dry_run=True).values()) == {"planned"}
    assert {path: path.read_bytes() for path in photos[0].parent.iterdir()} == before


def test_conflicts_are_shown_and_nothing_is_lost_unless_asked(filled: Collection, photos: list[Path]) -> None:
    sidecar = photos[0].with_name("0.jpg.xmp")
    sidecar.write_bytes(Packet().having(["tree"]).replace(b"hyphash:written", b"hyphash:other"))
    before = sidecar.read_bytes()
    (tags,) = (tags for tags in written(filled) if tags.id == 1)
    assert (tags.status, tags.unknown, tags.dropped) == ("conflict", ("tree",), ())
    assert sidecar.read_bytes() == before
    assert statuses(filled, conflicts="keep")["0.jpg"] == "written"
    assert keywords(photos[0]) == ["cat", "tree"]
    assert statuses(filled, conflicts="keep")["0.jpg"] == "unchanged"
    assert statuses(filled)["0.jpg"] == "conflict"  # still not ours
    assert statuses(filled, conflicts="ours")["0.jpg"] == "written"
    assert keywords(photos[0]) == ["cat"]


def test_what_was_removed_here_goes_and_what_was_removed_there_is_shown(filled: Collection, photos: list[Path]) -> None:
    written(filled)
    filled.refuse(2, "sea")  # here: ours to take away again
    assert statuses(filled)["1.jpg"] == "written"
    assert keywords(photos[1]) == ["cat"]
    sidecar = photos[1].with_name("1.jpg.xmp")  # there: another program took out the only keyword
    sidecar.write_bytes(Packet(sidecar.read_bytes()).having([]).replace(b"<rdf:Bag></rdf:Bag></hyphash", b"<rdf:Bag>"
        b"<rdf:li>cat</rdf:li></rdf:Bag></hyphash"))  # fmt: skip
    (tags,) = (tags for tags in written(filled) if tags.id == 2)
    assert (tags.status, tags.unknown, tags.dropped) == ("conflict", (), ("cat",))
    assert statuses(filled, conflicts="keep")["1.jpg"] == "unchanged"
    assert keywords(photos[1]) == []
    assert statuses(filled, conflicts="ours")["1.jpg"] == "written"
    assert keywords(photos[1]) == ["cat"]


def test_a_keyword_that_is_a_level_of_ours_is_no_conflict(filled: Collection, photos: list[Path]) -> None:
    photos[0].with_name("0.jpg.xmp").write_bytes(Packet().having(["cat", "animal"]))
    filled.relabel(1, ["animal/cat"])
    assert statuses(filled)["0.jpg"] == "written"
    assert keywords(photos[0]) == ["animal/cat"]


def test_the_sidecars_that_are_there_are_used(filled: Collection, photos: list[Path], draw: Any) -> None:
    folder = photos[0].parent
    for name in ("0.xmp", "1.xmp", "2.xmp", "2.jpg.xmp"):
        (folder / name).write_bytes(Packet().having([]))
    draw(folder / "1.png", 99)  # 1.xmp is of two photos now, and so of neither alone
    written(filled)
    assert not (folder / "0.jpg.xmp").exists()
    for name in ("0.xmp", "1.jpg.xmp", "2.xmp", "2.jpg.xmp", "3.jpg.xmp"):
        assert Packet((folder / name).read_bytes()).lists[0][1]
    assert not Packet((folder / "1.xmp").read_bytes()).lists[0][1]


def test_new_sidecars_by_the_stem(filled: Collection, photos: list[Path]) -> None:
    written(filled, stem=True)
    assert keywords(photos[0]) == ["cat"]
    assert {path.name for path in photos[0].parent.glob("*.xmp")} == {f"{i}.xmp" for i in (0, 1, 2, 3, 5, 6, 7, 9)}


def test_what_cannot_be_written_is_a_problem_and_the_others_are_written(filled: Collection, photos: list[Path]) -> None:
    photos[0].with_name("0.jpg.xmp").write_bytes(b"<damaged")
    photos[1].unlink()
    filled.relabel(3, ["bell\x07"])
    filled.add_bytes(photos[2].read_bytes() + b"\0", "came.jpg", labels=["cat"])
    photos[5].write_bytes(photos[2].read_bytes())  # with embed, a file that is not what was indexed
    found = list(write_tags(filled, filled.all_photos(), embed=True))
    problems = [one.reason for one in found if isinstance(one, Problem)]
    assert [re.sub(r": line .*|; .*", "", reason.rpartition("/")[2]) for reason in problems] == [
        "0.jpg: its tags cannot be written (no XMP (unclosed token",
        "1.jpg: there is no such photo",
        "2.jpg: its tags cannot be written (no XMP (not well-formed (invalid token)",
        "5.jpg: has changed since it was indexed",
        "came.jpg: came from no file, so nothing can be written beside it",
    ]
    assert photos[0].with_name("0.jpg.xmp").read_bytes() == b"<damaged"
    assert sum(isinstance(one, Tags) and one.status == "written" for one in found) == 4


def test_a_photo_keeps_its_rights_and_a_link_stays_one(filled: Collection, photos: list[Path], tmp_path: Path) -> None:
    photos[0].chmod(0o640)
    photos[1].rename(tmp_path / "elsewhere.jpg")
    photos[1].symlink_to(tmp_path / "elsewhere.jpg")
    written(filled, embed=True)
    assert stat.S_IMODE(photos[0].stat().st_mode) == 0o640
    assert photos[1].is_symlink()
    assert keywords(tmp_path / "elsewhere.jpg") == ["cat", "sea"]
    assert filled.original(1) == photos[0].read_bytes()


def test_an_original_that_is_kept_is_kept_as_it_is_now(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos[:1], labels=[["cat"]], keep=True)
    written(collection, embed=True)
    photos[0].unlink()
    assert b"hyphash:written" in collection.original(1)


def picture(mode: str = "RGB", seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)).convert(mode)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("TIFF", "RGB", {"save_all": True, "append_images": [picture(seed=1), picture("L", 2)]}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("PNG", "RGB", {"save_all": True, "append_images": [picture(seed=1)]}),
        ("PNG", "P", {}),
        ("WEBP", "RGBA", {}),
        ("WEBP", "RGB", {"save_all": True, "append_images": [picture(seed=1)], "lossless": True}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "L", {"progressive": True}),
        ("MPO", "RGB", {"save_all": True, "append_images": [picture(seed=1)]}),  # a second JPEG behind the first
    ],
)
def test_every_frame_and_what_lies_behind_the_photo_stays(
    collection: Collection, tmp_path: Path, kind: str, mode: str, options: dict[str, Any]
) -> None:
    path = tmp_path / "photo"
    picture(mode).save(path, kind, **options)
    path.write_bytes(path.read_bytes() + (b"and a short film" if kind in ("JPEG", "MPO") else b""))
    before = frames(path)
    collection.add([path], labels=[["animal/dog", "Übung"]])
    assert statuses(collection, embed=True) == {"photo": "written"}
    assert frames(path) == before
    assert keywords(path) == ["animal/dog", "Übung"]
    assert path.read_bytes().endswith(b"film") == (kind in ("JPEG", "MPO"))
    assert statuses(collection, embed=True) == {"photo": "unchanged"}


def frames(path: Path) -> list[tuple[str, bytes]]:
    with Image.open(path) as image:
        return [(frame.mode, frame.tobytes()) for frame in ImageSequence.Iterator(image)]


def test_what_exiv2_cannot_write_into_is_told_with_the_way_out(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "big.tif"
    picture().save(path, "TIFF", big_tiff=True)
    before = path.read_bytes()
    collection.add([path], labels=[["dog"]])
    (problem,) = write_tags(collection, collection.all_photos(), embed=True)
    assert isinstance(problem, Problem)
    assert re.search(r"big\.tif: tags cannot be written into it \(.*\); leave out --embed", problem.reason)
    assert path.read_bytes() == before


def test_a_raw_gets_a_sidecar_and_stays_as_it_is(collection: Collection, photos: list[Path]) -> None:
    raw = photos[0].with_name("raw.dng")
    raw.write_bytes(dng(Image.open(photos[0])))
    before = raw.read_bytes()
    assert collection.add([raw], labels=[["animal/cat"]]).added == 1
    assert statuses(collection, embed=True) == {"raw.dng": "written"}
    assert raw.read_bytes() == before
    assert Packet(raw.with_name("raw.dng.xmp").read_bytes()).words(HIERARCHICAL) == ["animal/cat"]


# ── other programs as judges ─────────────────────────────────────────────────────────────────────────────


def exiftool(*arguments: Any) -> str:
    command = ["exiftool", "-q", "-q", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fields(folder: Path) -> dict[str, dict[str, Any]]:
    """All that exiftool finds in photos and sidecars, but for keywords and facts of the file system."""
    ours = ("Subject", "HierarchicalSubject", "Keywords", "Written", "CodedCharacterSet", "EnvelopeRecordVersion")
    changing = ("System", "ExifTool", "Composite", "SourceFile", "CurrentIPTCDigest", "ExifByteOrder")

    def stays(key: str) -> bool:
        place, _, name = key.rpartition(":")
        return place not in changing and name not in (*ours, *changing) and "Offset" not in name

    records = json.loads(exiftool("-j", "-G1", "-a", "-struct", "-n", "-b", folder))
    return {Path(one["SourceFile"]).name: {k: v for k, v in one.items() if stays(k)} for one in records}


def exif_values(paths: list[Path]) -> list[str]:
    """All EXIF as exiv2 prints it, but for the places of things in the file and tags that hold XMP and IPTC."""
    command = ["exiv2", "-q", "-PEkyct", "pr", *map(str, paths)]
    lines = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    moving = ("ExifTag", "GPSTag", "StripOffsets", "XMLPacket", "IPTCNAA", "ImageResources")
    return [line for line in lines if not any(f".{name} " in line for name in moving)]


def drawn(folder: Path, count: int) -> list[Path]:
    """Photos of all formats with dates, places, cameras, titles and words of others."""
    rng, paths = np.random.default_rng(7), []
    for i in range(count):
        ending = [*KINDS][i % len(KINDS)]
        path = folder / f"{i:03}.{ending}"
        pixels = rng.integers(0, 256, (24 + i % 5, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, KINDS[ending])
        paths.append(path)
    with (folder.parent / "facts.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["SourceFile", *COLUMNS])
        for i, path in enumerate(paths):
            date = f"{rng.integers(1990, 2026)}:{rng.integers(1, 13):02}:{rng.integers(1, 29):02} 12:{i % 60:02}:00"
            iptc = ["Malmö", f"Caption {i}"] if path.suffix in (".jpg", ".tif") and i % 3 else ["", ""]
            xmp = [f"Title & <{i}>", i % 6, "Åsa", "Zürich"] if i % 4 < 3 else [""] * 4
            own = "old" if i % 5 == 0 else ""
            place = [round(rng.uniform(0, 90), 5), "NS"[i % 2], round(rng.uniform(0, 180), 5), "EW"[i % 2]]
            camera = [f"Maker {i % 7}", f"Model {i % 11}"]
            words = [own, own if iptc[0] else ""]
            table.writerow([path, date, *camera, *place, f"1/{i + 1}", f"Words {i}", *xmp, *iptc, *words])
    exiftool("-overwrite_original", "-codedcharacterset=utf8", f"-csv={folder.parent / 'facts.csv'}", folder)
    return paths


@pytest.mark.slow
@pytest.mark.needs("libimage-exiftool-perl", "exiv2")
def test_two_hundred_files_of_all_formats_lose_no_field_and_no_pixel(collection: Collection, tmp_path: Path) -> None:
    (folder := tmp_path / "photos").mkdir()
    paths = drawn(folder, 200)
    labels = [[["animal/dog", "sea"], ["Übung", "wood"], ["犬", "animal/dog", "a & b"]][i % 3] for i in range(200)]
    collection.add(paths, labels=labels)
    pixels = [np.asarray(Image.open(path)) for path in paths]
    scans = [path.read_bytes().partition(b"\xff\xda")[2] for path in paths if path.suffix == ".jpg"]
    before, exif, facts = fields(folder), exif_values(paths), [metadata.read(path.read_bytes()) for path in paths]
    done = written(collection, embed=True)
    assert [tags.status == "conflict" for tags in done] == [i % 5 == 0 for i in range(200)]  # the word that is not ours
    written(collection, embed=True, conflicts="ours")
    assert all((np.asarray(Image.open(path)) == old).all() for path, old in zip(paths, pixels, strict=True))
    assert [path.read_bytes().partition(b"\xff\xda")[2] for path in paths if path.suffix == ".jpg"] == scans
    after = fields(folder)
    for name, found in before.items():
        assert {key: after[name].get(key) for key in found} == found, name
    assert len(exif) > 2000
    assert exif_values(paths) == exif
    names = ("-Subject", "-HierarchicalSubject", "-Keywords")
    listed = {one["SourceFile"]: one for one in json.loads(exiftool("-j", "-charset", "iptc=utf8", *names, folder))}
    for path, words, old in zip(paths, labels, facts, strict=True):
        record = listed[str(path)]
        now = metadata.read(path.read_bytes())
        assert (now.taken, now.camera, now.latitude, now.longitude) == (
            old.taken,
            old.camera,
            old.latitude,
            old.longitude,
        )
        assert now.taken
        assert now.latitude
        levels = sorted({level for word in words for level in word.split("/")})
        assert record["Subject"] == levels
        assert record["HierarchicalSubject"] == sorted(word.replace("/", "|") for word in words)
        assert "Keywords" not in record if path.suffix in (".png", ".webp") else record["Keywords"] == levels
    assert set(statuses(collection, embed=True).values()) == {"unchanged"}
    assert collection.verify() == []


@pytest.mark.needs("libimage-exiftool-perl", "exiv2")
def test_other_programs_read_our_sidecars_and_theirs_lose_nothing(filled: Collection, photos: list[Path]) -> None:
    theirs = photos[0].with_name("0.jpg.xmp")
    lists = {"XMP-lr:HierarchicalSubject": "cat", "XMP-digiKam:TagsList": "cat"}
    facts = lists | {"XMP-dc:Title": "Sunny & warm", "XMP-xmp:Rating": 4, "XMP-xmp:CreateDate": "2020:01:02 03:04:05"}
    exiftool(*(f"-{key}={value}" for key, value in facts.items()), theirs)
    before = json.loads(exiftool("-j", "-G1", "-struct", "-XMP:all", theirs))[0]
    filled.relabel(1, ["animal/cat", "sea"])
    written(filled)
    after = json.loads(exiftool("-j", "-G1", "-struct", "-XMP:all", theirs))[0]
    assert after["XMP-digiKam:TagsList"] == ["animal/cat", "sea"]
    assert after["XMP-lr:HierarchicalSubject"] == ["animal|cat", "sea"]
    assert after["XMP-dc:Subject"] == ["animal", "cat", "sea"]
    assert {key: value for key, value in before.items() if key not in lists}.items() <= after.items()
    for sidecar in photos[0].parent.glob("*.xmp"):
        shown = subprocess.run(["exiv2", "-PXkt", "pr", sidecar], check=True, capture_output=True, text=True)
        assert "Xmp.dc.subject" in shown.stdout
        assert not shown.stderr
