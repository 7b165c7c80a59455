"""Relevance of one's own: losses that compare photos see it instead of the labels that two share."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hyphash.errors import LabelError
from hyphash.losses import build
from hyphash.losses.relevance import ClassGrades, Relevance, load_relevance

BITS = 12
GROUPS = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]])  # of five classes
BY_RELEVANCE_ALONE = [
    "contrastive", "dhn", "hashnet", "dsh", "dash-ps", "pair", "triplet-semi-hard", "triplet-smart", "n-pair", "lifted",
    "ninh", "talr-ap", "mihash", "smooth-ap", "recall-at-k", "dpsh", "dtsh", "adsh",
]  # fmt: skip


@pytest.mark.parametrize("name", BY_RELEVANCE_ALONE)
def test_classes_that_are_relevant_to_each_other_are_one_to_a_loss(name, batch):
    outputs, labels = batch
    groups = (labels @ torch.from_numpy(GROUPS).double() > 0).double()
    plain, own = (build(name, bits=BITS, classes=5, **({"margin": 0.3} if name == "pair" else {})) for _ in range(2))
    own.relevance = ClassGrades(GROUPS @ GROUPS.T)
    assert_close(own(outputs, labels), plain(outputs, groups))
    assert own(outputs, labels) != plain(outputs, labels)


@pytest.mark.parametrize("name", ["idhn", "dmssph", "talr-ndcg", "hyp2", "dcgh", "sprch", "dcilh", "mdsh"])
def test_a_table_with_ones_on_its_diagonal_changes_nothing(name, batch):
    torch.manual_seed(0)
    loss = build(name, bits=BITS, classes=5).double()
    loss.set_progress(1.0)
    expected = loss(*batch)
    loss.relevance = ClassGrades(np.eye(5, dtype=np.int64))
    assert_close(loss(*batch), expected)
    loss.relevance = Relevance(lambda labels, others: labels @ others.T)
    assert_close(loss(*batch), expected)
    if name != "hyp2":
        loss.relevance = ClassGrades(GROUPS @ GROUPS.T + np.eye(5, dtype=np.int64))
        assert loss(*batch) != expected


def test_gains_and_rows_that_share_as_many_ones():
    rng = np.random.default_rng(0)
    grades = np.array([[3, 1, 0], [1, 2, 0], [0, 2, 1]])
    queries, database = (rng.integers(0, 2, (n, 3), dtype=np.uint8) for n in (6, 9))
    naive = [
        [sum(max([grades[c, d] for c in range(3) if q[c]], default=0) for d in range(3) if p[d]) for p in database]
        for q in queries
    ]
    table = ClassGrades(grades)
    assert table(torch.tensor(queries).float(), torch.tensor(database).float()).tolist() == naive
    for relevance in (table, Relevance(table.gains)):
        asked, offered = relevance.encode(queries, database)
        assert (asked.astype(int) @ offered.T).tolist() == naive
        assert (offered[:, :3] == database).all()


def test_a_table_is_read_by_the_names_of_its_classes(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("of,dog,cat,car\ncar,0,0,2\ncat,1,2,0\ndog,2,1,0\n")
    table = load_relevance(str(path), ["cat", "car"])
    assert table(torch.eye(2), torch.eye(2)).tolist() == [[2, 0], [0, 2]]
    assert load_relevance("", ["cat"]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        (",cat\ncat,1\n", "no row or no column for the label 'dog'"),
        (",cat,dog\ncat,1\ndog,0,1\n", "whole numbers"),
        (",cat,dog\ncat,.5,1\ndog,0,1\n", "invalid literal.*whole numbers"),
        (",cat,dog\ncat,0,1\ndog,0,1\n", "a class is relevant to itself"),
        (",cat,dog\ncat,1,10\ndog,0,1\n", "0 for unrelated classes to 9"),
        ("", "whole numbers"),
    ],
)
def test_a_table_that_is_none_says_why(tmp_path, text, message):
    if text is not None:
        (tmp_path / "grades.csv").write_text(text)
    with pytest.raises(LabelError, match=message):
        load_relevance(str(tmp_path / "grades.csv"), ["cat", "dog"])


def test_a_tree_of_names_is_a_table_of_levels_in_common():
    classes = ["animal/dog/poodle", "animal/dog", "animal/cat", "animals", "sea"]
    one_each = torch.eye(5)
    relevance = load_relevance("tree", classes)
    assert relevance(one_each, one_each).tolist() == [
        [3, 2, 1, 0, 0], [2, 2, 1, 0, 0], [1, 1, 2, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1],
    ]  # fmt: skip
