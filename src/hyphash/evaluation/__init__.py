"""Evaluation: how well codes find the photos that share labels with a query. Protocol in, Report out.

Measures with ties by expectation come from one histogram per query, those by id from exact selection of the
first N: the distances of all queries to all photos are never held, and the database is never sorted.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import DataError, LabelError
from hyphash.evaluation import measures
from hyphash.evaluation.geometry import bit_use, separation
from hyphash.evaluation.labelling import Labelling, labelling
from hyphash.evaluation.measures import Protocol, average_precision
from hyphash.evaluation.rankings import Measured, PerQuery, RankedBy, Rankings
from hyphash.evaluation.record import Curve, LabelScore, Report, Scores, compare_reports
from hyphash.evaluation.significance import Interval, difference, intervals, pack

if TYPE_CHECKING:
    from hyphash.datasets import Split, Splits
    from hyphash.hasher import Hasher, Progress
    from hyphash.losses.relevance import Relevance
    from hyphash.photos import Problem

__all__ = [  # of what stands in other modules
    "Curve", "Interval", "LabelScore", "Labelling", "Protocol", "RankedBy", "Rankings", "Report", "Scores",
    "average_precision", "compare_reports", "difference",
]  # fmt: skip

PROTOCOLS = ("paper", "strict")
TOP = 1000


@dataclass(frozen=True)
class EncodedSplit:
    """The photos of a split that could be read, their outputs, codes and logits of labels; and those that could not."""

    split: "Split"
    outputs: NDArray[np.float32]
    codes: Codes
    problems: tuple["Problem", ...] = ()
    logits: NDArray[np.float32] | None = None

    def prefix(self, bits: int) -> "EncodedSplit":
        """With the first so many bits of nested codes alone."""
        outputs = self.outputs[:, :bits]
        return EncodedSplit(self.split, outputs, Codes.from_outputs(outputs), self.problems)


def encode_split(
    hasher: "Hasher", split: "Split", *, cache: Path | None = None, progress: "Progress | None" = None
) -> EncodedSplit:
    """A split as `evaluate` measures it. With `cache`, by way of features that are kept there: see `evaluate`."""
    if cache is None:
        encoded = hasher.encode_photos(split, progress=progress)
    else:
        from hyphash.features import encode_cached

        encoded = encode_cached(hasher, split, cache=cache, progress=progress)
    codes = hasher.to_codes(encoded.values)
    return EncodedSplit(split.take(encoded.rows), encoded.values, codes, encoded.problems, encoded.logits)


def evaluate(
    hasher: "Hasher",
    splits: "Splits",
    *,
    top: int | None = TOP,
    protocols: Sequence[Protocol | str] = PROTOCOLS,
    asymmetric: bool = True,
    cache: Path | None = None,
    encoded: tuple[EncodedSplit, EncodedSplit] | None = None,
    relevance: "Relevance | None" = None,
    facts: Mapping[str, str] | None = None,
    progress: "Progress | None" = None,
) -> Report:
    """Rank the database of a dataset for each of its queries and measure the rankings.

    Photos that cannot be read are left out and named in the report's `problems`.

    cache    folder of features (`features.default_cache()`), for a hasher whose backbone stayed frozen: those of photos
             that were seen before are not computed again
    encoded  queries and database, where they are encoded already or needed afterwards: as `encode_split` gives them,
             or, for many runs over photos that are decoded once, made from the outputs of each run
    relevance  what is relevant to a query, in place of the photos that share a label with it
    """
    queries, database = encoded or (
        encode_split(hasher, part, cache=cache, progress=progress) for part in (splits.queries, splits.database)
    )
    labels = queries.split.labels, database.split.labels
    outputs = queries.outputs if asymmetric or hasher.quantizer else None
    rankings = Rankings(
        queries.codes, database.codes, *labels, query_outputs=outputs, quantizer=hasher.quantizer, relevance=relevance
    )
    problems = tuple(problem.reason for problem in queries.problems + database.problems)
    about = {"facts": dict(facts or {}), "problems": problems, "photos": checksum(queries.split, database.split)}
    report = evaluate_codes(
        rankings, top=top, protocols=protocols, classes=splits.classes, dataset=splits.name, **about
    )
    if queries.logits is None or database.logits is None or hasher.calibration is None:
        return report
    if hasher.classes != splits.classes:  # of labels that it was not trained with it has no logits
        return report
    return replace(report, labelling=labelling((queries.logits, database.logits), labels, hasher.calibration))


def evaluate_codes(
    rankings: Rankings,
    *,
    top: int | None = TOP,
    protocols: Sequence[Protocol | str] = PROTOCOLS,
    classes: Sequence[str] | None = None,
    **about: Any,
) -> Report:
    """Measure codes against codes. `protocols` given by name are measured over the first `top` photos (None: all).

    about  what the report says of them beside: dataset, facts, problems, photos
    """
    wanted = _protocols(protocols, top)
    measured = {kind: rankings.measured(kind, wanted) for kind in rankings.kinds}
    results = [(kind, protocol, measured[kind].results[protocol]) for kind in rankings.kinds for protocol in wanted]
    sure = intervals(np.stack([result.average_precision for *_, result in results], axis=1))
    histogram = rankings.histogram if "hamming" in rankings.kinds else None
    return Report(
        bits=rankings.queries.bits,
        queries=len(rankings.queries),
        database=len(rankings.database),
        hopeless=int((rankings.relevant == 0).sum()),
        scores=tuple(_scores(rankings, *result, interval) for result, interval in zip(results, sure, strict=True)),
        curve=Curve(*(tuple(v.tolist()) for v in measures.precision_recall(histogram))) if histogram else None,
        precision_within_2=measures.precision_within(histogram, 2) if histogram else None,
        labels=tuple(_label_scores(rankings, classes, measured[rankings.kinds[0]])),
        separation=separation(rankings.database, rankings.database_labels) if histogram else None,
        bit_use=bit_use(rankings.database),
        **about,
    )


def mean_average_precision(rankings: Rankings, *, top: int | None = TOP, protocol: Protocol | str = "paper") -> float:
    """The first mean average precision of `evaluate_codes`: by Hamming distance, or by that of a quantiser's codes."""
    (wanted,) = _protocols([protocol], top)
    return float(rankings.average_precision(wanted).mean())


