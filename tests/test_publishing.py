"""What is published is whole, says what it must, and gives the same codes."""

import tomllib

import pytest
import yaml
from colours import cache, settings, splits  # noqa: F401 (fixtures)

from hyphash.errors import RunError
from hyphash.evaluation import evaluate
from hyphash.hasher import Hasher
from hyphash.publishing import publish
from hyphash.training import fit, prepare
from hyphash.training.runs import open_run


@pytest.fixture
def run(splits, settings, cache, tmp_path):
    """A run of a few epochs over drawn photos, measured."""
    folder = tmp_path / "run"
    config, hasher, loss, _ = prepare(settings(data=str(tmp_path / "secret" / "photos.csv")), splits)
    open_run(folder, config)
    for _ in fit(hasher, loss, splits, config, folder=folder, cache=cache):
        pass
    (folder / "report.json").write_text(evaluate(hasher, splits).to_json())
    return folder


def test_a_published_hasher_is_whole_and_gives_the_same_codes(run, splits, tmp_path):
    card = publish(run, tmp_path / "mine", licence="apache-2.0", about="Colours in noise.")
    folder = card.parent
    files = {".gitattributes", "README.md", "config.toml", "hasher.toml", "network.onnx", "weights.safetensors"}
    assert {path.name for path in folder.iterdir()} == files
    pixels = Hasher.load(run).encode_photos(splits.queries).values
    for device in ("cpu", "onnx"):
        assert abs(Hasher.load(folder, device=device).encode_photos(splits.queries).values - pixels).max() < 1e-3
    assert "secret" not in "".join(path.read_text() for path in folder.iterdir() if path.suffix in (".toml", ".md"))
    assert tomllib.loads((folder / "config.toml").read_text())["bits"] == 12
    _has_data_labels_protocol_figures_licence_and_use(card.read_text(encoding="utf-8"))


def _has_data_labels_protocol_figures_licence_and_use(card):
    _, head, body = card.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert (facts["license"], facts["library_name"]) == ("apache-2.0", "hyphash")
    (first, *_) = facts["model-index"][0]["results"]
    assert first["dataset"]["name"] == "colours"
    assert 0 < first["metrics"][0]["value"] <= 1
    for wanted in (
        "red, green, blue",
        "## Figures",
        "Protocol paper@",
        "What it is not for",
        "apache-2.0",
        'hf://USER/mine"',
    ):
        assert wanted in body


def test_a_run_that_was_never_measured_is_refused(run, tmp_path):
    (run / "report.json").unlink()
    with pytest.raises(RunError, match="hyphash evaluate"):
        publish(run, tmp_path / "mine", licence="mit")


def test_what_is_there_is_not_replaced(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    with pytest.raises(RunError, match="choose a new folder"):
        publish(run, tmp_path / "mine", licence="mit")
    assert (tmp_path / "mine" / "note.txt").read_text() == "mine"
