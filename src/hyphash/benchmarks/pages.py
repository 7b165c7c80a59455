"""Which page shows which benchmark; and the pages of benchmarks that train nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hyphash.benchmarks import DATASETS
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.costs import complexity_table
from hyphash.benchmarks.curves import convergence_page, topn_page
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.page import Page, Section
from hyphash.benchmarks.places import gallery_page, tsne_page
from hyphash.benchmarks.published import TITLES
from hyphash.benchmarks.scores import ablation_page, spread_page, table_page
from hyphash.benchmarks.sizes import sizes_table
from hyphash.benchmarks.source import Source
from hyphash.benchmarks.theory import capacity_table, settled_table

PAGES: Mapping[str, Callable[[Source], Page]] = {
    **dict.fromkeys(("flickr25k", "nuswide", "voc2007", "voc2012"), table_page),
    "ablation": ablation_page,
    "spread": spread_page,
    "convergence": convergence_page,
    "topn": topn_page,
    "tsne": tsne_page,
    "gallery": gallery_page,
}


def datasets_page(found: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str]) -> Page:
    notes = tuple(f"{DATASETS[name].title}: {reason}" for name, reason in absent.items())
    return Page("The four datasets", "", (Section("Sizes and η", tables=(sizes_table(found),)),), notes)


def complexity_page(measured: Sequence[Mapping[str, Any]]) -> Page:
    drawn, tables = [], []
    for i, one in enumerate(measured):
        times = {TITLES[k]: {int(n): ms for n, ms in line.items()} for k, line in one["milliseconds"].items()}
        caption = "Loss and gradients of one batch, without the network."
        tables.append(complexity_table(f"complexity-{i}", one))
        drawn.append(Drawn(f"complexity-{i}", f"Time of a step, {one['device']}", caption, draw.step_times(times)))
    section = Section("Order of growth and time of a step", tables=tuple(tables), figures=tuple(drawn))
    return Page("What the losses cost", "", (section,))


def theorem_page(found: list[dict[str, Any]]) -> Page:
    one = Drawn("theorem-1", "Theorem 1", "Dots: C = K + 1, the last C with room for all.", draw.capacities())
    two = tuple(
        Drawn(f"theorem-2-{bits}", f"Theorem 2, {bits} bits", "Means over 100 photos each.", draw.settled(found, bits))
        for bits in (12, 48)
    )
    return Page(
        "The two theorems",
        "",
        (
            Section("What hyperspheres can separate", tables=(capacity_table(),), figures=(one,)),
            Section("Where the loss puts a photo", tables=(settled_table(found),), figures=two),
        ),
    )
