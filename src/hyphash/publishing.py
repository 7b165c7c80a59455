"""A trained hasher for others: weights, ONNX, settings and a model card, as the Hugging Face hub takes them."""

from dataclasses import replace
from pathlib import Path

from hyphash import __version__
from hyphash.config import Config, write_config
from hyphash.errors import RunError
from hyphash.evaluation import Report
from hyphash.files import new_folder
from hyphash.hasher import Hasher
from hyphash.photos import PhotoSource
from hyphash.report import render
from hyphash.training.runs import CONFIG_FILE, read_run

CARD_FILE = "README.md"
LARGE = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.onnx filter=lfs diff=lfs merge=lfs -text\n"


def publish(
    run: str | Path, to: str | Path, *, licence: str, photos: PhotoSource | None = None, about: str = ""
) -> Path:
    """Write a run's hasher to the new folder `to`, ready to upload; the path of its model card.

    The card says what a stranger has to know: data, labels, protocol, figures (those of the run's report.json),
    licence, what it is for and what not. Paths of this machine are left out. The exported network is compared with the
    original on `photos`, or on drawn ones.
    """
    run, to = Path(run), Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RunError(f"{to}: there are other things here; choose a new folder")
    config, hasher, report = read_run(run), Hasher.load(run, device="cpu"), _report(run)
    with new_folder(to) as draft:
        hasher.save(draft)
        hasher.export(draft, photos)
        write_config(draft / CONFIG_FILE, _without_paths(config))
        (draft / ".gitattributes").write_text(LARGE, encoding="utf-8")
        card = render(
            "model_card.txt", data=report.dataset or Path(config.data).stem, version=__version__, about=about,
            name=to.name, config=config, spec=hasher.spec, report=report, licence=licence,
        )  # fmt: skip
        (draft / CARD_FILE).write_text(card, encoding="utf-8")
    return to / CARD_FILE


def _report(run: Path) -> Report:
    file = run / "report.json"
    if not file.is_file():
        raise RunError(f"{run}: was never measured, and a model card has figures; run: hyphash evaluate {run}")
    return Report.parse(file.read_text(encoding="utf-8"), file)


def _without_paths(config: Config) -> Config:
    """The settings, with the names of files in the place of where they lie here."""
    weights = config.weights if config.weights in ("default", "none") else Path(config.weights).name
    by_backbone = {name: Path(file).name for name, file in config.weights_by_backbone.items()}
    return replace(
        config, data=Path(config.data).name, weights=weights, weights_by_backbone=by_backbone,
        relevance=Path(config.relevance).name if config.relevance else "", data_options={},
    )  # fmt: skip
