"""Which kernel computes is known, and can be chosen."""

import pytest
from searching import running

from hyphash import hamming
from hyphash.errors import ConfigError
from hyphash.hamming import _kernel


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
