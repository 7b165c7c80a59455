import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError
from hyphash.hamming import tensors

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@given(st.integers(0, 2**32), st.integers(1, 256), st.integers(1, 400))
@settings(max_examples=25, deadline=None)
def test_equal_to_the_search_on_the_processor(device, seed, bits, k):
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(20, bits))
    outputs = pool[rng.integers(0, 20, int(rng.integers(0, 300)))]
    wanted = pool[rng.integers(0, 20, int(rng.integers(1, 9)))] * rng.choice([-1, 1], bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "PAIRS", int(rng.integers(1, 700)))  # several chunks
        queries, database = (torch.tensor(values, device=device) for values in (wanted, outputs))
        distances, ids = tensors.search(queries, database, k)
        labels = [(rng.random((len(t), 6)) < 0.3).astype(np.uint8) for t in (wanted, outputs)]
        table = tensors.histogram(queries, database, *(torch.tensor(array) for array in labels))
    codes = Codes.from_outputs(wanted), Codes.from_outputs(outputs)
    expected = hamming.search(*codes, k)
    np.testing.assert_array_equal(distances.cpu(), expected[0])
    np.testing.assert_array_equal(ids.cpu(), expected[1])
    histogram = hamming.histogram(*codes, *labels)
    for ours, name in zip(table, ("count", "relevant", "gain", "exp_gain"), strict=True):
        np.testing.assert_array_equal(ours.cpu(), getattr(histogram, name), err_msg=name)


def test_what_does_not_fit_is_refused():
    with pytest.raises(CodesError, match="same number of bits"):
        tensors.search(torch.ones(1, 3), torch.ones(1, 4), 1)
    with pytest.raises(CodesError, match="k must be"):
        tensors.search(torch.ones(1, 3), torch.ones(1, 3), 0)
    with pytest.raises(CodesError, match="is on meta"):
        tensors.search(torch.ones(1, 3), torch.ones(1, 3, device="meta"), 1)
