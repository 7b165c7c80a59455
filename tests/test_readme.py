"""The README says what is true."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from hyphash.cli.about import method_rows, methods_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_the_table_of_methods_is_the_registry_s():
    written = re.search("<!-- methods -->\n(.*?)\n<!-- /methods -->", METHODS, flags=re.DOTALL)
    assert written is not None
    assert written[1] == methods_table(method_rows()), "run: make docs"


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_to_a_file_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not _there((ROOT / page).parent / link)]
    assert not missing


def _there(path):
    """A file, or a page that the documentation site generates."""
    return path.exists() or path.name in ("security-policy.md", "changelog.md") or path.parent.name == "reference"


def test_map_of_the_house_names_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = {
        p.name for p in (ROOT / "src" / "hyphash").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    unnamed = {m for m in modules if not re.search(rf"^  {re.escape(m)}(/|\b)", text, flags=re.MULTILINE)}
    assert unnamed <= {"__main__.py"}


def test_figures_quoted_from_results_are_the_committed_ones():
    """A figure followed by `<!-- WHERE METHOD BITS -->` is that of the committed table, protocol `paper`.

    WHERE is a benchmark with AlexNet, a benchmark and another network (`flickr25k-inception_v3`), `frozen`, or
    frozen and a recipe (`frozen-tuned`).
    """
    quoted = re.findall(r"([.\d]+)\**<!-- ([\w-]+) ([\w-]+) (\d+) -->", README)
    assert len(quoted) >= 13
    for figure, where, method, bits in quoted:
        find = _frozen if where.startswith("frozen") else _fine_tuned
        mean = find(where, method, int(bits))
        assert f"{mean:.3f}".lstrip("0") == figure, (where, method, bits)


def _rows(path):
    return json.loads((ROOT / "docs" / "results" / path).read_text(encoding="utf-8"))["rows"]


def _fine_tuned(where, method, bits):
    benchmark, _, network = where.partition("-")
    rows = _rows(f"{benchmark}/flickr25k-{network or 'alexnet'}-map-paper.json")
    (mean,) = [row["ours"]["mean"] for row in rows if (row["method"], row["bits"]) == (method, bits)]
    return mean


def _frozen(where, method, bits):
    rows, wanted = _rows("frozen/comparison-paper.json"), (method, where.partition("-")[2] or "house", bits)
    (seeds,) = [row["by_seed"] for row in rows if (row["loss"], row["recipe"], row["bits"]) == wanted]
    assert len(seeds) == 3
    return sum(seeds.values()) / 3


def test_the_moving_picture_is_small_and_short():
    """`make picture` makes it: it loads at once, and a visitor sees it to its end."""
    file = ROOT / "docs" / "images" / "page.webp"
    assert "(docs/images/page.webp)" in README
    assert file.stat().st_size <= 1_500_000
    with Image.open(file) as picture:
        assert picture.width >= 900
        lasting = 0
        for number in range(picture.n_frames):
            picture.seek(number)
            picture.load()  # only then it knows how long it stays
            lasting += picture.info["duration"]
    assert 6000 <= lasting <= 12_000
