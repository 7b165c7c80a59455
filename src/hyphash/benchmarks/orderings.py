"""Which of the published orderings hold here: method A above method B at a length, for all pairs of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations

from hyphash.benchmarks import Method
from hyphash.benchmarks.published import Dataset, Row
from hyphash.benchmarks.tables import Cells, Measure, Seeds, Table, seeds_of

ALL = "all others"


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """One published ordering, and what we find."""

    better: str
    worse: str
    bits: int
    published: float  # by how much the better one is ahead
    ours: float  # the same here; negative where the order is reversed
    spread: float | None  # of seeds, the larger of the two, where several were run

    @property
    def holds(self) -> bool:
        return self.ours > 0

    @property
    def within_spread(self) -> bool:
        """Whether another seed might have turned it round."""
        return self.spread is not None and abs(self.ours) <= self.spread


def orderings(
    methods: Sequence[Method],
    dataset: Dataset,
    cells: Cells,
    published: Mapping[str, Row],
    measure: Measure,
    bits: Sequence[int],
) -> list[Ordering]:
    """All pairs of methods with a published difference for which both have been run here."""
    sign = 1 if measure.largest_is_best else -1
    found = []
    for length in bits:
        figures = {key: row.at(dataset.bits, length) for key, row in published.items()}
        ours = {m.key: seeds_of(cells.get((m.key, length), {}), measure.value) for m in methods}
        for better, worse in permutations(methods, 2):
            high, low = figures.get(better.key), figures.get(worse.key)
            a, b = ours[better.key], ours[worse.key]
            if high is None or low is None or a is None or b is None or sign * (high - low) <= 0:
                continue
            found.append(
                Ordering(
                    better=better.title,
                    worse=worse.title,
                    bits=length,
                    published=abs(high - low),
                    ours=sign * (a.mean - b.mean),
                    spread=_spread(a, b),
                )
            )
        found += _above_all(figures, ours, {m.key: m.title for m in methods}, length, sign)
    return sorted(found, key=lambda o: (o.bits, o.worse != ALL, -o.published))


def _above_all(
    figures: Mapping[str, float | None],
    ours: Mapping[str, Seeds | None],
    titles: Mapping[str, str],
    bits: int,
    sign: int,
) -> list[Ordering]:
    """The best of the table against the best of all others, where all that are published have been run."""
    known = {key: sign * value for key, value in figures.items() if value is not None and key in titles}
    here = {key: seeds for key in known if (seeds := ours[key]) is not None}
    first, *rest = sorted(known, key=lambda key: -known[key])
    if len(here) < len(known) or len(known) < 3 or known[first] == known[rest[0]]:
        return []
    second = max(rest, key=lambda key: sign * here[key].mean)
    return [
        Ordering(
            better=titles[first],
            worse=ALL,
            bits=bits,
            published=known[first] - known[rest[0]],
            ours=sign * (here[first].mean - here[second].mean),
            spread=_spread(here[first], here[second]),
        )
    ]


def _spread(a: Seeds, b: Seeds) -> float | None:
    spreads = [seeds.spread for seeds in (a, b) if len(seeds.values) > 1]
    return max(spreads) if spreads else None


def orderings_table(name: str, title: str, found: Sequence[Ordering], measure: Measure) -> Table:
    """Every ordering with a yes or no; how many hold is in the title."""
    held = sum(ordering.holds for ordering in found)
    rows = tuple(
        (
            o.bits,
            f"{o.better} {'>' if measure.largest_is_best else '<'} {o.worse}",
            o.published,
            o.ours,
            o.spread,
            ("holds" if o.holds else "does not hold") + (" (within the spread of seeds)" if o.within_spread else ""),
        )
        for o in found
    )
    return Table(
        name=name,
        title=f"{title}: {held} of {len(found)} published orderings hold here",
        above=f"By {measure.title}. Means over seeds where several were run. Ahead: by how much the better one of the "
        "paper is ahead of the other, there and here; negative where the order is reversed.",
        columns=("bits", "published ordering", "ahead, published", "ahead, ours", "spread of seeds", "here"),
        rows=rows,
        records=tuple(asdict(o) | {"holds": o.holds, "within_spread": o.within_spread} for o in found),
    )
