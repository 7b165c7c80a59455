"""What is measured without training: datasets beside what the paper states, the cost of a step, the theorems."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hyphash.benchmarks import COMPLEXITY, DATASETS
from hyphash.benchmarks.facts import (
    CASES,
    angles_table,
    capacity_table,
    dataset_facts,
    differences,
    digest,
    label_sets,
    sizes_table,
    step_time,
    theorem_2,
    train_free_vectors,
)
from hyphash.datasets import load_dataset


def test_other_counts_are_differences(nuswide_tree):
    splits = load_dataset(nuswide_tree, "nuswide")
    found = differences(splits, DATASETS["nuswide"])
    assert found == [
        "24 photos in the part 'train', the paper has 10,500",
        "8 photos in the part 'queries', the paper has 2,100",
        "30 photos in the part 'database', the paper has 183,234",
    ]
    own = replace(DATASETS["nuswide"], train=24, queries=8, database=30)
    assert differences(splits, replace(own, checksums={})) == []
    assert "checksum" in differences(splits, own)[0]


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
        found[name] = dataset_facts(splits)
        assert found[name]["checksums"].items() >= DATASETS[name].checksums.items()
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
    found = dataset_facts(load_dataset(nuswide_tree, "nuswide"))
    row = next(row for row in sizes_table({"nuswide": found}).rows if row[:2] == ("NUS-WIDE", "found"))
    assert row[2] == 62
    assert row[-1] == "differs"
    assert found["eta"] == pytest.approx(row[7])


def test_a_step_of_every_loss_of_the_table_can_be_measured():
    for name in COMPLEXITY:
        assert np.isfinite(step_time(name, 24, torch.device("cpu"), seconds=0.0))


def test_without_other_proxies_photos_end_in_the_middle():
    for row in train_free_vectors(CASES[0], bits=16, classes=6, each=10, steps=600):
        assert row["to_middle"] < 0.5
        assert row["unequal"] < 0.5
        # k axes at right angles: cos = 1/√k
        assert row["middle_to_own"] == pytest.approx(np.degrees(np.arccos(row["labels"] ** -0.5)), abs=0.01)
        assert row["to_own"] == pytest.approx(row["middle_to_own"], abs=0.5)


def test_hyp2_keeps_unrelated_photos_farther_apart_than_the_proxy_loss():
    proxy, hyp2 = (train_free_vectors(case, bits=8, classes=12, each=30, steps=400)[1] for case in CASES[2:])
    assert hyp2["labels"] == proxy["labels"] == 2
    assert hyp2["to_unrelated"] > proxy["to_unrelated"] + 1


def test_label_sets_have_one_two_and_three_labels():
    labels = label_sets(7, 5, 0)
    assert labels.sum(axis=1).tolist() == [1] * 5 + [2] * 5 + [3] * 5
    assert np.array_equal(labels, label_sets(7, 5, 0))


def test_tables():
    table = capacity_table()
    shares = {row[:2]: row[4] for row in table.rows}
    assert shares[38, 48] == "all"
    assert shares[38, 12] == "0.024"
    assert shares[38, 36].startswith("1 − ")
    rows = theorem_2(steps=2)
    assert len(angles_table(rows).rows) == len(rows) == len(CASES) * 2 * 3
