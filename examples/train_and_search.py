"""Train on labelled photos, index them, and search with one.

python examples/train_and_search.py photos/labels.csv cat.jpg example
"""

import sys
from pathlib import Path

from PIL import Image

import hyphash
from hyphash.datasets import label_names

data, photo, into = sys.argv[1], sys.argv[2], Path(sys.argv[3])

hasher = hyphash.train(data, into=into / "run", bits=48)
splits = hyphash.load_dataset(data)
with hyphash.Collection.create(into / "collection", into / "run") as collection:
    collection.add(splits.database, labels=label_names(splits.database.labels, splits.classes))
    matches = list(collection.search(photo, k=5))

sheet = Image.new("RGB", (6 * 170, 160), "white")
for column, path in enumerate([photo, *(match.path for match in matches)]):
    sheet.paste(Image.open(path).convert("RGB").resize((160, 160)), (column * 170, 0))
sheet.save(into / "train_and_search.png")
for match in matches:
    print(f"{match.distance} bits away: {match.path} ({', '.join(match.labels)})")
