"""What a collection answers with."""

import json
from pathlib import Path

import pytest

from hyphash.collection import Collection
from hyphash.collection.records import Added, AddResult, Log, Match, Missing, Ranking, Step
from hyphash.photos import Problem


def test_records_can_be_shown_as_json(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos, labels=[["cat"]] * 10)
    ranking = collection.search(labels=["cat"], k=2)
    assert json.loads(json.dumps([vars(match) for match in ranking]))[0]["labels"] == ["cat"]


def test_a_step_is_added_to_the_counts() -> None:
    first = Step((Added(1, "a", "added"), Added(2, "b", "moved")), (Problem("c", "torn"),), done=3, total=5)
    second = Step((Added(3, "d", "added"), Added(1, "a", "unchanged")), (), done=5, total=5)
    result = AddResult() + first + second
    assert result == AddResult(added=2, moved=1, unchanged=1, problems=(Problem("c", "torn"),))


def test_every_photo_that_was_left_out_is_told_of(tmp_path: Path) -> None:
    problems = tuple(Problem(f"/photos/{i}.jpg", f"{i}.jpg: torn") for i in range(8))
    log = Log(tmp_path)
    assert len([*log.following([Step((), problems[:4], 4, 8), Step((), problems[4:], 8, 8)])]) == 2
    told = [(line.what, line.photos, line.names, line.reason) for line in reversed(log.recent(100))]
    assert told == [
        *(("left out", 1, [f"{i}.jpg"], f"{i}.jpg: torn") for i in range(5)),
        ("left out", 3, ["5.jpg", "6.jpg", "7.jpg"], ""),
    ]


def test_what_was_left_out_before_is_entered_once(tmp_path: Path) -> None:
    problems = tuple(Problem(f"/photos/{i}.jpg", f"{i}.jpg: torn") for i in range(8))
    log, heard = Log(tmp_path), list[str]()
    for _ in range(3):
        list(log.following([Step((), problems, 8, 8)]))
    assert len(log.recent(100)) == 6
    log.heard = lambda line: heard.append(line.reason)
    new = Problem("/photos/new.jpg", "new.jpg: torn")
    list(log.following([Step((), (*problems[:2], new), 3, 3)]))
    assert [line.reason for line in log.recent(100)][:-6] == ["new.jpg: torn"]
    assert heard == ["0.jpg: torn", "1.jpg: torn", "new.jpg: torn"]  # whoever watches hears of a file that changed


def test_a_ranking_is_a_sequence_of_its_matches() -> None:
    matches = tuple(Match(i, f"{i}.jpg", distance=i, score=1 - i, labels=(), shared=()) for i in range(3))
    ranking = Ranking(matches, offset=10, total=50)
    assert (len(ranking), ranking[1], ranking[1:], list(ranking)) == (3, matches[1], matches[1:], list(matches))
    assert matches[2] in ranking
    with pytest.raises(IndexError):
        ranking[3]


def test_missing_photos_can_be_counted_and_gone_through(collection: Collection, photos: list[Path]) -> None:
    collection.add(photos[:2])
    missing = Missing(tuple(collection.photos()), elsewhere=4)
    assert (len(missing), [photo.path for photo in missing]) == (2, [str(path) for path in photos[:2]])
