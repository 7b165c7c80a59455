"""A few labelled photos to try commands, examples and code blocks on, and a run and a collection made from them."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hyphash.cli import main


def draw_photos(folder: Path) -> None:
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


def run_command(words: list[str]) -> None:
    """A command of hyphash, in this process; it must end well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code in (0, None), words


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, the run of a few epochs and its collection, under the names that the pages use."""
    folder = tmp_path_factory.mktemp("prepared")
    draw_photos(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HYPHASH_CACHE", str(folder / "cache"))
        for run, seed in (("runs/mine", "0"), ("runs/a", "1"), ("runs/b", "2")):
            run_command(f"hyphash train photos/labels.csv --epochs 3 --seed {seed} --into {run}".split())
        run_command(["hyphash", "index", "runs/mine", "photos/labels.csv", "--into", "my-collection"])
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the prepared, as the current folder."""
    folder = Path(shutil.copytree(prepared, tmp_path / "place"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HYPHASH_CACHE", str(folder / "cache"))
    return folder
