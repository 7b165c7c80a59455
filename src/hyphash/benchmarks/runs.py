"""A Run is one training of one method; its Record is what came of it. Finished runs are known by their hash.

`plan` says which runs a benchmark asks for.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyphash.benchmarks import TUNED, Benchmark, Dataset, Method, Recipe
from hyphash.codes import Codes
from hyphash.config import BEFORE, Config, from_table
from hyphash.errors import DataError, WeightsError
from hyphash.evaluation import Report, Scores
from hyphash.files import append_json, digest, write_atomically
from hyphash.hasher import unit
from hyphash.losses import losses, option_defaults
from hyphash.training import resolve

FORMAT = "hyphash-run"
VERSION = 1
RUNS_FILE = "runs.jsonl"

# What a run's result follows from, and so what its hash is made of. Where the data and the weights lie, the
# device, and how often something is saved or looked at are no part of it.
DETERMINES = (
    *("dataset", "data_options", "loss", "loss_options", "bits", "backbone", "size", "mode", "hidden", "dropout"),
    *("epochs", "batch", "optimizer", "rate", "loss_rate", "momentum", "weight_decay", "schedule", "step_every"),
    *("step_factor", "clip", "validation", "keep", "seed", *BEFORE),
)
# Options that losses got later, with what they do without: a run that means this has the hash that it had without them.
LATER_OPTIONS = {("dlbhc", "reduction"): "mean"}
LATER = ("top", "precision")  # of the hash too; it lacked them once, and records made then are compared in them


@dataclass(frozen=True)
class Weights:
    """The weights a backbone starts from: "default", "none", or a file, known by its content; of several, all."""

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
        return cls(path.name, digest(path)[:16])

    @classmethod
    def of_config(cls, config: Config) -> "Weights":
        """Those that a config names."""
        own = {name: cls.of(file) for name, file in sorted(config.weights_by_backbone.items())}
        if not own:
            return cls.of(config.weights)
        facts = [config.weights, *((name, weights.digest or weights.name) for name, weights in own.items())]
        names = [config.weights, *(f"{name}={weights.name}" for name, weights in own.items())]
        return cls(" ".join(names), hashlib.sha256(repr(facts).encode()).hexdigest()[:16])


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: a config with every choice made, and the weights it starts from."""

    config: Config
    weights: Weights = Weights()
    watch: int = 0  # epochs between two looks at the queries; 0 for the last epoch alone

    @property
    def hash(self) -> str:
        return self._hash((*DETERMINES, *LATER))

    @property
    def earlier_hash(self) -> str:
        """What stands in records that were made when `top` and `precision` were no part of the hash."""
        return self._hash(DETERMINES)

    def _hash(self, settings: tuple[str, ...]) -> str:
        loss = self.config.loss
        options = option_defaults(losses.load(loss)) | self.config.loss_options
        options = {name: value for name, value in options.items() if LATER_OPTIONS.get((loss, name), ...) != value}
        options = {name: float(value) if isinstance(value, int) else value for name, value in options.items()}
        chosen = {name: getattr(self.config, name) for name in settings}
        chosen = {name: value for name, value in chosen.items() if name not in BEFORE or value != BEFORE[name]}
        start = self.weights.digest or self.weights.name
        text = json.dumps(chosen | {"loss_options": options, "weights": start, "watch": self.watch}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def steps(self, photos: int) -> int:
        """How many steps it takes over so many photos: what compares the time of two runs best."""
        return (self.config.epochs or 0) * -(-photos // (self.config.batch or 1)) or 1

    def __str__(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.config.loss_options.items())
        return f"{self.config.loss}{options}, {self.config.bits} bits, {self.config.backbone}, seed {self.config.seed}"


# ── which runs ───────────────────────────────────────────────────────────────────────────────────────────


def with_recipe(config: Config, recipe: Recipe) -> Config | None:
    """The config with a recipe's settings where it has none of its own; None where its method has no such recipe."""
    if recipe != "tuned":
        return config if recipe == "house" else replace(config, recipe=recipe)
    tuned = TUNED.get(resolve(config).mode, {}).get(config.loss)
    if tuned is None:
        return None
    as_usual = Config()
    open_ = {name: value for name, value in tuned.settings.items() if getattr(config, name) == getattr(as_usual, name)}
    return replace(config, **open_, loss_options=config.loss_options | tuned.loss_options)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What narrows or changes the runs of a benchmark. What is None or empty is as the benchmark has it."""

    only: tuple[str, ...] = ()
    bits: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    epochs: int | None = None
    backbone: str | None = None
    size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # any others of Config
    recipes: tuple[Recipe, ...] = ("house",)  # a row of a table for each


class Planned(NamedTuple):
    """A run, and the row of the table it is for."""

    method: Method
    run: Run


def plan(benchmark: Benchmark, dataset: Dataset, choices: Choices, weights: Mapping[str, Weights]) -> list[Planned]:
    """All runs of a benchmark on one dataset; `weights` by backbone, ImageNet's where none are named."""
    planned = []
    backbones = (choices.backbone,) if choices.backbone else dataset.backbones
    lengths = choices.bits or ((48,) if benchmark.longest else dataset.bits)
    for backbone, method, bits in product(backbones, benchmark.methods_for(dataset, choices.only), lengths):
        for seed in choices.seeds or (method.seeds[:1] if benchmark.longest else method.seeds):
            given = {
                "dataset": dataset.name, "loss": method.loss, "loss_options": dict(method.options), "bits": bits,
                "backbone": backbone, "size": choices.size or dataset.backbones.get(backbone) or None,
                "mode": "fine-tune", "epochs": choices.epochs, "seed": seed, "top": dataset.top, "batches": "cut",
                "validation": 0.0,  # all training photos train: nothing is chosen by looking
            }  # fmt: skip
            asked_for = from_table(Config, given | dict(choices.settings), benchmark.name)
            for recipe in choices.recipes:
                if config := with_recipe(asked_for, recipe):
                    start = weights.get(backbone, Weights())
                    run = Run(config=resolve(config), weights=start, watch=benchmark.watch)
                    planned.append(Planned(method.by(recipe), run))
    return planned


# ── what came of them ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Point:
    """The queries looked at in the middle of a run."""

    epoch: int
    seconds: float  # of training until then
    paper: float  # mAP
    strict: float

    def map(self, protocol: str) -> float:
        return self.paper if protocol == "paper" else self.strict


@dataclass(frozen=True, kw_only=True)
class Record:
    """What came of a run."""

    hash: str
    config: Mapping[str, Any]
    weights: Weights
    report: Report
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    alongside: int = 1  # runs that shared the device, this one included
    seconds: Mapping[str, float] = field(default_factory=dict)  # training (the epochs), evaluation, whole (and files)
    epoch: int = 0  # that was measured: the last
    loss: float = 0.0  # its mean loss
    photos: int = 0  # trained on
    memory: float | None = None  # MiB on the GPU at the peak, beyond the photos kept there
    curve: tuple[Point, ...] = field(default=())

    @classmethod
    def of_codes(cls, report: Report) -> "Record":
        """That of codes made elsewhere: nothing is known of how they were trained."""
        config = {"loss": f"{report.facts['loss']} (codes)", "bits": report.bits, "seed": 0}
        return cls(hash="", config=config, weights=Weights(), report=report)

    @property
    def bits(self) -> int:
        return int(self.config["bits"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def scores(self, protocol: str = "paper") -> Scores:
        """Of the method's own ranking: by Hamming distance, or of a quantiser's codes by distance to them."""
        return next(scores for scores in self.report.scores if scores.protocol.name == protocol)

    def map(self, protocol: str = "paper") -> float:
        return self.scores(protocol).mean_average_precision

    def top_n(self, protocol: str) -> dict[int, float]:
        """Precision of the first N photos, from a tenth of the depth of the protocol on."""
        points = self.scores(protocol).precision
        return {n: value for n, value in points if n * 10 >= points[-1][0]}

    def seconds_to(self, share: float, protocol: str) -> float | None:
        """Seconds of training until mAP first reached a share of its last value; None where nobody looked."""
        reached = (p.seconds for p in self.curve if p.map(protocol) >= share * self.curve[-1].map(protocol))
        return round(next(reached), 1) if self.curve else None

    @property
    def photos_per_second(self) -> float:
        return self.photos * self.epoch / max(self.seconds["training"], 1e-9)

    def to_table(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self), "report": self.report.to_table()}

    @classmethod
    def parse(cls, text: bytes, where: str) -> "Record":
        """The record that one line of runs.jsonl holds, or one file of a folder that an earlier version wrote."""
        try:
            values = json.loads(text)
            if values.pop("format") != FORMAT or values.pop("version") != VERSION:
                raise DataError(f"{where}: a record of another version; delete it to run it again")
            report = Report.parse(values["report"], where)
            curve = tuple(Point(**point) for point in values["curve"])
            return cls(**values | {"report": report, "curve": curve, "weights": Weights(**values["weights"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{where}: damaged record ({error!r}); delete it to run it again") from error


@dataclass(frozen=True)
class RunCodes:
    """The codes of a run, for figures."""

    queries: Codes
    database: Codes
    outputs: NDArray[np.float32] | None  # of the queries, scaled to length 1; None for a quantiser, whose are wide


class Results:
    """A folder of results: runs and their codes, shared by all benchmarks, and a folder of pages for each.

    runs.jsonl        one Record a line (runs/HASH.json, as earlier versions wrote them, are read too)
    codes/HASH.npz    its codes
    work/HASH/        run folders, until the run is measured
    facts/NAME.json   what was measured without training
    settings.json     with which weights and epochs, for the next time
    NAME/             tables, figures and report.html of one benchmark
    """

    def __init__(self, root: Path, work: Path | None = None) -> None:
        self.root = Path(root)
        self.work = work or self.root / "work"
        self._records: dict[str, Record] = {}  # by hash: each is parsed once
        self._lines = self._bytes = 0  # of runs.jsonl that were parsed
        for path in sorted((self.root / "runs").glob("*.json")):
            self._records[path.stem] = Record.parse(path.read_bytes(), str(path))

    def __reduce__(self) -> tuple[Any, ...]:  # a worker process reads for itself
        return Results, (self.root, self.work)

    def record(self, run: Run) -> Record | None:
        """What came of this very run, if it is done: trained alike, and measured alike."""
        self._read_new_lines()
        for known in (run.hash, run.earlier_hash):
            record = self._records.get(known)
            if record and all(record.config.get(name) == getattr(run.config, name) for name in LATER):
                return record
        return None

    def _read_new_lines(self) -> None:
        """Parse what this or another process has added since the last look; a line under way is left for later."""
        path = self.root / RUNS_FILE
        if not path.is_file() or path.stat().st_size == self._bytes:
            return
        with path.open("rb") as file:
            file.seek(self._bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
                record = Record.parse(line, f"{path}:{self._lines}")
                self._records[record.hash] = record

    def keep(self, record: Record, codes: RunCodes) -> None:
        """Write what came of a run: the codes first, so that a record never lacks them."""
        arrays = {"queries": codes.queries.packed, "database": codes.database.packed}
        if codes.outputs is not None:
            arrays["outputs"] = unit(codes.outputs).astype(np.float16)  # their length says nothing about a ranking
        packed = BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        self._write(f"codes/{record.hash}.npz", packed.getvalue())
        append_json(self.root / RUNS_FILE, record.to_table())

    def codes(self, record: Record) -> RunCodes | None:
        """The codes of a run, where they were kept."""
        path = self.root / "codes" / f"{record.hash}.npz"
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            outputs = arrays["outputs"].astype(np.float32) if "outputs" in arrays else None
            return RunCodes(Codes(arrays["queries"], record.bits), Codes(arrays["database"], record.bits), outputs)

    def facts(self, prefix: str) -> dict[str, Any]:
        """What was measured without training under names that begin so, by the rest of the name."""
        paths = sorted((self.root / "facts").glob(f"{prefix}*.json"))
        return {path.stem.removeprefix(prefix): json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def keep_facts(self, name: str, value: Any) -> None:
        self._write(f"facts/{name}.json", json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def settings(self) -> dict[str, dict[str, Any]]:
        """How the runs of each dataset and backbone were last made."""
        path = self.root / "settings.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def keep_settings(self, settings: dict[str, dict[str, Any]]) -> None:
        self._write("settings.json", json.dumps(settings, indent=1, sort_keys=True) + "\n")

    def _write(self, name: str, content: bytes | str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
