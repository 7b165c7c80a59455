"""The hashers inside a collection: copies that make the folder complete, loaded no further than needed."""

import os
import shutil
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from hyphash.codes import is_fingerprint
from hyphash.errors import CollectionError
from hyphash.files import is_old, new_folder, write_atomically
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Hasher, read_spec, require_whole, write_checksums

FOLDER = "hashers"


def install(hasher: Hasher | str | Path, collection: Path) -> str:
    """Copy a hasher into the folder of a collection; its fingerprint, which is what it is called there."""
    source = _folder_of(hasher)
    fingerprint = hasher.fingerprint if isinstance(hasher, Hasher) else read_spec(Path(hasher)).fingerprint
    target = collection / FOLDER / fingerprint
    if target.is_dir():
        os.utime(target)  # young again: nobody sweeps it away before it is in use
        return fingerprint
    try:
        with new_folder(target) as draft:
            if source:
                for path in (source / SPEC_FILE, source / WEIGHTS_FILE, *source.glob("*.onnx")):
                    shutil.copyfile(path, draft / path.name)
            elif isinstance(hasher, Hasher):
                hasher.save(draft)
            write_checksums(draft)
    except OSError:
        if not target.is_dir():  # else another was faster
            raise
    return fingerprint


def complete(hasher: Hasher | str | Path, collection: Path) -> None:
    """Bring over what a run has got since it was copied: an ONNX network, for machines without torch."""
    if folder := _folder_of(hasher):
        target = collection / FOLDER / read_spec(folder).fingerprint
        for path in folder.glob("*.onnx"):
            if not (target / path.name).exists():
                write_atomically(target / path.name, path.read_bytes())
                write_checksums(target)


def stored(collection: Path, fingerprint: str, *, device: str = "auto") -> Hasher:
    """The hasher that the codes of a collection were made by; its network is loaded when it is needed."""
    folder = collection / FOLDER / fingerprint
    if not folder.is_dir():
        raise CollectionError(
            f"{collection}: the hasher {fingerprint} is missing from {FOLDER}/; copy the run that it came from "
            f"to {folder}, or restore the folder from a backup"
        )
    return Hasher.to_encode(folder, device=device, late=True)


def check(collection: Path, fingerprint: str) -> None:
    """Raise an error unless the hasher is there as it was installed."""
    folder = collection / FOLDER / fingerprint
    if stored(collection, fingerprint).fingerprint != fingerprint:
        raise CollectionError(f"{folder}: holds another hasher; copy its run there again, or restore a backup")
    require_whole(folder)


def sweep(collection: Path, used: Set[str]) -> None:
    """Remove former hashers, except young ones: a move to one of them may be under way."""
    for folder in (collection / FOLDER).iterdir():
        if is_fingerprint(folder.name) and folder.name not in used and is_old(folder):
            with suppress(OSError):
                shutil.rmtree(folder)


def _folder_of(hasher: Hasher | str | Path) -> Path | None:
    """The folder that holds a hasher as it is, if there is one."""
    return hasher.folder if isinstance(hasher, Hasher) else Path(hasher)
