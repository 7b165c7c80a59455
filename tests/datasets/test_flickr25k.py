"""MIRFLICKR-25k: the pack, whole and in parts, and the official layout with the published splits."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from hyphash.datasets import load_dataset
from hyphash.datasets.flickr25k import CLASSES, DATABASE, PHOTOS, POTENTIAL, QUERIES, TRAIN, UNUSED, paper_split
from hyphash.errors import ConfigError, DataError, PhotoError
from hyphash.photos import decode

CODES = np.array([0, 1, 1, 2, 2, 255, 2, 0], np.uint8)


def write_pack(path, **changes):
    """A pack of eight photos whose bytes tell which one they are."""
    photos = [bytes([65 + i]) * (i + 3) for i in range(8)]
    labels = np.ones((8, 4), np.uint8)
    labels[5] = 0
    labels[2] = [0, 1, 0, 0]
    arrays = {
        "jpeg": np.frombuffer(b"".join(photos), np.uint8),
        "offset": np.cumsum([0, *map(len, photos)]),
        "ids": np.array([f"im{i + 1}.jpg" for i in range(8)]),
        "labels": labels,
        "classes": np.array(["bird", "bird_r1", "sea", "sky"]),
        "base24": np.array([0, 2, 3]),
        "split_hyp2": CODES,
        "split_deephash": np.where(CODES == UNUSED, DATABASE, CODES).astype(np.uint8),
    }
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return photos


def cut(path, pieces):
    data = path.read_bytes()
    size = -(-len(data) // pieces)
    for i in range(pieces):
        path.with_name(f"{path.name}.part{i}").write_bytes(data[i * size : (i + 1) * size])
    path.unlink()


def rows(splits):
    return [part.rows.tolist() for part in (splits.train, splits.queries, splits.database)]


def test_a_pack_has_the_split_of_its_codes(tmp_path):
    photos = write_pack(tmp_path / "flickr25k_128.npz")
    splits = load_dataset(tmp_path)
    assert rows(splits) == [[1, 2], [0, 7], [3, 4, 6]]
    assert splits.classes == ("bird", "bird_r1", "sea", "sky")
    assert splits.unlabelled == ("im6.jpg",)
    assert splits.database.path(0) is None
    assert [splits.database.read(i) for i in range(3)] == [photos[3], photos[4], photos[6]]
    assert [splits.database.name(i) for i in range(3)] == ["im4.jpg", "im5.jpg", "im7.jpg"]


def test_24_labels_and_the_other_split(tmp_path):
    write_pack(tmp_path / "pack.npz")
    splits = load_dataset(tmp_path / "pack.npz", labels=24, split="deephash")
    assert splits.classes == ("bird", "sea", "sky")
    assert rows(splits) == [[1], [0, 7], [3, 4, 6]]  # photo 2 carries only a label that the 24 lack
    assert "2 photos without labels left out" in splits.notes
    assert rows(load_dataset(tmp_path / "pack.npz", split="deephash", keep_unlabelled=True))[2] == [3, 4, 5, 6]


@pytest.mark.parametrize("pieces", [1, 2, 3, 11])
def test_parts_read_like_the_whole_wherever_they_are_cut(tmp_path, pieces):
    photos = write_pack(tmp_path / "flickr25k_128.npz")
    cut(tmp_path / "flickr25k_128.npz", pieces)
    for place in (tmp_path, tmp_path / "flickr25k_128.npz.part0"):
        source = load_dataset(place).train.photos
        assert [source.read(i) for i in range(len(source))] == photos


def test_workers_get_a_small_copy_and_read_the_same_bytes(tmp_path):
    photos = write_pack(tmp_path / "pack.npz")
    train = load_dataset(tmp_path / "pack.npz").train
    assert photos[1] not in pickle.dumps(train)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(train.read, 0).result() == photos[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.ones((7, 4), np.uint8)},
        {"offset": np.zeros(9, np.int64)},
        {"offset": np.arange(9)},
        {"split_hyp2": np.full(8, 9, np.uint8)},
        {"ids": None},
        {"jpeg": np.zeros(52, np.int64)},
    ],
)
def test_packs_that_do_not_fit_together_are_refused(tmp_path, changes):
    write_pack(tmp_path / "pack.npz", **changes)
    with pytest.raises(DataError, match=r"pack\.npz: .*pack.*copy"):
        load_dataset(tmp_path / "pack.npz")


def test_packs_that_are_no_packs_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "z.npz", jpeg=np.zeros(9, np.uint8))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("z.npz", "text.npz"):
        with pytest.raises(DataError, match=rf"{name}: not a whole Flickr-25k pack"):
            load_dataset(tmp_path / name)


def test_a_missing_part_is_named(tmp_path):
    write_pack(tmp_path / "flickr25k_128.npz")
    cut(tmp_path / "flickr25k_128.npz", 3)
    (tmp_path / "flickr25k_128.npz.part1").unlink()
    with pytest.raises(DataError, match=r"parts of the pack are missing; there is only .*part0, .*part2"):
        load_dataset(tmp_path)
    (tmp_path / "flickr25k_128.npz.part2").unlink()
    with pytest.raises(DataError, match="not a whole Flickr-25k pack"):
        load_dataset(tmp_path)


def test_a_pack_that_vanishes_costs_one_photo_error(tmp_path):
    write_pack(tmp_path / "pack.npz")
    train = load_dataset(tmp_path / "pack.npz").train
    (tmp_path / "pack.npz").write_bytes(b"")
    with pytest.raises(PhotoError, match=r"photo 'im2.jpg' is cut off"):
        train.read(0)
    (tmp_path / "pack.npz").unlink()
    with pytest.raises(PhotoError, match=r"pack.npz: cannot be read"):
        train.read(0)


def test_wrong_options_and_missing_data_say_the_way_out(tmp_path):
    with pytest.raises(ConfigError, match="labels=25; it is 38 or 24"):
        load_dataset(tmp_path, name="flickr25k", labels=25)
    with pytest.raises(ConfigError, match="it is 'hyp2' or 'deephash'"):
        load_dataset(tmp_path, name="flickr25k", split="mine")
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"MIRFLICKR page.*mirflickr25k_annotations_v080.*mirflickr/im1\.jpg"):
            load_dataset(place, name="flickr25k")


# ── the official layout ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """All 25,000 file names (empty files) and annotations by a rule: label j on every photo i with i % 40 == j."""
    root = tmp_path_factory.mktemp("official")
    (root / "mirflickr").mkdir()
    for i in range(1, PHOTOS + 1):
        (root / "mirflickr" / f"im{i}.jpg").touch()
    annotations = root / "mirflickr25k_annotations_v080"
    annotations.mkdir()
    for j, label in enumerate(CLASSES):
        numbers = [str(i) for i in range(1, PHOTOS + 1) if i % 40 == j or (j == 0 and i % 40 > 37)]
        (annotations / f"{label}.txt").write_text("\n".join(numbers) + "\n")
    (annotations / "README.txt").write_text("MIRFLICKR-25000 annotations")
    return root


def test_the_official_layout_has_the_published_split(official):
    splits = load_dataset(official)
    assert splits.classes == tuple(CLASSES)
    assert [len(part) for part in rows(splits)] == [4000, 1000, 19581]
    for part, code in ((splits.train, TRAIN), (splits.queries, QUERIES), (splits.database, DATABASE)):
        assert np.array_equal(part.rows, np.flatnonzero(paper_split("hyp2") == code))
        assert part.labels.sum(axis=1).tolist() == [1] * len(part)
        assert part.name(0) == f"im{part.rows[0] + 1}.jpg"
        number = part.rows[7] + 1
        assert part.labels[7].argmax() == (0 if number % 40 > 37 else number % 40)
        assert part.path(0) == official / "mirflickr" / part.name(0)
    fewer = load_dataset(official, labels=24, split="deephash")
    assert fewer.classes == POTENTIAL
    assert sum(len(part) for part in rows(fewer)) + len(fewer.unlabelled) == PHOTOS


def test_damage_in_the_official_layout_is_named(official, tmp_path):
    (tmp_path / "mirflickr").symlink_to(official / "mirflickr")
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    for file in (official / "mirflickr25k_annotations_v080").iterdir():
        (annotations / file.name).write_bytes(file.read_bytes())
    (annotations / "sea.txt").write_text("12\n25001\n")
    with pytest.raises(DataError, match=r"sea.txt:2: '25001' is not the number of a photo"):
        load_dataset(tmp_path, name="flickr25k")
    (annotations / "sea.txt").unlink()
    with pytest.raises(DataError, match=r"sea.txt: this annotation file is missing"):
        load_dataset(tmp_path, name="flickr25k")


def test_missing_photos_of_the_official_layout(official, tmp_path):
    (tmp_path / "mirflickr25k_annotations_v080").symlink_to(official / "mirflickr25k_annotations_v080")
    (tmp_path / "mirflickr").mkdir()
    for i in range(1, 2001):
        (tmp_path / "mirflickr" / f"im{i}.jpg").touch()
    with pytest.raises(DataError, match=r"22,\d\d\d photos listed but not there: 'im2001.jpg'"):
        load_dataset(tmp_path)
    splits = load_dataset(tmp_path, skip_missing=True)
    assert sum(len(part) for part in rows(splits)) == 2000 - (paper_split("hyp2")[:2000] == UNUSED).sum()


# ── the real thing ───────────────────────────────────────────────────────────────────────────────────────


def test_the_published_splits_are_the_ones_of_the_pack(shared_data):
    splits = load_dataset(shared_data / "flickr25k")
    assert splits.classes == tuple(CLASSES)
    assert [len(part) for part in rows(splits)] == [4000, 1000, 19581]
    assert len(splits.unlabelled) == 419
    codes = paper_split("hyp2")
    assert [np.flatnonzero(codes == code).tolist() for code in (TRAIN, QUERIES, DATABASE)] == rows(splits)
    other = load_dataset(shared_data / "flickr25k", split="deephash", keep_unlabelled=True, labels=24)
    assert other.classes == POTENTIAL
    codes = paper_split("deephash")
    assert [np.flatnonzero(codes == code).tolist() for code in (TRAIN, QUERIES, DATABASE)] == rows(other)
    assert [len(part) for part in rows(other)] == [4000, 1000, 20000]


def test_photos_of_the_pack_decode_across_the_cuts_of_its_parts(shared_data):
    photos = load_dataset(shared_data / "flickr25k").train.photos
    ends = photos.start + photos.offset
    cuts = np.cumsum(photos.sizes)[:-1]
    across = [int(np.searchsorted(ends, cut, "right")) - 1 for cut in cuts]
    for i in (0, *across, len(photos) - 1):
        assert decode(photos.read(i), photos.name(i)).size == (128, 128)


def test_published_splits_have_their_sizes():
    hyp2, deephash = paper_split("hyp2"), paper_split("deephash")
    assert [(hyp2 == code).sum() for code in (QUERIES, TRAIN, DATABASE, UNUSED)] == [1000, 4000, 19581, 419]
    assert [(deephash == code).sum() for code in (QUERIES, TRAIN, DATABASE, UNUSED)] == [1000, 4000, 20000, 0]
