"""A similarity of one's own: photos are related when they share at least two labels.

The table of `--relevance` grades labels one by one; a function can ask anything of two photos' labels.

    python examples/own_similarity.py photos/labels.csv example
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import hyphash
from hyphash.features import default_cache
from hyphash.losses.relevance import Relevance
from hyphash.training import prepare

TWO = Relevance(lambda labels, others: ((labels @ others.T) >= 2).long())

data, into = sys.argv[1], Path(sys.argv[2])
splits, found = hyphash.load_dataset(data), {}
into.mkdir(exist_ok=True)
for name, relevance in (("shares a label", None), ("shares two", TWO)):
    config = hyphash.Config(data=data, loss="pair", mode="frozen", epochs=10)
    config, hasher, loss, _ = prepare(config, splits)
    loss.relevance = relevance
    for _ in hyphash.fit(hasher, loss, splits, config):
        pass
    report = hyphash.evaluate(hasher, splits, relevance=TWO, cache=default_cache())
    found[name] = report.mean_average_precision()
    print(f"trained with relevant = {name}: mAP {found[name]:.3f} where two labels in common are relevant")

figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
axes.bar([f"trained on\n{name}" for name in found], list(found.values()), color=["C1", "C0"])
axes.set_ylabel("mAP@1,000, two labels in common")
figure.savefig(into / "own_similarity.png", dpi=120)
