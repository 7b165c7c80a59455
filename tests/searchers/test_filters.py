"""Filters as people write them; columns of facts: what stores say of photos, limited to what 32 bits hold."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from hyphash.errors import ConfigError
from hyphash.searchers.filters import (
    EVERYTHING,
    LARGEST,
    NO_FACTS,
    NUMBERS,
    UNKNOWN,
    Circle,
    FactColumns,
    Filter,
    Span,
    file_type,
)

IDS = np.array([3, 5, 9])


def minute(*when: int) -> int:
    return int((datetime(*when, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(minutes=1))  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("2019", Span(minute(2019, 1, 1), minute(2020, 1, 1) - 1)),
        ("2019-12", Span(minute(2019, 12, 1), minute(2020, 1, 1) - 1)),
        ("2020-02", Span(minute(2020, 2, 1), minute(2020, 3, 1) - 1)),
        ("1965-02-28", Span(minute(1965, 2, 28), minute(1965, 3, 1) - 1)),
        ("2019-05-03T14:30", Span(minute(2019, 5, 3, 14, 30), minute(2019, 5, 3, 14, 30))),
        ("2019-05..2020", Span(minute(2019, 5, 1), minute(2021, 1, 1) - 1)),
        ("2019..", Span(minute(2019, 1, 1), LARGEST)),
        ("..2019-05-03", Span(UNKNOWN + 1, minute(2019, 5, 4) - 1)),
        ("..", Span(UNKNOWN + 1, LARGEST)),
        ("9999", Span(LARGEST, LARGEST - 1)),
    ],
)
def test_times_reach_to_the_end_of_what_is_named(text: str, span: Span) -> None:
    assert Filter.parse(taken=text) == Filter(taken=span)
    assert Filter.parse(added=f" {text} ") == Filter(added=span)


@pytest.mark.parametrize(("text", "hours"), [("12h", 12), ("7d", 168), ("2w", 336)])
def test_ages_count_from_now(text: str, hours: int) -> None:
    span = Filter.parse(added=text).added
    now = datetime.now(UTC).timestamp() / 60
    assert span is not None
    assert now - 60 * hours - 2 <= span.first <= now - 60 * hours
    assert span.last == LARGEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2MB..", Filter(size=Span(2_000_000, LARGEST))),
        ("..1.5kB", Filter(size=Span(UNKNOWN + 1, 1500))),
        ("10B..9999GB", Filter(size=Span(10, LARGEST))),
        ("1.5 MP..12MP", Filter(pixels=Span(1_500_000, 12_000_000))),
    ],
)
def test_sizes_are_bytes_or_pixels(text: str, expected: Filter) -> None:
    assert Filter.parse(size=text) == expected


def test_all_together_and_nothing() -> None:
    parsed = Filter.parse(
        camera=" Canon EOS",
        folder="/2019/summer/",
        type="JPG, .tif,png,jpeg",
        near="-48.2, 16.37 ,500m",
        taken="",
        size=None,
    )
    assert parsed == Filter(
        camera="canon eos", folder="2019/summer", types=("jpeg", "png", "tiff"), near=Circle(-48.2, 16.37, 0.5)
    )
    assert Filter.parse() == Filter.parse(taken=" ") == EVERYTHING
    assert not EVERYTHING.by_facts
    narrowed = Filter(carrying=("a",), radius=3, excluded=(1,), camera="x")
    assert (narrowed.facts, narrowed.by_facts, Filter(carrying=("a",)).by_facts) == (Filter(camera="x"), True, False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("taken", "now"), ("taken", "2019-13"), ("taken", "2019-02-30"), ("added", "19"), ("added", "2019...2020"),
        ("added", "99999999d"), ("size", "2MB"), ("size", ".."), ("size", "2MB..3MP"),
        ("size", "2..3"), ("size", "a..b..c"), ("size", "1MB..2MB..3MB"), ("near", "1,2,-3km"),
        ("near", "48,16"), ("near", "91,0,1"), ("near", "0,181,1"), ("near", "x,y,z"), ("near", "nan,0,1"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_said_with_an_example(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} .* cannot be understood; write it like "):
        Filter.parse(**{name: text})


def test_types_go_by_the_ending_of_a_name() -> None:
    names = {"a/b.JPEG": "jpeg", "b.jfif": "jpeg", "c.HIF": "heic", "a.b/c": "", ".png": "", "x.tar.gz": "gz"}
    assert {name: file_type(name) for name in names} == names


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
