"""The committed results: every table comes out the same, to the byte, from the committed runs, without training."""

from pathlib import Path

import pytest

from hyphash.benchmarks import BENCHMARKS
from hyphash.benchmarks.reproduction import Comparison, Reproduction, choose_losses
from hyphash.benchmarks.runs import Results
from hyphash.config import Config

COMMITTED = Path(__file__).parents[2] / "docs" / "results"
NEEDS_CODES = {"tsne", "gallery"}  # which are not committed


def same_tables(page, folder, tmp_path):
    for table in page.tables:
        table.write(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made = (p for p in folder.iterdir() if p.suffix in (".md", ".csv", ".json") and p.name != "README.md")
    committed = {p.name: p.read_bytes() for p in made}
    assert written.keys() == committed.keys()
    assert [name for name in written if written[name] != committed[name]] == []


@pytest.fixture(scope="module")
def results():
    return Results(COMMITTED)


@pytest.mark.parametrize("name", sorted({path.name for path in COMMITTED.iterdir()} & set(BENCHMARKS) - NEEDS_CODES))
def test_a_benchmark(name, results, tmp_path):
    same_tables(Reproduction(benchmark=BENCHMARKS[name], results=results).page(), COMMITTED / name, tmp_path)


@pytest.mark.slow
def test_the_comparison_over_frozen_features(tmp_path):
    made = {"data": "flickr25k", "dataset": "flickr25k", "mode": "frozen", "validation": 0.0, "precision": "float32"}
    comparison = Comparison(
        config=Config(**made, label_layer=False), losses=choose_losses("all"), bits=(12, 24, 36, 48), seeds=(0, 1, 2),
        watch=0, recipes=("house", "published", "tuned"), results=Results(COMMITTED / "frozen"),
    )  # fmt: skip
    same_tables(comparison.page("Comparison on flickr25k"), COMMITTED / "frozen", tmp_path)
