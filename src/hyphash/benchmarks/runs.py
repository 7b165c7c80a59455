"""A Run is one training of one method; its Record is what came of it. Finished runs are known by their hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.config import Config
from hyphash.errors import DataError, WeightsError
from hyphash.evaluation import Report
from hyphash.files import write_atomically
from hyphash.hasher import unit

FORMAT = "hyphash-run"
VERSION = 1

# What a run's result follows from, and so what its hash is made of. Where the data and the weights lie, the
# device, and how often something is saved or looked at are no part of it.
DETERMINES = (
    *("dataset", "data_options", "loss", "loss_options", "bits", "backbone", "size", "mode", "hidden", "dropout"),
    *("epochs", "batch", "optimizer", "rate", "loss_rate", "momentum", "weight_decay", "schedule", "step_every"),
    *("step_factor", "clip", "validation", "keep", "seed"),
)


@dataclass(frozen=True)
class Weights:
    """The weights a backbone starts from: "default", "none", or a file, known by its content."""

    name: str = "default"
    digest: str = ""

    @classmethod
    def of(cls, given: str) -> "Weights":
        """Those that `--weights` names."""
        if given in ("default", "none"):
            return cls(given)
        path = Path(given)
        if not path.is_file():
            raise WeightsError(f"{path}: there is no such weights file")
        with path.open("rb") as file:
            return cls(path.name, hashlib.file_digest(file, "sha256").hexdigest()[:16])


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: a config with every choice made, and the weights it starts from."""

    config: Config
    weights: Weights = Weights()
    watch: int = 0  # epochs between two looks at the queries; 0 for the last epoch alone

    @property
    def hash(self) -> str:
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """All that determines the result, as plain values."""
        from hyphash.losses import losses, option_defaults

        options = option_defaults(losses[self.config.loss]) | self.config.loss_options
        options = {name: float(value) if isinstance(value, int) else value for name, value in options.items()}
        chosen = {name: getattr(self.config, name) for name in DETERMINES}
        start = self.weights.digest or self.weights.name
        return chosen | {"loss_options": options, "weights": start, "watch": self.watch}

    def steps(self, photos: int) -> int:
        """How many steps it takes over so many photos: what compares the time of two runs best."""
        return (self.config.epochs or 0) * -(-photos // (self.config.batch or 1)) or 1

    def __str__(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.config.loss_options.items())
        return f"{self.config.loss}{options}, {self.config.bits} bits, {self.config.backbone}, seed {self.config.seed}"


@dataclass(frozen=True)
class Point:
    """The queries looked at in the middle of a run."""

    epoch: int
    seconds: float  # of training until then
    paper: float  # mAP
    strict: float


@dataclass(frozen=True, kw_only=True)
class Record:
    """What came of a run."""

    hash: str
    config: Mapping[str, Any]
    weights: Weights
    report: Report
    versions: Mapping[str, str]
    device: str
    precision: str
    alongside: int  # runs that shared the device, this one included
    seconds: Mapping[str, float]  # training (the epochs), evaluation, whole (with reading and saving)
    epoch: int  # that was measured: the last
    loss: float  # its mean loss
    photos: int  # trained on
    memory: float | None = None  # MiB on the GPU at the peak, beyond the photos kept there
    curve: tuple[Point, ...] = field(default=())

    def map(self, protocol: str = "paper") -> float:
        """mAP of the method's own ranking: by Hamming distance, or of a quantiser's codes by distance to them."""
        return next(s.mean_average_precision for s in self.report.scores if s.protocol.name == protocol)

    @property
    def photos_per_second(self) -> float:
        return self.photos * self.epoch / max(self.seconds["training"], 1e-9)

    def to_json(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {"weights": asdict(self.weights), "curve": [asdict(point) for point in self.curve]}
        values["report"] = json.loads(self.report.to_json())
        return json.dumps({"format": FORMAT, "version": VERSION, **values}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Record":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("format") != FORMAT or values.pop("version") != VERSION:
                raise DataError(f"{path}: a record of another version; delete it to run it again")
            report = Report.from_json(json.dumps(values["report"]), path)
            curve = tuple(Point(**point) for point in values["curve"])
            return cls(**values | {"report": report, "curve": curve, "weights": Weights(**values["weights"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: damaged record ({error!r}); delete it to run it again") from error


@dataclass(frozen=True)
class Found:
    """The codes of a run, for figures."""

    queries: Codes
    database: Codes
    outputs: NDArray[np.float32] | None  # of the queries, scaled to length 1; None for a quantiser, whose are wide


@dataclass(frozen=True)
class Results:
    """A folder of results: runs and their codes, shared by all benchmarks, and a folder of pages for each.

    runs/HASH.json    one Record each
    codes/HASH.npz    its codes
    work/HASH/        run folders, until the run is measured
    facts/NAME.json   what was measured without training
    settings.json     with which weights and epochs, for the next time
    NAME/             tables, figures and report.html of one benchmark
    """

    root: Path
    work: Path

    @classmethod
    def at(cls, root: Path, work: Path | None = None) -> "Results":
        return cls(root, work or root / "work")

    def record(self, run: Run) -> Record | None:
        path = self.root / "runs" / f"{run.hash}.json"
        return Record.read(path) if path.is_file() else None

    def keep(self, record: Record, codes: Found) -> None:
        """Write what came of a run: the codes first, so that a record never lacks them."""
        for folder in ("runs", "codes"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        arrays = {"queries": codes.queries.packed, "database": codes.database.packed}
        if codes.outputs is not None:
            arrays["outputs"] = unit(codes.outputs).astype(np.float16)  # their length says nothing about a ranking

        def write(draft: Path) -> None:
            with draft.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)

        write_atomically(self.root / "codes" / f"{record.hash}.npz", write)
        write_atomically(self.root / "runs" / f"{record.hash}.json", record.to_json())

    def codes(self, record: Record) -> Found | None:
        """The codes of a run, where they were kept."""
        path = self.root / "codes" / f"{record.hash}.npz"
        if not path.is_file():
            return None
        bits = int(record.config["bits"])
        with np.load(path, allow_pickle=False) as arrays:
            outputs = arrays["outputs"].astype(np.float32) if "outputs" in arrays else None
            return Found(Codes(arrays["queries"], bits), Codes(arrays["database"], bits), outputs)

    def facts(self, name: str) -> Any:
        """What was measured before under this name, or None."""
        path = self.root / "facts" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def keep_facts(self, name: str, value: Any) -> None:
        (self.root / "facts").mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "facts" / f"{name}.json", json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def settings(self) -> dict[str, dict[str, Any]]:
        """How the runs of each dataset and backbone were last made."""
        path = self.root / "settings.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def keep_settings(self, settings: dict[str, dict[str, Any]]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "settings.json", json.dumps(settings, indent=1, sort_keys=True) + "\n")
