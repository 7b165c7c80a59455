"""How large a search will be: memory, disk, machines and time for each engine, from measured figures, with formulas.

planning.json is what `speed/engines.py --json` measured: one record for each engine and number of codes. All estimates
are measured figures scaled; nothing else is known here.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.resources import files
from typing import Literal

from hyphash.codes import MAX_BITS, bytes_for
from hyphash.errors import ConfigError

ENGINES: dict[str, bool] = {  # and whether one collection may be spread over several machines
    "local": False,
    "faiss": False,
    "faiss-approximate": False,
    "postgresql": True,
    "postgresql-approximate": True,
    "milvus": True,
    "milvus-approximate": True,
}
FULL = 0.7  # share of a machine's memory that codes may take, and of its time that queries may
LABEL_BYTES = 16  # of one label of one photo on disk, its index included
FAR = 100  # times more photos than were measured: from here on an estimate is called a guess
LEAST = 0.2  # power of codes that any index slows down with: hamming.Index took 22 µs of 100M codes, 8.3 of 1M
DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be searched, and on what machines."""

    photos: int
    bits: int = 64
    qps: float = 1.0
    labels_per_photo: float = 0.0
    replicas: int = 1
    node_memory: float = 256e9  # bytes
    node_cores: int = 32
    k: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise ConfigError(f"a code has 1 to {MAX_BITS} bits, not {self.bits}")
        for name in ("photos", "qps", "replicas", "node_memory", "node_cores", "k"):
            if not (value := getattr(self, name)) > 0 or math.isinf(value):
                raise ConfigError(f"--{name.replace('_', '-')} {value}: it must be a number above 0")
        if not 0 <= self.labels_per_photo < math.inf:
            raise ConfigError(f"--labels-per-photo {self.labels_per_photo}: it must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An engine with so many codes, on one machine."""

    engine: str
    codes: int
    bits: int
    load_per_second: float
    p50_ms: float
    p99_ms: float
    qps_1: float
    qps_8: float
    bytes_on_disk: int
    bytes_in_memory: int
    recall_10: float
    recall_100: float
    cores: int = 2
    labels_per_photo: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """How fast photos are encoded."""

    encoder: Literal["core", "GPU"]
    machine: str
    backbone: str
    photos_per_second: float


ENCODERS = (
    Encoder(
        encoder="core", machine="one core of an AMD EPYC (Zen 4), exported, photos of 500 × 375",
        backbone="efficientnet_lite0", photos_per_second=119,
    ),
    Encoder(
        encoder="GPU", machine="an NVIDIA H200 with 16 cores that decode, photos of 500 × 375", photos_per_second=3931,
        backbone="efficientnet_lite0",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One number with its formula."""

    name: str
    value: float
    text: str
    formula: str


@dataclass(frozen=True)
class Estimate:
    """What an engine needs; no figures where nobody has measured it yet, or where it does not fit."""

    engine: str
    figures: tuple[Figure, ...] = ()
    note: str = ""

    def __getitem__(self, name: str) -> float:
        return next(figure.value for figure in self.figures if figure.name == name)


class Scale:
    """How an engine's figures change with the number of codes, from one measurement or several."""

    def __init__(self, wish: Wish, records: Sequence[Measured]) -> None:
        nearest = min(abs(record.bits - wish.bits) for record in records)
        alike = sorted((r for r in records if abs(r.bits - wish.bits) == nearest), key=lambda r: r.codes)
        self.wish = wish
        self.base = alike[-1]  # the largest is the nearest to what is asked
        self.approximate = self.base.engine.endswith("-approximate")
        self.power = _power(alike)

    @property
    def scans(self) -> bool:
        """Whether all codes are looked at, by all cores: exact, and not measured to do better."""
        return not self.approximate and self.power > 0.9

    def growth(self, codes: float) -> float:
        """By what a query takes longer than in the measurement.

        A scan: in proportion to the bytes. An index: (codes / measured)^power, the power from two measurements; without
        them log codes / log measured.
        """
        ratio = codes / self.base.codes
        if self.scans:
            return ratio * bytes_for(self.wish.bits) / bytes_for(self.base.bits)
        if math.isnan(self.power):
            return max(math.log2(max(codes, 2)) / math.log2(max(self.base.codes, 2)), 1e-3)
        return float(ratio**self.power)

    @cached_property
    def formula(self) -> str:
        """The same in words; `codes` are those of one part."""
        measured = f"{self.base.codes:,}"
        if self.scans:
            return f"(codes ÷ {measured}) × ({bytes_for(self.wish.bits)} ÷ {bytes_for(self.base.bits)} bytes)"
        if math.isnan(self.power):
            return f"(log codes ÷ log {measured})"
        return f"(codes ÷ {measured})^{self.power:.2f}"

    @property
    def least_parts(self) -> int:
        """Into how many parts the codes must be cut to fit into memory."""
        return max(1, math.ceil(self.wish.photos * self.bytes_in_memory / (self.wish.node_memory * FULL)))

    @property
    def bytes_in_memory(self) -> float:
        """Of one photo; only the code itself changes with its length."""
        return self._per_photo(self.base.bytes_in_memory)

    @property
    def bytes_on_disk(self) -> float:
        """Of one photo, and of the labels that it carries beyond those that were measured."""
        labels = self.wish.labels_per_photo - self.base.labels_per_photo
        return max(self._per_photo(self.base.bytes_on_disk) + labels * LABEL_BYTES, bytes_for(self.wish.bits))

    def _per_photo(self, measured: int) -> float:
        more = bytes_for(self.wish.bits) - bytes_for(self.base.bits)
        return max(measured / self.base.codes + more, bytes_for(self.wish.bits))

    def latency(self, codes: float) -> float:
        """Seconds of one query on one machine."""
        cores = self.base.cores / self.wish.node_cores if self.scans else 1.0
        return self.base.p50_ms / 1000 * self.growth(codes) * cores

    def throughput(self, codes: float) -> float:
        """Queries a second of one machine."""
        return self.base.qps_8 * self.wish.node_cores / self.base.cores / self.growth(codes)


def _power(records: Sequence[Measured]) -> float:
    """The p of time ∝ codes^p through the smallest and the largest measurement, within LEAST … 1.

    With one measurement: 1 for a scan, NaN (nobody knows) for an approximate index.
    """
    first, last = records[0], records[-1]
    if first.codes == last.codes:
        return math.nan if last.engine.endswith("-approximate") else 1.0
    return min(max(math.log(last.p50_ms / first.p50_ms) / math.log(last.codes / first.codes), LEAST), 1.0)


def plan(wish: Wish, records: Iterable[Measured] | None = None) -> list[Estimate]:
    """One estimate for each engine."""
    known = list(measured_engines() if records is None else records)
    return [_estimate(name, wish, [record for record in known if record.engine == name]) for name in ENGINES]


def _estimate(engine: str, wish: Wish, records: Sequence[Measured]) -> Estimate:
    if not records:
        return Estimate(engine, note="not measured yet")
    scale, spread = Scale(wish, records), ENGINES[engine]
    if scale.least_parts > 1 and not spread:
        need = _bytes(wish.photos * scale.bytes_in_memory / FULL)
        note = f"does not fit: it lives on one machine, which needs {need} of memory"
        return Estimate(engine, tuple(_room(wish, scale, wish.replicas, 1)), note)
    nodes, parts = machines(wish, scale, spread=spread)
    figures = (*_room(wish, scale, nodes, parts), *_nodes(wish, scale, nodes, parts), *_time(wish, scale, parts))
    return Estimate(engine, figures, _note(wish, scale))


def _room(wish: Wish, scale: Scale, nodes: int, parts: int) -> Iterator[Figure]:
    for name, each in (("memory", scale.bytes_in_memory), ("disk", scale.bytes_on_disk)):
        value = wish.photos * each * nodes / parts
        formula = f"{wish.photos:,} × {each:.1f} bytes × {nodes:,} nodes ÷ {parts:,} parts"
        yield Figure(name, value, _bytes(value), formula)


def _nodes(wish: Wish, scale: Scale, nodes: int, parts: int) -> Iterator[Figure]:
    n, memory = f"{wish.photos:,}", scale.bytes_in_memory
    least, throughput = scale.least_parts, scale.throughput(wish.photos / scale.least_parts)
    formula = f"{n} × {memory:.1f} bytes ÷ ({FULL:g} × {_bytes(wish.node_memory)}) → {least:,} for memory"
    if parts > least:
        formula += f", as many as there are nodes ÷ {wish.replicas} replicas for speed"
    yield Figure("parts", parts, f"{parts:,}", formula)
    formula = (
        f"the larger of {wish.replicas} × {least:,} and {least:,} × {wish.qps:g} ÷ ({FULL:g} × {_number(throughput)})"
    )
    yield Figure("nodes", nodes, f"{nodes:,}", formula)


def _time(wish: Wish, scale: Scale, parts: int) -> Iterator[Figure]:
    base, codes = scale.base, wish.photos / parts
    cores = f" × {base.cores} ÷ {wish.node_cores} cores" if scale.scans else ""
    formula = f"{_number(base.qps_8)} × {wish.node_cores} ÷ {base.cores} cores ÷ {scale.formula}"
    yield Figure("queries a second, one node", scale.throughput(codes), _number(scale.throughput(codes)), formula)
    formula = f"{base.p50_ms:g} ms × {scale.formula}{cores}"
    yield Figure("latency p50", scale.latency(codes), _seconds(scale.latency(codes)), formula)
    seconds = codes / base.load_per_second
    yield Figure("loading", seconds, _seconds(seconds), f"codes ÷ {base.load_per_second:,.0f} a second")


def _note(wish: Wish, scale: Scale) -> str:
    top, recall = (10, scale.base.recall_10) if wish.k <= 10 else (100, scale.base.recall_100)
    answers = f"recall@{top} {recall:.3f} when measured" if scale.approximate else "exact"
    far = wish.photos / scale.base.codes
    return answers + (f"; measured with {scale.base.codes:,} codes only, a guess" if far > FAR else "")


def machines(wish: Wish, scale: Scale, *, spread: bool) -> tuple[int, int]:
    """How many machines, and over how many parts a query goes: (nodes, parts).

    least = ⌈photos × bytes ÷ (FULL × memory of a node)⌉ parts fit into memory. A query keeps all `least` nodes of a
    copy busy for 1 ÷ throughput, so
    nodes = max(replicas × least, ⌈least × qps ÷ (FULL × throughput(photos ÷ least))⌉).
    The work of a scan is the same in any number of parts, so it is cut into as many as there are nodes for.
    """
    least = scale.least_parts
    busy = least * wish.qps / (FULL * scale.throughput(wish.photos / least))
    nodes = max(wish.replicas * least, math.ceil(busy))
    return nodes, nodes // wish.replicas if spread and scale.scans else least


def encoding(wish: Wish, records: Iterable[Encoder] = ENCODERS) -> list[Figure]:
    """How long encoding takes, and how many cores or GPUs do it within a day."""
    n, found = f"{wish.photos:,}", []
    for one in records:
        seconds = wish.photos / one.photos_per_second
        rate = f"{_number(one.photos_per_second)} photos a second ({one.backbone}, {one.machine})"
        found += [
            Figure(f"encoding, one {one.encoder}", seconds, _seconds(seconds), f"{n} ÷ {rate}"),
            Figure(f"{one.encoder}s to encode within a day", math.ceil(seconds / DAY), f"{math.ceil(seconds / DAY):,}",
                   f"{n} ÷ {_number(one.photos_per_second)} a second ÷ {DAY:,} s"),
        ]  # fmt: skip
    return found


def measured_engines() -> list[Measured]:
    """What planning.json says; programs that measure may write down more than is known here."""
    known = {field.name for field in fields(Measured)}
    records = json.loads(files("hyphash").joinpath("planning.json").read_text(encoding="utf-8"))
    return [Measured(**{name: value for name, value in record.items() if name in known}) for record in records]


def size_of(text: str) -> float:
    """Bytes from what people write.

    >>> size_of("256GB"), size_of("1.5 TiB"), size_of("4096")
    (256000000000.0, 1649267441664.0, 4096.0)
    """
    units = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "": 1}
    number = text.strip().lower().rstrip("bikmgt ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        return float(number) * units[unit]
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is no size; write 256GB or 64GiB") from None


def _bytes(value: float) -> str:
    """
    >>> _bytes(5.22e10), _bytes(999)
    ('52.2 GB', '999 bytes')
    """
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} bytes"


def _number(value: float) -> str:
    """
    >>> _number(33990.4), _number(0.01234)
    ('33,990', '0.0123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    """
    >>> _seconds(0.0123), _seconds(90), _seconds(7200), _seconds(200_000)
    ('12.3 ms', '90 s', '2 hours', '2.31 days')
    """
    for unit, size in (("days", DAY), ("hours", 3600)):
        if value >= 2 * size or (unit == "hours" and value >= size):
            return f"{value / size:,.3g} {unit}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
