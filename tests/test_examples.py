"""The programs in examples/ run, each as a user would start it; that of the service stands in tests/service."""

import runpy
import sys
from pathlib import Path

import pytest
from labelled import place, prepared  # noqa: F401 (fixtures)
from PIL import Image

from hyphash.losses import losses

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("train_and_search", ["some-photo.jpg"]), ("own_loss", []), ("own_similarity", [])],
)
def test_an_example_runs_and_draws_its_picture(program, arguments, place, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "photos/labels.csv", *arguments, "example"])
    monkeypatch.setattr(losses, "_classes", dict(losses._classes))  # what an example registers goes with it
    runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
    with Image.open(place / "example" / f"{program}.png") as picture:
        assert picture.width > 400


def test_the_notebook_runs_and_proxies_alone_confuse_more(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "loss_geometry.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    proxy, hyp2 = (float(line.split()[1].rstrip("%")) for line in told.splitlines()[:2])
    assert hyp2 < proxy
    assert (tmp_path / "geometry.png").is_file()
