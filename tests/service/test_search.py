"""The outputs of an uploaded photo survive the way through an address."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hyphash.errors import ConfigError
from hyphash.service.search import outputs_from, outputs_text


class Fake:
    fingerprint = "abc"
    bits = 3
    quantizer = None


@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_place_is_what_it_was(values: list[float]) -> None:
    outputs = np.array(values, np.float32)
    text = outputs_text(outputs, Fake())  # type: ignore[arg-type]
    assert text.isascii()
    assert set("&=?#%+/ ").isdisjoint(text)
    assert_array_equal(outputs_from(text, Fake()), outputs)  # type: ignore[arg-type]


NO_PLACES = ("", "abc", "abc.", "abc.AAAA", "xyz.AAAAAAAAAAAAAAAA", "abc.AADAfwAAwH8AAMB_", "abc.é", ".")


@pytest.mark.parametrize("text", NO_PLACES)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        outputs_from(text, Fake())  # type: ignore[arg-type]
