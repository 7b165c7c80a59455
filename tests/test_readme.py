"""The README says what is true."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyphash.cli import main
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
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing


def test_commands_in_the_readme_exist():
    from hyphash.cli import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}
    used = set(re.findall(r"hyphash ([a-z]+) ", README))
    assert used - {"is", "learns"} <= known


@pytest.mark.slow
def test_examples_of_shell_and_python_work_one_after_the_other_in_one_folder(tmp_path, monkeypatch):
    """`Your own photos`, as it stands there, with photos that carry its labels; but nothing is installed or served."""
    shell, python = re.search(
        "## Your own photos.*?```\n(.*?)```.*?```python\n(.*?)```", README, flags=re.DOTALL
    ).groups()
    draw_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYPHASH_CACHE", str(tmp_path / "cache"))
    commands = [line.partition("#")[0].split() for line in shell.splitlines()]
    assert [words[0] for words in commands] == ["pip"] + ["hyphash"] * 8
    for words in commands[1:-1]:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
    exec(python, {})


def draw_photos(folder):
    """photos/labels.csv and two photos more; a label is a stripe of its colour."""
    colours = {"dog": (200, 30, 30), "beach": (30, 200, 30), "car": (30, 30, 200)}
    sets = [("dog", "beach"), ("beach", "car"), ("dog",), ("car", "dog"), ("car",), ("beach",)] * 5
    (folder / "photos").mkdir()
    lines = ["image,labels"]
    for i, labels in enumerate(sets):
        pixels = np.random.default_rng(i).integers(0, 40, (64, 64, 3), np.uint8)
        for stripe, label in enumerate(labels):
            pixels[:, 32 * stripe : 32 * stripe + 24] += np.array(colours[label], np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.jpg")
        lines.append(f"{i}.jpg,{'|'.join(labels)}")
    (folder / "photos" / "labels.csv").write_text("\n".join(lines) + "\n")
    for number, name in enumerate(("some-photo.jpg", "another.jpg")):
        shutil.copy(folder / "photos" / f"{number}.jpg", folder / name)


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
