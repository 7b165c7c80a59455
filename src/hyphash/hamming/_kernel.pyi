"""The compiled kernel (kernel/module.cpp): buffers in, buffers out, nothing checked but their lengths."""

from typing import Any

from numpy.typing import NDArray

Buffer = NDArray[Any]

def available() -> list[str]: ...
def instructions() -> str: ...
def choose(name: str, /) -> None: ...
def search(
    bits: int,
    threads: int,
    radius: int,
    k: int,
    queries: Buffer,
    database: Buffer,
    mask: Buffer | None,
    offsets: Buffer | None,
    distances: Buffer,
    ids: Buffer,
    /,
) -> None: ...
def count_within(
    bits: int,
    threads: int,
    radius: int,
    queries: Buffer,
    database: Buffer,
    mask: Buffer | None,
    counts: Buffer,
    /,
) -> None: ...
def histogram(
    bits: int,
    threads: int,
    label_bytes: int,
    queries: Buffer,
    database: Buffer,
    query_labels: Buffer,
    database_labels: Buffer,
    count: Buffer,
    relevant: Buffer,
    gain: Buffer,
    exp_gain: Buffer,
    /,
) -> None: ...
def search_tables(
    size: int,
    threads: int,
    k: int,
    count: int,
    tables: Buffer,
    database: Buffer,
    mask: Buffer | None,
    scores: Buffer,
    ids: Buffer,
    /,
) -> None: ...
def rank_planes(
    count: int,
    threads: int,
    k: int,
    every: list[Buffer],
    some: list[Buffer],
    tables: list[Buffer],
    size: int,
    codes: Buffer,
    code_tables: Buffer,
    border: Buffer,
    mask: Buffer | None,
    sums: Buffer,
    ids: Buffer,
    counts: Buffer,
    /,
) -> None: ...
def sort_codes(bits: int, tables: int, threads: int, codes: Buffer, order: Buffer, words: Buffer, /) -> int: ...
def fill_tables(
    bits: int,
    tables: int,
    threads: int,
    distinct: int,
    stride: int,
    codes: Buffer,
    ids: Buffer,
    words: Buffer,
    directories: Buffer,
    entries: Buffer,
    starts: Buffer,
    /,
) -> None: ...
def snapshot(
    bits: int,
    segments: list[tuple[int, int, int, int, int, Buffer, Buffer, Buffer, Buffer, Buffer]],
    tail: Buffer,
    tail_id: int,
    never_scan: bool,
    /,
) -> Any: ...
def search_snapshot(
    snapshot: Any,
    threads: int,
    k: int,
    queries: Buffer,
    mask: Buffer | None,
    distances: Buffer,
    ids: Buffer,
    /,
) -> None: ...
