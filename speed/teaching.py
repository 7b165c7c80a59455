"""What photos teach that are labelled in the order of the Tag page, beside as many drawn at random.

    python speed/teaching.py FLICKR25K [--fold 0 … 4] [--into docs/images/teaching.png]

The 4,000 training photos stand in a collection without labels, with the hasher that needs none. `Collection.to_tag`
says which to look at, a page at a time, and they get their labels. At some points what is known by then is learned as
`hyphash refine` does it, with its epochs and one photo in ten held back, and the collection moves if it would. What was
learned, moved or not, is measured after 50, 200 and 1,000 photos: mAP@1,000 (`paper`) of the queries in the database,
and the label AP of the queries, the mean over all 38 labels; one on fewer than 10 photos is told by its carriers as the
collection tells it, one on none by nothing. With --fold a fold of the training photos judges, the others are labelled:
orders are chosen by that alone. Lines that are printed are added to the file --log; with --into they are drawn.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyphash import plots, refining
from hyphash.collection import Collection
from hyphash.datasets import Split, Splits, label_names, load_dataset
from hyphash.evaluation import encode_split, evaluate
from hyphash.evaluation.labelling import average_precisions
from hyphash.features import default_cache
from hyphash.guesses import starter
from hyphash.hasher import Hasher
from hyphash.searchers.local.scores import features_of
from quality import fill

LEARNED = (50, 100, 200, 400, 700, 1000)  # labelled photos when they are learned from
MEASURED = (50, 200, 1000)
PAGE = 100  # photos that the Tag page asks for at once
SEEDS, FOLDS, HELD_OUT = 3, 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--fold", type=int, help="let this fifth of the training photos judge")
    parser.add_argument("--orders", nargs="*", default=["telling", *(f"random {seed}" for seed in range(SEEDS))])
    parser.add_argument("--log", type=Path, default=Path("teaching.jsonl"))
    parser.add_argument("--into", type=Path, help="draw all that is in the log")
    given = parser.parse_args()
    torch.set_num_threads(1)
    teaching = Teaching(load_dataset(given.data, "flickr25k"), given.fold)
    for order in given.orders:
        for line in teaching.curve(order):
            text = json.dumps({"order": order, "fold": given.fold, **line})
            print(text, flush=True)
            with given.log.open("a") as file:
                file.write(text + "\n")
    if given.into:
        plots.save(drawn([json.loads(line) for line in given.log.read_text().splitlines()]), given.into)


class Teaching:
    """Photos to label, and others to judge what was learned from them."""

    def __init__(self, splits: Splits, fold: int | None) -> None:
        self.photos, self.judges, self.queries, self.database = (
            splits.train, splits.queries, splits.queries, splits.database,
        )  # fmt: skip
        if fold is not None:
            parts = np.array_split(np.random.default_rng([0, FOLDS]).permutation(len(splits.train)), FOLDS)
            self.judges = splits.train.take(parts[fold])
            self.queries, self.database = (self.judges.take(slice(half, None, 2)) for half in (0, 1))
            self.photos = splits.train.take(np.sort(np.concatenate(parts[:fold] + parts[fold + 1 :])))
        self.classes, self.start, self.cache = splits.classes, starter(device="cpu"), default_cache()
        self.names = [tuple(some) for some in label_names(self.photos.labels, splits.classes)]

    def curve(self, order: str) -> Iterator[dict[str, Any]]:
        """What is learned from photos in this order, at each point."""
        drawn_at = order.split()[1:]
        drawn = np.random.default_rng(int(drawn_at[0])).permutation(len(self.names)).tolist() if drawn_at else []
        hasher, rows = self.start, list[int]()
        yield {"photos": 0, "map": self.precision(hasher)}
        for count in MEASURED if drawn else LEARNED:
            rows = drawn[:count] or self.asked(hasher, rows, count)
            new, moved = self.learned(hasher, rows)
            if count in MEASURED:
                learned = {"labels": new.spec.learned, "moved": moved}
                yield {"photos": count, **learned, "map": self.precision(new), "label_ap": self.label_ap(new, rows)}
            hasher = new if moved and not drawn else hasher

    @contextmanager
    def collection(self, hasher: Hasher, rows: Sequence[int]) -> Iterator[tuple[Collection, list[int]]]:
        """All photos, and their numbers there; these rows of them have labels."""
        labels = [self.names[row] if row in {*rows} else () for row in range(len(self.names))]
        with tempfile.TemporaryDirectory() as folder, Collection.create(Path(folder) / "c", hasher) as made:
            yield made, fill(made, hasher, encode_split(hasher, self.photos, cache=self.cache), labels)

    def asked(self, hasher: Hasher, rows: list[int], count: int) -> list[int]:
        """These rows and, up to so many, those that the Tag page asks about next."""
        with self.collection(hasher, rows) as (collection, ids):
            while len(rows) < count:
                found = [ids.index(photo.id) for photo in collection.to_tag(min(PAGE, count - len(rows)))]
                for row in found:
                    collection.relabel(ids[row], self.names[row])
                rows = rows + found
        return rows

    def learned(self, present: Hasher, rows: list[int]) -> tuple[Hasher, bool]:
        """A hasher that was trained with these photos, and whether `refine` would take it for the present one."""
        labels = self.photos.labels[rows]
        common = np.flatnonzero(labels.sum(0) >= refining.LEARNED)
        held, rest = (
            Split(self.photos.photos, self.photos.rows[part], self.photos.labels[part][:, common])
            for part in (sorted(rows[::HELD_OUT]), sorted({*rows} - {*rows[::HELD_OUT]}))
        )
        splits = Splits("collection", tuple(self.classes[i] for i in common), rest, held, rest)
        with tempfile.TemporaryDirectory() as folder:
            new = refining._trained(Path(folder), present, splits, self.cache, lambda _: None, lambda: False)
        both = zip(*(refining._precisions(hasher, splits, self.cache) for hasher in (present, new)), strict=True)
        signs = [refining.Gain.of(*each).sign for each in both]
        refining._keep_guessing(new, present, splits, self.cache)
        return new, max(signs) > 0 <= min(signs)

    def precision(self, hasher: Hasher) -> float:
        """mAP of codes."""
        queries, database = (encode_split(hasher, part, cache=self.cache) for part in (self.queries, self.database))
        splits = Splits("judges", self.classes, self.photos, self.queries, self.database)
        report = evaluate(hasher, splits, protocols=["paper"], asymmetric=False, encoded=(queries, database))
        return round(report.scores[0].mean_average_precision, 4)

    def label_ap(self, hasher: Hasher, rows: list[int]) -> float:
        """Of labels that are learned, or guessed, by their logits, of others by what their carriers teach."""
        judges = encode_split(hasher, self.judges, cache=self.cache)
        assert hasher.calibration is not None
        assert judges.logits is not None
        values = features_of(judges.codes, hasher.calibration.pack(judges.logits))
        scores = np.zeros(self.judges.labels.shape, np.float32)
        with self.collection(hasher, rows) as (collection, _):
            for column, label in enumerate(self.classes):
                if label in hasher.classes:
                    scores[:, column] = judges.logits[:, hasher.classes.index(label)]
                elif (term := collection.sources.get(label, hasher)) and isinstance(term.source, bytes):
                    weights = np.frombuffer(term.source, np.float32)
                    scores[:, column] = values @ weights[:-1] + weights[-1]
        return round(float(np.nanmean(average_precisions(scores, judges.split.labels))), 4)


def drawn(lines: list[dict[str, Any]]) -> Any:
    """Both measures over the photos that were labelled; of random orders the mean, and from the least to the most."""
    figure, (both,) = plots.panels(8.4, 3.4, columns=2)
    for axes, key, name in zip(both, ("label_ap", "map"), ("Label AP, mean over labels", "mAP of codes"), strict=True):
        for order, shown, colour in (("telling", "teaches most", 0), ("random", "at random", 1)):
            points = [
                [line[key] for line in lines if line["order"].startswith(order) and line["photos"] == count]
                for count in MEASURED
            ]
            axes.plot(MEASURED, [np.mean(some) for some in points], marker="o", markersize=4, linewidth=1.6,
                      color=plots.COLOURS[colour], label=shown)  # fmt: skip
            least, most = zip(*((min(some), max(some)) for some in points), strict=True)
            axes.fill_between(MEASURED, least, most, color=plots.COLOURS[colour], alpha=0.15, linewidth=0)
        if key == "map":
            before = next(line[key] for line in lines if not line["photos"])
            axes.axhline(before, color=plots.COLOURS[6], linestyle="--", linewidth=1.2, label="before the first (ITQ)")
        axes.set(xscale="log", xlabel="photos labelled")
        axes.set_xticks(MEASURED, [f"{count:,}" for count in MEASURED])
        axes.minorticks_off()
        plots.title(axes, name)
    both[1].legend(frameon=False, fontsize=8, labelcolor=plots.INK, loc="lower right")
    return figure


if __name__ == "__main__":
    main()
