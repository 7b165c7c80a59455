"""How large a search will be: memory, disk, machines and time for each engine, from measured figures, with formulas.

planning.json is what `speed/engines.py --json` measured: one record for each engine and number of codes. All estimates
are measured figures scaled; nothing else is known here.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Literal

from hyphash.codes import MAX_BITS, bytes_for
from hyphash.errors import ConfigError

SERVERS = ("postgresql", "postgresql-approximate", "milvus", "milvus-approximate")  # over one machine or several
ENGINES = ("local", "faiss", "faiss-approximate", *SERVERS)
FULL = 0.7  # share of a machine's memory that codes may take, and of its time that queries may
LABEL_BYTES = 16  # of one label of one photo on disk, its index included
FAR, NEAR = 100, 0.1  # times the photos that were measured: beyond, an estimate is called a guess
BUILD = {"postgresql-approximate": 600}  # bytes a photo that building the index takes, see docs/engines.md
MOST = 10**15  # photos: more than anyone has
LEAST = 0.2  # power of codes that any index slows down with: hamming.Index took 22 µs of 100M codes, 8.3 of 1M
DAY = 86_400


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be searched, and on what machines."""

    photos: int
    bits: int = 64
    qps: float = 10.0
    labels_per_photo: float = 4.0
    replicas: int = 1
    node_memory: float = 256e9  # bytes
    node_cores: int = 32
    k: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise ConfigError(f"a code has 1 to {MAX_BITS} bits, not {self.bits}")
        for name in ("photos", "qps", "replicas", "node_memory", "node_cores", "k"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: it must be a number above 0")
        if self.photos > MOST:
            raise ConfigError(f"--photos {self.photos:g}: nobody has more than {MOST:g}; give a smaller number")
        if self.node_memory < 1e6:
            raise ConfigError(f"--node-memory: a machine has more than {self.node_memory:g} bytes; write 64GB or 64GiB")
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


@dataclass(frozen=True)
class Encoder:
    """How fast photos are encoded."""

    encoder: Literal["core", "GPU"]
    machine: str
    backbone: str
    photos_per_second: float


ENCODERS = (
    Encoder("core", "one core of an AMD EPYC (Zen 4), exported, photos of 500 × 375", "efficientnet_lite0", 119),
    Encoder("GPU", "an NVIDIA H200 with 16 cores that decode, photos of 500 × 375", "efficientnet_lite0", 3931),
)


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


class Scale:
    """How an engine's figures change with the number of codes, from one measurement or several."""

    def __init__(self, wish: Wish, records: Sequence[Measured]) -> None:
        nearest = min(abs(record.bits - wish.bits) for record in records)
        alike = sorted((r for r in records if abs(r.bits - wish.bits) == nearest), key=lambda r: r.codes)
        self.wish = wish
        self.least = alike[0]
        self.base = next((record for record in alike if record.codes >= wish.photos), alike[-1])
        self.server = self.base.engine in SERVERS
        self.approximate = self.base.engine.endswith("-approximate")
        self.power = _power(alike)
        # Whether all codes are looked at, by all cores: exact, and not measured to do better.
        self.scans = not self.approximate and self.power > 0.9
        # Queries a second when measured. In one Python process eight clients may get in each other's way.
        self.rate = max(self.base.qps_1, self.base.qps_8)
        # Bytes that a server takes however few photos there are: those of the smallest measurement.
        self.floor = self.least.bytes_in_memory if self.server else 0
        # Bytes of one photo: only the code itself changes with its length; 0 to build where that takes no more than
        # the search; on disk also of the labels that it carries beyond those that were measured.
        self.bytes_in_memory = self._per_photo(self.base.bytes_in_memory)
        self.bytes_to_build = BUILD.get(self.base.engine, 0)
        self.bytes_to_fit = max(self.bytes_in_memory, self.bytes_to_build)
        labels = LABEL_BYTES * (wish.labels_per_photo - self.base.labels_per_photo)
        self.bytes_on_disk = max(self._per_photo(self.base.bytes_on_disk) + labels, bytes_for(wish.bits))
        # Into how many parts the codes must be cut to fit into memory, also while their index is built.
        self.least_parts = max(1, math.ceil(wish.photos * self.bytes_to_fit / (wish.node_memory * FULL)))

    def _per_photo(self, measured: int) -> float:
        more = bytes_for(self.wish.bits) - bytes_for(self.base.bits)
        return max(measured / self.base.codes + more, bytes_for(self.wish.bits))

    def growth(self, codes: float) -> float:
        """By what a query takes longer than in the measurement; never less than 1, for nobody has measured that.

        A scan: in proportion to the bytes. An index: (codes / measured)^power, the power from two measurements; without
        them log codes / log measured.
        """
        if math.isnan(self.power):
            return max(math.log2(max(codes, 2)) / math.log2(max(self.base.codes, 2)), 1.0)
        return max(self.scanned(codes) if self.scans else (codes / self.base.codes) ** self.power, 1.0)

    def scanned(self, codes: float) -> float:
        """How many times the bytes of the measurement a scan reads."""
        return codes / self.base.codes * bytes_for(self.wish.bits) / bytes_for(self.base.bits)

    @property
    def formula(self) -> str:
        """The growth in words; `codes` are those of one part."""
        measured = f"{self.base.codes:,}"
        if self.scans:
            return f"max(1, codes ÷ {measured} × {bytes_for(self.wish.bits)} ÷ {bytes_for(self.base.bits)} bytes)"
        if math.isnan(self.power):
            return f"max(1, log codes ÷ log {measured})"
        return f"max(1, codes ÷ {measured})^{self.power:.2f}"

    def latency(self, codes: float) -> float:
        """Seconds of one query on one machine. Cores that share a scan make up for its growth, no more than that."""
        cores = self.base.cores / self.wish.node_cores if self.scans else 1.0
        return self.base.p50_ms / 1000 * max(1.0, self.growth(codes) * cores)

    def throughput(self, codes: float) -> float:
        """Queries a second of one machine; of several processes, where one did better with one client than with 8."""
        return self.rate * self.wish.node_cores / self.base.cores / self.growth(codes)


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
    scale = Scale(wish, records)
    if scale.least_parts > 1 and not scale.server:
        need = _bytes(wish.photos * scale.bytes_to_fit / FULL)
        note = f"does not fit: it lives on one machine, which needs {need} of memory"
        return Estimate(engine, tuple(_room(wish, scale, wish.replicas, 1)), note)
    nodes, parts = machines(wish, scale)
    figures = (*_room(wish, scale, nodes, parts), *_nodes(wish, scale, nodes, parts), *_time(wish, scale, parts))
    return Estimate(engine, figures, _note(wish, scale))


def _room(wish: Wish, scale: Scale, nodes: int, parts: int) -> Iterator[Figure]:
    for name, each, floor in (("memory", scale.bytes_in_memory, scale.floor), ("disk", scale.bytes_on_disk, 0)):
        value = wish.photos * each * nodes / parts
        formula = f"{wish.photos:,} × {each:.1f} bytes × {nodes:,} nodes ÷ {parts:,} parts"
        if floor > wish.photos * each / parts:
            value = floor * nodes
            formula = f"{_bytes(floor)} × {nodes:,} nodes, what the server took with {scale.least.codes:,} codes"
        yield Figure(name, value, _bytes(value), formula)
    if each := scale.bytes_to_build:
        value = wish.photos / parts * each
        formula = f"{wish.photos:,} × {each} bytes ÷ {parts:,} parts, on each node: its build_memory"
        yield Figure("memory to build the index", value, _bytes(value), formula)


def _nodes(wish: Wish, scale: Scale, nodes: int, parts: int) -> Iterator[Figure]:
    n, memory = f"{wish.photos:,}", scale.bytes_to_fit
    least, throughput = scale.least_parts, scale.throughput(wish.photos / scale.least_parts)
    formula = f"{n} × {memory:.1f} bytes ÷ ({FULL:g} × {_bytes(wish.node_memory)}) → {least:,} for memory"
    if parts > least:
        formula += f", up to nodes ÷ {wish.replicas} replicas for speed, each as large as was measured"
    yield Figure("parts", parts, f"{parts:,}", formula)
    busy = f"{least:,} × {wish.qps:g} ÷ ({FULL:g} × {_number(throughput)})"
    yield Figure("nodes", nodes, f"{nodes:,}", f"the larger of {wish.replicas} × {least:,} and {busy}")


def _time(wish: Wish, scale: Scale, parts: int) -> Iterator[Figure]:
    base, codes = scale.base, wish.photos / parts
    formula = f"{_number(scale.rate)} × {wish.node_cores} ÷ {base.cores} cores ÷ {scale.formula}"
    formula += f", a process for every {base.cores} cores" if base.qps_1 > base.qps_8 else ""
    yield Figure("queries a second, one node", scale.throughput(codes), _number(scale.throughput(codes)), formula)
    formula = f"{base.p50_ms:g} ms × {scale.formula}"
    if scale.scans:
        formula += f" × {base.cores} ÷ {wish.node_cores} cores, at least {base.p50_ms:g} ms"
    yield Figure("latency p50", scale.latency(codes), _seconds(scale.latency(codes)), formula)
    seconds = wish.photos / base.load_per_second
    formula = f"{wish.photos:,} ÷ {base.load_per_second:,.0f} a second, one writer" + " for all parts" * (parts > 1)
    yield Figure("loading", seconds, _seconds(seconds), formula)


def _note(wish: Wish, scale: Scale) -> str:
    top, recall = (10, scale.base.recall_10) if wish.k <= 10 else (100, scale.base.recall_100)
    answers = f"recall@{top} {recall:.3f} when measured" if scale.approximate else "exact"
    measured, far = f"{scale.base.codes:,} codes", wish.photos / scale.base.codes
    if far > FAR:
        answers += f"; measured with {measured} only, a guess"
    if far < NEAR:
        answers += f"; measured with no fewer than {measured}, a guess: not faster than that"
    if scale.floor > wish.node_memory * FULL:
        answers += f"; with {scale.least.codes:,} codes the server took {_bytes(scale.floor)}, too much for such a node"
    return answers


def machines(wish: Wish, scale: Scale) -> tuple[int, int]:
    """How many machines, and over how many parts a query goes: (nodes, parts).

    least = ⌈photos × bytes ÷ (FULL × memory of a node)⌉ parts fit into memory. A query keeps all `least` nodes of a
    copy busy for 1 ÷ throughput, so
    nodes = max(replicas × least, ⌈least × qps ÷ (FULL × throughput(photos ÷ least))⌉).
    The work of a scan is the same in any number of parts, so it is cut into as many as there are nodes for; not into
    parts smaller than were measured, which are not known to be faster.
    """
    least = scale.least_parts
    busy = least * wish.qps / (FULL * scale.throughput(wish.photos / least))
    nodes = max(wish.replicas * least, math.ceil(busy))
    if not (scale.server and scale.scans):
        return nodes, least
    return nodes, max(least, min(nodes // wish.replicas, math.floor(scale.scanned(wish.photos))))


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


def count_of(text: str) -> int:
    """How many photos, from what people write.

    >>> count_of("1e9"), count_of("2500")
    (1000000000, 2500)
    """
    if not 1 <= (count := _number_in(text)) < math.inf:
        raise ConfigError(f"--photos {text}: that is no number of photos; write 2500000 or 2.5e6")
    return round(count)


def size_of(text: str) -> float:
    """Bytes from what people write.

    >>> size_of("256GB"), size_of("1.5 TiB"), size_of("64000000000")
    (256000000000.0, 1649267441664.0, 64000000000.0)
    """
    units = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "": 1}
    number = text.strip().lower().rstrip("bikmgt ")
    unit = text.strip().lower()[len(number) :].strip()
    size = _number_in(number) * units.get(unit, math.nan)
    if not 0 < size < math.inf:
        raise ConfigError(f"--node-memory {text}: that is no size; write 256GB or 64GiB")
    if not unit and size < 1e6:
        raise ConfigError(f"--node-memory {text}: is that {number}GB? Write the unit, such as 64GB or 64GiB")
    return size


def _number_in(text: str) -> float:
    """What it says, or NaN, which fails every comparison."""
    try:
        return float(text)
    except ValueError:
        return math.nan


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
    for unit, size, least in (("days", DAY, 2 * DAY), ("hours", 3600, 3600), ("s", 1, 1)):
        if value >= least:
            return f"{value / size:,.3g} {unit}"
    return f"{value * 1000:.3g} ms"
