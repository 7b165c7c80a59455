"""Segments of a few codes."""

import pytest

from hyphash import hamming


@pytest.fixture
def small_tail(monkeypatch):
    """Segments from 40 codes on, so that small indexes have several."""
    monkeypatch.setattr(hamming, "TAIL", 40)
