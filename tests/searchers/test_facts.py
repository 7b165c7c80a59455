"""Columns of facts: what stores say of photos, limited to what 32 bits hold."""

import numpy as np

from hyphash.searchers.filters import LARGEST, UNKNOWN, Filter
from hyphash.searchers.local.facts import NO_FACTS, NUMBERS, FactColumns

IDS = np.array([3, 5, 9])


def test_what_a_store_says_whatever_it_is() -> None:
    """Other programs write into tables: places and times that cannot be are not known, or as far as numbers go."""
    rows = [
        (9, "/a/b.JPG", None, "then", None, 2**40, 0, float("nan"), 8.0),
        (3, "c.png", "Pixel", "2020-01-01T00:01:59Z", -61, 7, 12, -1.25, 1e300),
    ]
    facts = FactColumns.of(IDS, rows)
    assert dict(zip(NUMBERS, facts.columns[:, [0, 2]].T.tolist()[0], strict=True)) == {
        "taken": -2, "added": 26_297_281, "size": 7, "pixels": 12, "latitude": -1_250_000, "longitude": LARGEST,
        "kind": 2,
    }  # fmt: skip
    assert facts.columns[:-1, 2].tolist() == [UNKNOWN, UNKNOWN, LARGEST, 0, UNKNOWN, 8_000_000]
    assert facts.columns[:-1, 1].tolist() == [UNKNOWN] * 6  # nobody said anything of 5
    assert [facts.kinds[kind] for kind in facts.columns[-1]] == [("", "Pixel", "png"), ("", "", ""), ("/a", "", "jpeg")]


def test_kinds_are_numbered_anew_where_columns_are_joined() -> None:
    def some(ids: list[int], *paths: str) -> FactColumns:
        rows = [(id, path, "", "", id, 1, 1, None, None) for id, path in zip(ids, paths, strict=True)]
        return FactColumns.of(np.array(ids), rows)

    one, two = some([1, 2], "/a/1.png", "/b/2.jpg"), some([3, 4, 5], "/c/3.gif", "/b/4.jpg", "/a/5.png")
    joined = NO_FACTS.joined(one, two)
    assert joined.mask(Filter(folder="a")).tolist() == [True, False, False, False, True]  # type: ignore[union-attr]
    assert joined.equals(one.joined(two))
    assert not joined.equals(one.joined(two.kept([0, 2, 1])))
    assert two.joined(one).kept([3, 4, 0, 1, 2]).equals(joined)
    again = FactColumns(*joined.tensors.values())
    assert again.equals(joined)
    assert joined.mask(Filter()) is None
    assert joined.mask(Filter(types=("gif",))) is joined.mask(Filter(types=("gif",), carrying=("a",), excluded=(1,)))