def _protocols(given: Sequence[Protocol | str], top: int | None) -> list[Protocol]:
    wanted = [Protocol.preset(protocol, top) if isinstance(protocol, str) else protocol for protocol in given]
    if not wanted:
        raise DataError("name at least one protocol to measure by, such as 'paper'")
    return list(dict.fromkeys(wanted))


def checksum(*splits: "Split") -> str:
    """Of the photos and their labels, in their order: reports of equal ones can be compared query by query."""
    found = hashlib.sha256()
    for split in splits:
        names = "\n".join(split.name(i).rpartition("/")[2] for i in range(len(split)))
        found.update(names.encode(errors="surrogateescape") + np.packbits(split.labels, axis=1).tobytes())
    return found.hexdigest()[:16]


def label_checksum(*labels: NDArray[np.uint8]) -> str:
    """Of labels alone, where photos have no names: codes made elsewhere."""
    return hashlib.sha256(b"".join(np.packbits(part, axis=1).tobytes() for part in labels)).hexdigest()[:16]


def _scores(rankings: Rankings, ranked_by: RankedBy, protocol: Protocol, result: PerQuery, sure: Interval) -> Scores:
    values = result.average_precision
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Scores(
        ranked_by=ranked_by,
        protocol=protocol,
        mean_average_precision=float(values.mean()),
        standard_error=spread / len(values) ** 0.5,
        weighted_average_precision=float(result.weighted.mean()),
        ndcg=float(result.ndcg.mean()),
        average_gain=float(result.gain.mean()),
        precision=tuple(zip(rankings.depths(protocol), result.precision.mean(axis=0).tolist(), strict=True)),
        interval=sure,
        by_query=pack(values),
    )


def _label_scores(rankings: Rankings, classes: Sequence[str] | None, measured: Measured) -> Iterator[LabelScore]:
    found, photos = measured.found, rankings.photos_with_label
    names = classes or [str(label) for label in range(found.shape[1])]
    if len(names) != found.shape[1]:
        raise LabelError(f"{len(names)} class names for labels with {found.shape[1]} columns")
    for label, name in enumerate(names):
        carrying = rankings.query_labels[:, label] > 0
        values = [result.average_precision[carrying] for result in measured.results.values()]
        yield LabelScore(
            name=name,
            queries=int(carrying.sum()),
            photos=int(photos[label]),
            average_precision=tuple(float(each.mean()) if len(each) else None for each in values),
            found=float(found[carrying, label].mean()) if carrying.any() and photos[label] > 0 else None,
            chance=float(photos[label] / len(rankings.database)),
        )
