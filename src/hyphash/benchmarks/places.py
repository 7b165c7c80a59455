"""Pages of photos: where they lie, and which ones are found."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hyphash import hamming
from hyphash.benchmarks import figures as draw
from hyphash.benchmarks.figures import Drawn
from hyphash.benchmarks.page import Page, Section
from hyphash.benchmarks.published import TITLES
from hyphash.benchmarks.source import Source, page_of, stem_of
from hyphash.benchmarks.tables import Cell, Table
from hyphash.datasets import Splits
from hyphash.errors import DataError
from hyphash.hasher import unit


def tsne_page(source: Source) -> Page:
    """Where the queries lie, coloured by all their labels."""
    sections, notes = [], []
    for group, records in source.backbones().items():
        outputs: dict[str, Any] = {}
        labels, classes = _query_labels(source), _classes(source)
        if labels is None:
            notes.append("the labels of the queries are not at hand: give --data once, and they are kept")
            break
        for method, record in records:
            codes = source.results.codes(record)
            if codes is not None and codes.outputs is not None:
                outputs.setdefault(method.title, codes.outputs)
        if not outputs:
            notes.append("the codes of these runs were not kept, so nothing can be drawn")
            continue
        marked = _marked(source, outputs, labels, classes)
        places = {title: draw.embed(values) for title, values in outputs.items()}
        caption = f"{len(labels):,} queries of {source.dataset.title}, 48 bits: t-SNE of the direction of their real "
        caption += "outputs. Each photo is a pie of the colours of all its labels." + (
            f" Ringed: photos with {marked[0][0]} (red) and with {marked[1][0]} (black)." if len(marked) == 2 else ""
        )
        figure = draw.tsne(places, labels, classes, marked)
        drawn = Drawn(f"{stem_of(source, group)}-tsne", "Where photos lie", caption, figure)
        tables = (_apart_table(stem_of(source, group), outputs, marked),) if len(marked) == 2 else ()
        sections.append(Section(f"{source.dataset.title}, {group}", tables=tables, figures=(drawn,)))
    return page_of(source, f"{source.dataset.title}: t-SNE", sections, notes)


def _marked(source: Source, outputs: Mapping[str, Any], labels: Any, classes: Sequence[str]) -> Any:
    """The two sets of photos to ring: as asked for, or those that the proxy loss puts nearest beside HyP²."""
    if source.mark:
        sets = []
        for part in source.mark.split(","):
            names = [name.strip() for name in part.split("+")]
            if unknown := [name for name in names if name not in classes]:
                raise DataError(f"--mark: no label {unknown[0]!r}; there are {', '.join(classes)}")
            carrying = labels[:, [classes.index(name) for name in names]].all(axis=1)
            if not carrying.any():
                raise DataError(f"--mark: no query of {source.dataset.title} carries {part.strip()}")
            sets.append((" & ".join(names), carrying))
        return sets
    proxy, hyp2 = outputs.get(TITLES["proxy"]), outputs.get(TITLES["hyp2"])
    return [] if proxy is None or hyp2 is None else draw.conflict(proxy, hyp2, labels, classes)


def _apart_table(stem: str, outputs: Mapping[str, Any], marked: Any) -> Table:
    (one, first), (two, second) = marked
    rows: list[tuple[Cell, ...]] = []
    for title, values in outputs.items():
        places = unit(values)
        between = float((places[first] @ places[second].T).mean())
        within = [float((places[some] @ places[some].T).mean()) for some in (first, second)]
        rows.append((title, between, *within))
    return Table(
        name=f"{stem}-apart",
        title=f"Photos with {one} and photos with {two}",
        above=f"Mean cosine of the real outputs at 48 bits, {int(first.sum())} and {int(second.sum())} queries. The "
        "two sets share no label of the other's pair; between them, small is good.",
        columns=("method", "between the two", f"within {one}", f"within {two}"),
        rows=tuple(rows),
    )


def _query_labels(source: Source) -> Any:
    """Labels of the queries: from the data, or as they were kept the last time it was at hand."""
    name = f"queries-{source.dataset.name}"
    if source.splits is not None:
        packed = np.packbits(source.splits.queries.labels, axis=1)
        table = {"classes": list(source.splits.classes), "labels": [row.tobytes().hex() for row in packed]}
        source.results.keep_facts(name, table)
        return source.splits.queries.labels
    kept = source.results.facts(name)
    if kept is None:
        return None
    rows = np.array([list(bytes.fromhex(row)) for row in kept["labels"]], np.uint8)
    return np.unpackbits(rows, axis=1, count=len(kept["classes"]))


def _classes(source: Source) -> list[str]:
    if source.splits is not None:
        return list(source.splits.classes)
    kept = source.results.facts(f"queries-{source.dataset.name}")
    return list(kept["classes"]) if kept else []


def gallery_page(source: Source) -> Page:
    """The first ten photos for some queries, as in the paper's first figure."""
    sections: list[Section] = []
    title, splits = f"{source.dataset.title}: gallery", source.splits
    if splits is None:
        return page_of(source, title, sections, ["a gallery shows photos: give --data to draw it"])
    for group, records in source.backbones().items():
        found = {m.title: codes for m, r in records if (codes := source.results.codes(r)) is not None}
        if found:
            chosen = source.queries or _some_queries(splits)
            caption = "The ten photos nearest by Hamming distance, 48 bits. Below each: how many of the query's labels "
            caption += "it carries; green from 75 % of them, red at 25 % or less. " + (
                "Queries as asked for." if source.queries else "The first query with two labels, with three, and so on."
            )
            figure = draw.gallery([_query(splits, row, found) for row in chosen])
            drawn = Drawn(f"{stem_of(source, group)}-gallery", "What is found", caption, figure)
            sections.append(Section(f"{source.dataset.title}, {group}", figures=(drawn,)))
    return page_of(source, title, sections)


def _some_queries(splits: Splits) -> list[int]:
    """The first query with two labels, the first with three … up to five: nobody chose them by their results."""
    carried = splits.queries.labels.sum(axis=1, dtype=np.int64)
    firsts = [np.flatnonzero(carried == size) for size in (2, 3, 4, 5)]
    return [int(rows[0]) for rows in firsts if len(rows)] or [0]


def _query(splits: Splits, row: int, found: Mapping[str, Any]) -> draw.Query:
    wanted = splits.queries.labels[row]
    hits = {}
    for title, codes in found.items():
        _, ids = hamming.search(codes.queries[row], codes.database, 10)
        hits[title] = [
            draw.Hit(partial(splits.database.read, int(i)), int((wanted & splits.database.labels[i]).sum()))
            for i in ids[0]
        ]
    names = tuple(splits.classes[c] for c in np.flatnonzero(wanted))
    return draw.Query(partial(splits.queries.read, row), names, hits)
