"""Segments of a few codes."""

import pytest

from hyphash.hamming import index as index_module


@pytest.fixture
def small_tail(monkeypatch):
    """Segments from 40 codes on, so that small indexes have several."""
    monkeypatch.setattr(index_module, "TAIL", 40)
