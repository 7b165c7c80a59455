"""From rows to parts: the seeded split, the given one, and what is refused or left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyphash.datasets import Remarks
from hyphash.datasets.own import Choices, Row, held_out, own_photos
from hyphash.errors import ConfigError, DataError, LabelError


def rows_of(tmp_path, label_sets, splits=None):
    rows = []
    for i, labels in enumerate(label_sets):
        (tmp_path / f"{i}.jpg").touch()
        split = (splits[i],) if splits else ()
        rows.append(Row(f"{i}.jpg", tuple(sorted(labels.split())), f"labels.csv:{i + 2}", split))
    return rows


def read(tmp_path, rows, **choices):
    return own_photos("folder", rows, tmp_path, choices=Choices(**choices), remarks=Remarks()).splits()


@given(
    labels=st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), min_size=1, max_size=40),
    wanted=st.integers(1, 50),
    seed=st.integers(0, 5),
)
def test_held_out_photos_leave_every_label_a_photo(labels, wanted, seed):
    table = np.array(labels, np.uint8)
    chosen = held_out(table, wanted, seed)
    rest = np.setdiff1d(np.arange(len(table)), chosen)
    assert len(chosen) <= wanted
    assert len(set(chosen.tolist())) == len(chosen)
    assert (table[rest].any(axis=0) == table.any(axis=0)).all()
    assert np.array_equal(chosen, held_out(table, wanted, seed))
    if len(chosen) < wanted:  # then nobody else can go
        left = table[rest].sum(axis=0)
        assert all((left[table[i] > 0] == 1).any() for i in rest)


def test_a_share_or_a_number_of_photos_is_held_out(tmp_path):
    rows = rows_of(tmp_path, ["a", "b", "a b"] * 20)
    tenth = read(tmp_path, rows)
    assert len(tenth.queries) == 6
    assert tenth.train.rows.tolist() == tenth.database.rows.tolist()
    assert sorted([*tenth.train.rows, *tenth.queries.rows]) == list(range(60))
    assert "6 photos held out as queries (seed 0)" in tenth.notes[0]
    assert "other 54 are both training part and database" in tenth.notes[0]
    assert len(read(tmp_path, rows, queries=25).queries) == 25
    assert len(read(tmp_path, rows, queries=0.5).queries) == 30
    other = read(tmp_path, rows, seed=1)
    assert other.queries.rows.tolist() != tenth.queries.rows.tolist()


@pytest.mark.parametrize("queries", [0, -1, 0.0, 1.5, -0.2])
def test_senseless_numbers_of_queries_are_refused(queries):
    with pytest.raises(ConfigError, match="a share between 0 and 1, or how many photos"):
        Choices(queries=queries)


def test_photos_whose_labels_nobody_else_has_are_never_queries(tmp_path):
    with pytest.raises(DataError, match="no photo can be held out"):
        read(tmp_path, rows_of(tmp_path, ["a", "b", "c"]))
    few = read(tmp_path, rows_of(tmp_path, ["a", "b", "c", "c"]), queries=3)
    assert len(few.queries) == 1
    assert "fewer than the 3 asked for" in few.notes[0]


def test_the_given_split_is_kept(tmp_path):
    rows = rows_of(tmp_path, ["a", "b", "a", "b"], ["train", "queries", "database", "train"])
    splits = read(tmp_path, rows)
    assert splits.train.rows.tolist() == [0, 3]
    assert splits.queries.rows.tolist() == [1]
    assert splits.database.rows.tolist() == [2]
    assert splits.notes == ()


@pytest.mark.parametrize("part", ["train", "database"])
def test_train_and_database_stand_in_for_each_other(tmp_path, part):
    splits = read(tmp_path, rows_of(tmp_path, ["a", "b", "a"], [part, "queries", part]))
    assert splits.train.rows.tolist() == splits.database.rows.tolist() == [0, 2]
    assert "both are the same photos" in splits.notes[0]


def test_a_split_without_queries_or_with_gaps_is_refused(tmp_path):
    with pytest.raises(DataError, match="0 photos as queries and 2 others"):
        read(tmp_path, rows_of(tmp_path, ["a", "b"], ["train", "database"]))
    with pytest.raises(DataError, match="2 photos as queries and 0 others"):
        read(tmp_path, rows_of(tmp_path, ["a", "b"], ["queries", "queries"]))
    rows = rows_of(tmp_path, ["a", "b"], ["train", "queries"])
    with pytest.raises(DataError, match=r"labels.csv:9: photo '0.jpg' has no split and others have"):
        read(tmp_path, [Row("0.jpg", ("a",), "labels.csv:9"), rows[1]])


def test_photos_without_labels_are_refused_or_left_out(tmp_path):
    rows = rows_of(tmp_path, ["a", "b", "", "a b", "", "a", "b"])
    with pytest.raises(LabelError) as caught:
        read(tmp_path, rows)
    assert str(caught.value) == (
        "labels.csv:4: photo '2.jpg' has no labels (one of 2 such photos); "
        "give it one or drop it with --skip-unlabelled"
    )
    splits = read(tmp_path, rows, skip_unlabelled=True)
    assert splits.unlabelled == ("2.jpg", "4.jpg")
    assert "2 photos without labels left out" in splits.notes
    with pytest.raises(DataError, match="no photo with labels is left"):
        read(tmp_path, rows_of(tmp_path, ["", ""]), skip_unlabelled=True)


def test_missing_photos_are_refused_or_left_out(tmp_path):
    rows = rows_of(tmp_path, ["a", "b"] * 6)
    for i in (1, 3, 5, 7):
        (tmp_path / f"{i}.jpg").unlink()
    with pytest.raises(DataError) as caught:
        read(tmp_path, rows)
    assert str(caught.value) == (
        "labels.csv:3: 4 photos listed but not there: '1.jpg', '3.jpg', '5.jpg' …; put them in their place, "
        "correct the list, or leave them out with --skip-missing"
    )
    splits = read(tmp_path, rows, skip_missing=True)
    assert splits.missing == ("1.jpg", "3.jpg", "5.jpg", "7.jpg")
    assert len(splits.train) + len(splits.queries) == 8


def test_rows_that_repeat_are_merged_and_those_that_contradict_refused(tmp_path):
    rows = rows_of(tmp_path, ["a", "b", "a", "b"])
    again = Row("./0.jpg", ("a",), "labels.csv:8")
    splits = read(tmp_path, [*rows, again])
    assert len(splits.train) + len(splits.queries) == 4
    assert "1 repeated row left out" in splits.notes[0]
    with pytest.raises(LabelError, match=r"labels.csv:8: photo '0.jpg' stands at labels.csv:2 already.*keep one"):
        read(tmp_path, [*rows, Row("0.jpg", ("b",), "labels.csv:8")])


def test_one_class_only_is_nothing_to_tell_apart(tmp_path):
    with pytest.raises(DataError, match="every photo carries 'a' and nothing else, there is nothing to tell apart"):
        read(tmp_path, rows_of(tmp_path, ["a", "a", "a"]))
    with pytest.raises(DataError, match="no photos here; hyphash reads JPEG"):
        read(tmp_path, [])


def test_rare_labels_are_left_out_on_request(tmp_path):
    rows = rows_of(tmp_path, ["a", "b", "a b", "a", "b", "rare", "a rare2"])
    assert read(tmp_path, rows).classes == ("a", "b", "rare", "rare2")
    splits = read(tmp_path, rows, min_count=2)
    assert splits.classes == ("a", "b")
    assert splits.unlabelled == ("5.jpg",)
    assert "2 labels on fewer than 2 photos left out: rare, rare2" in splits.notes


def test_labels_that_differ_in_case_alone_are_mentioned(tmp_path):
    splits = read(tmp_path, rows_of(tmp_path, ["Dog", "dog", "cat", "Dog", "dog", "cat"]))
    assert splits.classes == ("Dog", "cat", "dog")
    assert "labels that differ in case alone count as different: Dog, dog" in splits.notes
