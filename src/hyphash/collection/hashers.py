"""The hashers inside a collection: copies that make the folder complete, loaded no further than needed."""

import hashlib
import os
import shutil
import time
from pathlib import Path

from hyphash.errors import CollectionError
from hyphash.files import disk_errors, write_atomically
from hyphash.hasher import SPEC_FILE, WEIGHTS_FILE, Hasher, read_spec

FOLDER = "hashers"
CHECKSUM = "weights.sha256"
GRACE = 3600.0  # seconds


def install(hasher: Hasher | str | Path, collection: Path) -> str:
    """Copy a hasher into the folder of a collection; its fingerprint, which is what it is called there."""
    draft = collection / FOLDER / f".{os.getpid()}.draft"
    with disk_errors(draft):
        try:
            draft.mkdir(parents=True)
            if folder := _folder_of(hasher):
                _copy(folder, draft)
            elif isinstance(hasher, Hasher):
                hasher.save(draft)
            (draft / CHECKSUM).write_text(_digest(draft / WEIGHTS_FILE))
            fingerprint = read_spec(draft).fingerprint
            target = collection / FOLDER / fingerprint
            if not target.is_dir():
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return fingerprint


def complete(hasher: Hasher | str | Path, collection: Path) -> None:
    """Bring over what a run has got since it was copied: an ONNX network, for machines without torch."""
    if folder := _folder_of(hasher):
        target = collection / FOLDER / read_spec(folder).fingerprint
        for path in folder.glob("*.onnx"):
            if not (target / path.name).exists():
                write_atomically(target / path.name, path.read_bytes())


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
    hasher, folder = stored(collection, fingerprint), collection / FOLDER / fingerprint
    checksum = (folder / CHECKSUM).read_text().strip() if (folder / CHECKSUM).is_file() else ""
    if hasher.fingerprint != fingerprint or _digest(folder / WEIGHTS_FILE) != checksum:
        raise CollectionError(
            f"{folder}: not the hasher that was installed; copy its run there again, or restore a backup"
        )


def sweep(collection: Path, fingerprint: str) -> None:
    """Remove former hashers, except young ones: a move to one of them may be under way."""
    for folder in (collection / FOLDER).iterdir():
        if folder.name != fingerprint and time.time() - folder.stat().st_mtime > GRACE:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_of(hasher: Hasher | str | Path) -> Path | None:
    """The folder that holds a hasher as it is, if there is one."""
    return hasher.folder if isinstance(hasher, Hasher) else Path(hasher)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    """The files of a hasher without the rest of its run."""
    read_spec(source)  # says what is wrong if it holds none
    for path in (source / SPEC_FILE, source / WEIGHTS_FILE, *source.glob("*.onnx")):
        shutil.copyfile(path, target / path.name)
