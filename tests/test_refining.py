"""A collection that is learned from: what was said counts, and only a better hasher is taken."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hyphash import refining
from hyphash.collection import Collection
from hyphash.collection.records import AddResult
from hyphash.datasets import load_dataset
from hyphash.errors import DataError, HyphashError, StoppedError
from hyphash.refining import Gain, Stage, due, last_refinement, noting, progress, refine, take_in

COLOURS = {"red": (130, 0, 0), "green": (0, 130, 0), "blue": (0, 0, 130)}


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def photos(photo, tmp_path_factory):
    """90 photos, their labels the one or two colours in them."""
    folder, labels = tmp_path_factory.mktemp("photos"), []
    for i in range(90):
        names = [*COLOURS][i % 3], [*COLOURS][(i + i // 3 % 2) % 3]
        colour = tuple(max(COLOURS[name][c] for name in names) for c in range(3))
        (folder / f"{i:03}.png").write_bytes(photo(i, size=36, colour=colour))
        labels.append(sorted({*names}))
    return folder, labels


@pytest.fixture
def collection(tiny_hasher, photos, tmp_path):
    """A collection of an untrained hasher, with features of all its photos, and the cache of these."""
    folder, cache = tmp_path / "collection", tmp_path / "cache"
    with Collection.create(folder, tiny_hasher(anchors=False)) as made:
        made.add(photos[0], labels=photos[1], cache=cache)
    return folder, cache


@pytest.fixture
def short(monkeypatch):
    """Trainings of twenty epochs."""
    config, small = refining.Config, {"epochs": 20, "hidden": 32, "device": "cpu"}
    monkeypatch.setattr(refining, "Config", lambda **settings: config(**settings | small))


def test_the_collection_is_a_dataset_of_what_people_said(collection, photos):
    folder, _ = collection
    with Collection.open(folder) as opened:
        opened.relabel(1, ["mine"])
        opened.relabel(2, [])
        opened.refuse(4, "red")
        contents = {Path(photo.path).name: photo.facts.content for photo in opened.all_photos()}
    splits = load_dataset(folder)
    assert (splits.name, splits.classes) == ("collection", ("blue", "green", "mine", "red"))
    assert len(splits.train) + len(splits.queries) == 89 - (len(photos[1][3]) == 1)
    held_out = {Path(splits.queries.name(i)).name for i in range(len(splits.queries))}
    assert held_out == {
        name for name, content in contents.items() if int(content[:8], 16) % 10 == 0 and name != "001.png"
    }
    assert set(load_dataset(folder, min_count=2).classes) == {*COLOURS}


def test_a_collection_of_which_nothing_was_said_teaches_nothing(tiny_hasher, photo_files, tmp_path):
    with Collection.create(tmp_path / "c", tiny_hasher()) as made:
        made.add(photo_files(3))
    with pytest.raises(DataError, match="no photo carries a label"):
        load_dataset(tmp_path / "c")


def test_a_better_hasher_is_taken_and_one_that_is_not_better_is_not(collection, short, monkeypatch):
    """No photo is decoded: what was kept of them is enough to learn from, to compare and to move."""
    folder, cache = collection
    told: list[Stage] = []
    monkeypatch.setenv("HYPHASH_CACHE", str(cache))
    monkeypatch.setattr("hyphash.photos.decode", lambda *_args, **_options: pytest.fail("a photo was decoded"))
    first, second = (refine(folder, cache, tell=told.append, stop=never) for _ in range(2))
    assert first.moved
    assert first.search.after > first.search.before + 0.1
    assert first.suggestions.after > 0.9
    assert {stage.what for stage in told} == {"photos", "epochs", "codes"}
    assert (second.moved, second.search.before, second.search.p) == (False, first.search.after, 1.0)
    assert last_refinement(folder) == second
    with Collection.open(folder) as opened:
        assert opened.hasher.classes == ("blue", "green", "red")
        assert [(line.what, line.photos) for line in opened.log.recent(9)] == [("refined", first.photos), ("added", 90)]
        assert opened.verify() == []
        assert opened.search(labels=["red"], k=1)[0].known
        assert due(opened) == (first.said, 0, False)
    assert not (folder / refining.RUN).exists()
    assert progress(folder) == Stage("epochs", 20, 20)


def test_stopped_it_leaves_the_collection_as_it_was(collection, short):
    folder, cache = collection
    with Collection.open(folder) as opened:
        before = opened.hasher.fingerprint
    with pytest.raises(StoppedError, match="the hasher that it has stays"):
        refine(folder, cache, tell=lambda _: None, stop=lambda: True)
    assert progress(folder).error.endswith("the hasher that it has stays")
    with Collection.open(folder) as opened:
        assert opened.hasher.fingerprint == before
        assert due(opened)[1:] == (due(opened)[0], True)


def test_photos_are_taken_in_and_learned_from_once_enough_is_said(tiny_hasher, photos, tmp_path, short):
    folder = tmp_path / "c"
    Collection.create(folder, tiny_hasher(anchors=False)).close()
    with pytest.raises(StoppedError, match=r"stopped after \d+ photos; given again, it goes on"):
        take_in(folder, photos[0], photos[1], tmp_path, tell=lambda _: None, stop=lambda: True)
    few = [[]] * 90
    assert take_in(folder, photos[0], few, tmp_path, tell=lambda _: None, stop=never) == (
        AddResult(added=26, updated=64),
        None,
    )
    _, result = take_in(folder, photos[0], photos[1], tmp_path, tell=lambda _: None, stop=never)
    assert result is not None
    assert result.moved
    with Collection.open(folder) as opened:
        assert len(opened) == 90


def test_dates_are_read_where_nobody_else_is_at_work(collection, monkeypatch):
    folder, _ = collection
    seen = []
    with Collection.open(folder) as opened:
        photos = {photo.id: replace(photo.facts, camera=None) for photo in opened.photos(0, 3)}
        opened.store.relabel_all({id: lambda p: replace(p, facts=photos[p.id]) for id in photos})
        monkeypatch.setattr(refining, "note", lambda _, stage: seen.append(stage))
        refining.read_dates(opened, never)
        assert seen == [Stage("dates", 3, 3, process=os.getpid())]
        assert opened.get(1).facts.camera == ""
        opened.store.relabel_all({id: lambda p: replace(p, facts=photos[p.id]) for id in photos})
        monkeypatch.setattr(refining, "progress", lambda _: Stage("photos", 1, 9, process=os.getpid() + 1))
        refining.read_dates(opened, never)
        assert (len(seen), opened.get(1).facts.camera) == (1, "")


def test_progress_is_noted_until_its_process_ends(tmp_path):
    assert progress(tmp_path) == Stage()
    with noting(tmp_path, lambda _: None) as tell:
        assert progress(tmp_path).process == os.getpid()
        tell(Stage("photos", 3, 9))
        assert progress(tmp_path)[:3] in (("photos", 3, 9), ("", 0, 0))
    assert progress(tmp_path) == Stage("photos", 3, 9)
    with pytest.raises(HyphashError, match="no luck"), noting(tmp_path, lambda _: None):
        raise HyphashError("no luck")
    assert progress(tmp_path) == Stage(error="no luck")


def test_work_has_ended_of_which_nothing_is_heard_whoever_has_its_number_now(tmp_path, monkeypatch):
    """After a power cut the number belongs to another process, here one of another user."""
    note, work = tmp_path / refining.PROGRESS, Stage("epochs", 1, 2, process=1)
    note.write_text(json.dumps(work))
    assert progress(tmp_path) == work
    os.utime(note, (time.time() - 2 * refining.LOST,) * 2)
    assert progress(tmp_path).process == 0
    assert "has ended" in progress(tmp_path).error
    monkeypatch.setattr(refining, "RENEWED", 0.01)
    with noting(tmp_path, lambda _: None):
        os.utime(note, (1, 1))
        for _ in range(1000):
            if progress(tmp_path).process == os.getpid():
                break
            time.sleep(0.01)
        assert progress(tmp_path).process == os.getpid()
    assert progress(tmp_path) == Stage()


@pytest.mark.parametrize(
    "text", ["", "torn [", "{}", "7", "[1, 2]", '["photos", "many", 3, 0, ""]', '["", 1, 2, 1e999, ""]', "[" * 100_000]
)
def test_a_note_that_is_none_says_nothing(tmp_path, text):
    (tmp_path / refining.PROGRESS).write_text(text)
    assert progress(tmp_path) == Stage()


@pytest.mark.parametrize(("after", "p", "sign"), [(0.6, 0.01, 1), (0.4, 0.01, -1), (0.6, 0.2, 0)])
def test_only_what_is_sure_is_a_gain(after, p, sign):
    assert Gain(before=0.5, after=after, low=0, high=0, p=p).sign == sign
