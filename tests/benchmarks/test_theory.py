"""The theorems in numbers."""

import numpy as np
import pytest

from hyphash.benchmarks.theory import CASES, capacity_table, label_sets, settle, settle_all, settled_table


def test_without_other_proxies_photos_end_in_the_middle():
    for row in settle(CASES[0], bits=16, classes=6, each=10, steps=600):
        assert row.to_middle < 0.5
        assert row.unequal < 0.5
        # k axes at right angles: cos = 1/√k
        assert row.middle_to_own == pytest.approx(np.degrees(np.arccos(row.labels**-0.5)), abs=0.01)
        assert row.to_own == pytest.approx(row.middle_to_own, abs=0.5)


def test_hyp2_keeps_unrelated_photos_farther_apart_than_the_proxy_loss():
    proxy, hyp2 = (settle(case, bits=8, classes=12, each=30, steps=400)[1] for case in CASES[2:])
    assert hyp2.labels == proxy.labels == 2
    assert hyp2.to_unrelated > proxy.to_unrelated + 1


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
    rows = settle_all(steps=2)
    assert len(settled_table(rows).rows) == len(rows) == len(CASES) * 2 * 3
