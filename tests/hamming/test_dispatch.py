"""Which kernel computes is known, and can be chosen; what all kinds of search refuse, and how many they can find."""

import numpy as np
import pytest
from searching import running

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError, ConfigError, LabelError
from hyphash.hamming import _kernel
from hyphash.hamming.dispatch import how_many

CODES = Codes.from_bits([[0, 1, 0]])


def test_what_runs_is_known(monkeypatch):
    assert hamming.backend().name == "native"
    assert hamming.backend().instructions in _kernel.available()
    monkeypatch.setenv("HYPHASH_THREADS", "3")
    assert hamming.backend().threads == 3
    with running("numpy"):
        assert hamming.backend().name == "numpy"
    monkeypatch.setenv("HYPHASH_THREADS", "many")
    with pytest.raises(ConfigError, match="many"):
        hamming.backend()
    with pytest.raises(ValueError, match="no instructions mmx"):
        _kernel.choose("mmx")


@pytest.mark.parametrize(
    ("k", "mask", "expected"), [(2, None, 2), (9, None, 4), (3, [1, 0, 1, 0], 2), (1, [1, 1, 1, 1], 1), (5, [0] * 4, 0)]
)
def test_no_more_are_found_than_the_mask_allows(k, mask, expected):
    assert how_many(k, 4, None if mask is None else np.array(mask, bool)) == expected


def test_k_and_masks_that_do_not_fit_are_refused():
    with pytest.raises(CodesError, match="k must be 1 or more, not 0"):
        hamming.search(CODES, CODES, 0)
    with pytest.raises(CodesError, match="mask"):
        hamming.search(CODES, CODES, 1, mask=np.ones(2, bool))
    with pytest.raises(CodesError, match="mask"):
        hamming.within(CODES, CODES, 1, mask=np.ones(1, np.int64))


def test_labels_that_do_not_fit_are_refused():
    labels = np.ones((1, 2), np.uint8)
    with pytest.raises(LabelError, match="2 classes, the database 3"):
        hamming.histogram(CODES, CODES, labels, np.ones((1, 3), np.uint8))
    with pytest.raises(LabelError, match="shape"):
        hamming.histogram(CODES, CODES, labels[:0], labels)
    with pytest.raises(LabelError, match="0 or 1"):
        hamming.histogram(CODES, CODES, labels * 2, labels)
