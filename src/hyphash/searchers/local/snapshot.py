"""The snapshot: all codes at one commit, in a file that is mapped into memory.

It is derived. It is taken for what it says only if the store knows its commit by the same random stamp, so a file
that belongs to another past (a restored backup) is never mixed in. Checksums say whether it is still what was written:
to map it takes no longer for them, whoever is the first to read it compares them.

Of many codes the snapshot holds the ids alone: the codes lie in an index beside it, whose name it states. An index
is written first under a name of its own, and notes whose codes it holds.
"""

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import Codes
from hyphash.errors import CodesError, StorageError
from hyphash.hamming import Index
from hyphash.hamming.segments import checksum, map_tensors, write_tensors
from hyphash.searchers.filters import NUMBERS, FactColumns
from hyphash.searchers.local.scores import LabelScores
from hyphash.searchers.local.view import Block, View
from hyphash.stores import Position, gathered

FORMAT = "hyphash-snapshot"
VERSION = "4"
TENSORS: dict[str, np.dtype[Any]] = {  # ids, codes where no index has them, scores of labels, and facts
    "ids": np.dtype("<i8"), "codes": np.dtype("u1"), "scores": np.dtype("u1"), "starts": np.dtype("<i8"),
    "rows": np.dtype("<u4"), "values": np.dtype("u1"), "facts": np.dtype("<i4"), "kinds": np.dtype("u1"),
}  # fmt: skip


def save(path: Path, view: View) -> View:
    """Write the snapshot file, and its index if it is large; the same view on top of them."""
    block, position = view.merged(), view.position
    index = None
    if block.worth_an_index:
        with suppress(StorageError, OSError):  # a snapshot without an index is better than none
            index = _save_index(path.with_name(f"{path.stem}-{position.commit}.index"), view, block)
    tensors = {"ids": block.ids} | block.scores.tensors | block.described.tensors
    if index is None:
        tensors["codes"] = block.codes.packed
    facts = {name: str(value) for name, value in vars(position).items()}
    facts |= {"format": FORMAT, "version": VERSION, "bits": str(block.bits), "index": index.name if index else ""}
    write_tensors(path, tensors, **facts)
    for former in files_of(path):
        if former not in (path, index):
            former.unlink(missing_ok=True)
    saved = load(path)
    return view if saved is None else saved


def files_of(path: Path) -> list[Path]:
    """The snapshot file at `path` and the indexes beside it, also those of former snapshots."""
    folder, name = path.parent, path.stem
    return [path, *folder.glob(f"{name}.index"), *folder.glob(f"{name}-*.index")]


def in_use(path: Path) -> set[Path]:
    """Of these, the snapshot and the index that it names."""
    try:
        return {path, path.with_name(map_tensors(path)[0]["index"] or path.name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def load(path: Path) -> View | None:
    """Map a snapshot into memory; None if there is none, or it is not whole. Its base tells later if it is `sound`."""
    for _ in range(2):  # the index that a snapshot names goes when the next one is there
        # derived: whoever asked builds it again
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, CodesError):
            return _load(path)
    return None


def _load(path: Path) -> View:
    facts, tensors, data = map_tensors(path)
    if (facts["format"], facts["version"]) != (FORMAT, VERSION):
        raise ValueError("of another format")
    parts = {name: data[slice(*tensor["data_offsets"])] for name, tensor in tensors.items()}
    arrays = {name: part.view(TENSORS[name]).reshape(tensors[name]["shape"]) for name, part in parts.items()}
    ids, facts_of = arrays["ids"], FactColumns(arrays["facts"], arrays["kinds"])
    if facts_of.columns.shape != (len(NUMBERS), len(ids)):
        raise ValueError("ids and facts do not go together")
    others = ("ids", "codes", "facts", "kinds")
    scores = LabelScores(len(ids), {name: array for name, array in arrays.items() if name not in others})
    bits, position = int(facts["bits"]), Position(int(facts["generation"]), int(facts["commit"]), facts["stamp"])
    file = path.with_name(facts["index"]) if facts["index"] else None
    if file:
        index = Index.open(file)
        if (index.note, len(index), index.bits) != (_note(position), len(ids), bits):
            raise ValueError("the index of another snapshot")
        block = Block(ids, cache(index.codes), index=index, scores=scores, facts=facts_of)
        block = block if block.worth_an_index else replace(block, index=None)
    else:
        block = Block(ids, Codes(arrays["codes"], bits), scores=scores, facts=facts_of)
        if len(ids) != len(block.codes):
            raise ValueError("ids and codes do not go together")
    sound = partial(_is_sound, arrays, json.loads(facts["checksums"]), file)
    return View(position, replace(block, sound=sound), Block(*gathered((), bits)), position.commit)


def _is_sound(arrays: dict[str, NDArray[Any]], checksums: dict[str, str], index: Path | None) -> bool:
    """Whether a snapshot and its index are what was written. An index that a later one replaced is not looked at."""
    with suppress(CodesError):
        if index and index.exists():
            Index.open(index, verify=True)
        return all(checksum(array) == checksums.get(name) for name, array in arrays.items())
    return index is not None and not index.exists()


def _save_index(path: Path, view: View, block: Block) -> Path:
    """Write the index of a block that holds everything in a view; only new codes at the end are cheap."""
    base, extra = view.base, view.extra
    only_more = base.visible is None and (not len(extra.ids) or extra.ids[0] > base.ids[-1])
    index = base.index.copy() if base.index and only_more else Index(block.bits)
    index.append(extra.codes if len(index) else block.codes)
    index.note = _note(view.position)
    index.save(path)
    return path


def _note(position: Position) -> str:
    return f"generation {position.generation}, commit {position.commit} {position.stamp}"
