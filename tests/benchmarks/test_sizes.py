"""What is found of a dataset beside what the paper states."""

from dataclasses import replace

import numpy as np
import pytest

from hyphash.benchmarks.published import DATASETS
from hyphash.benchmarks.sizes import DIGESTS, differences, digest, facts, sizes_table
from hyphash.datasets import load_dataset


def test_other_counts_are_differences(nuswide_tree):
    splits = load_dataset(nuswide_tree, "nuswide")
    found = differences(splits, DATASETS["nuswide"])
    assert found == [
        "24 photos in the part 'train', the paper has 10,500",
        "8 photos in the part 'queries', the paper has 2,100",
        "30 photos in the part 'database', the paper has 183,234",
    ]
    own = replace(DATASETS["nuswide"], name="other", train=24, queries=8, database=30)
    assert differences(splits, own) == []
    assert "checksum" in differences(splits, replace(own, name="nuswide"))[0]


def test_a_checksum_sees_labels_but_not_the_order(nuswide_tree):
    split = load_dataset(nuswide_tree, "nuswide").train
    assert digest(split.take(np.arange(len(split))[::-1])) == digest(split)
    labels = split.labels.copy()
    labels[3, 5] ^= 1
    assert digest(replace(split, labels=labels)) != digest(split)
    assert digest(split.take(slice(1, None))) != digest(split)


def test_the_real_label_files_give_the_published_figures(shared_data):
    found = {}
    for name in ("flickr25k", "nuswide"):
        splits = load_dataset(shared_data / name, name)
        found[name] = facts(splits)
        assert {part: found[name]["checksums"][part] for part in DIGESTS[name]} == DIGESTS[name]
    assert differences(load_dataset(shared_data / "flickr25k", "flickr25k"), DATASETS["flickr25k"]) == []
    table = sizes_table(found)
    verdicts = {(row[0], row[1]): row[-1] for row in table.rows}
    assert verdicts["Flickr-25k", "found"] == "as published"
    assert verdicts["NUS-WIDE", "found"] == "as published"
    assert verdicts["VOC-2007", "not here"] is None
    assert round(found["nuswide"]["eta"], 3) == 0.242
    assert found["nuswide"]["database"] is None  # the lists at hand name none
    assert "/" not in table.markdown().replace("M²", "")  # no path of this machine


def test_a_difference_is_said(nuswide_tree):
    found = facts(load_dataset(nuswide_tree, "nuswide"))
    row = next(row for row in sizes_table({"nuswide": found}).rows if row[:2] == ("NUS-WIDE", "found"))
    assert row[2] == 62
    assert row[-1] == "differs"
    assert found["eta"] == pytest.approx(row[7])
