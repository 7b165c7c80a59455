"""Watched folders: photos that come, change, move or go there are taken in, and forgotten, by what `index` does."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import cast

import tomli_w

from hyphash.collection import Collection, duplicates
from hyphash.collection.records import Log
from hyphash.config import read_toml
from hyphash.datasets.folder import LABEL_FILES, LabelsFrom, label_file, labels_of, photos_under
from hyphash.errors import ConfigError, HyphashError, needs_extra
from hyphash.files import write_atomically
from hyphash.photos import SUFFIXES, PhotoFiles, size_and_time
from hyphash.workers import batched

FILE = "watched.toml"
TICK = 1.0  # seconds between two looks at a file: it is whole if it stays the same
SETTLED = 2.0  # and was last written so long ago
POLLED = 2000  # ms between two looks at a folder that cannot say what changes
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "vboxsf", "fuse.sshfs", "fuse.rclone")
MANY = 512  # paths asked for at once

Stamp = tuple[int, int] | None  # size and time of a file; None: it is gone


def watched(folder: Path) -> dict[Path, str]:
    """The folders that photos of a collection come from, each with where its labels are: `none` has none."""
    folders = read_toml(folder / FILE).get("folders", {}) if (folder / FILE).is_file() else {}
    if not isinstance(folders, dict):
        raise ConfigError(f"{folder / FILE}: folders must be a table; mend it or delete the file")
    return {Path(root): str(labels_from) for root, labels_from in folders.items()}


def remember(folder: Path, photos: Path, labels_from: str) -> None:
    """Photos of a collection come from a folder; nothing is remembered of single files."""
    if photos.expanduser().is_dir():
        roots = {str(root): labels for root, labels in watched(folder).items()}
        roots |= {os.path.abspath(photos.expanduser()): labels_from}  # noqa: PTH100 (as intake has them)
        write_atomically(folder / FILE, tomli_w.dumps({"format": 1, "folders": roots}))


class Watch:
    """What goes on in the folders of a collection, until it has been dealt with."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.folders = watched(collection.folder)
        if not self.folders:
            raise ConfigError(f"{collection.folder}: no folder is known that it could watch; name one")
        self.looked: dict[Path, Stamp | str] = {}  # files of which something is to be done, as they were last seen
        self.failure = ""  # what was told last
        self.scanned = False

    def run(self, stop: Callable[[], bool], *, poll: bool = False) -> None:
        """Until `stop` says so; `poll` looks again and again where the system cannot tell of changes."""
        with needs_extra("watch", "watching folders"):
            from watchfiles import watch
        for root in self.folders:
            if not root.is_dir():
                raise ConfigError(f"{root}: there is no such folder; mount it, or correct {FILE}")
        try:
            for changes in watch(
                *self.folders, watch_filter=None, debounce=400, rust_timeout=round(TICK * 1000),
                yield_on_timeout=True, force_polling=poll or any(map(is_remote, self.folders)) or None,
                poll_delay_ms=POLLED, raise_interrupt=False, ignore_permission_denied=True,
            ):  # fmt: skip
                if stop():
                    return
                self._deal([Path(path) for _, path in changes])
        except OSError as error:
            raise ConfigError(f"{self.collection.folder}: its folders cannot be watched ({error}); --poll") from error

    def _note(self, path: Path) -> None:
        """What a change of a path concerns: a photo, those of a folder, of a sidecar or of a label file."""
        root = next(root for root in self.folders if path.is_relative_to(root))
        inside = [path, *path.parents][: len(path.relative_to(root).parts)]
        if any(one.name.startswith(".") or (one / "collection.toml").exists() for one in inside):
            return
        if path.suffix.lower() in SUFFIXES:
            self._notice([path])
        elif path.suffix.lower() == ".xmp" and path.parent.exists():
            files = path.parent.iterdir()
            self._notice(file for file in files if path.name in (f"{file.name}.xmp", f"{file.stem}.xmp"))
        elif path.is_dir() or (path.suffix.lower() in LABEL_FILES and path.parent == root):
            folder = path if path.is_dir() else root
            self._notice(folder / name for name in photos_under(folder))
        elif not path.exists():  # a folder, as it seems
            photos = (Path(photo.path) for photo in self.collection.all_photos())
            self._notice(file for file in photos if file.is_relative_to(path))

    def _notice(self, files: Iterable[Path]) -> None:
        self.looked |= dict.fromkeys((file for file in files if file.suffix.lower() in SUFFIXES), "unseen")

    def _scan(self) -> None:
        """Find what changed while nobody watched: files that differ or are gone, and all that a label file is about."""
        for root, labels_from in self.folders.items():
            table = labels_from in ("auto", "file") and label_file(root)
            for files in batched((root / name for name in photos_under(root)), MANY):
                photos = self.collection.store.find(paths=list(map(str, files)))
                known = {photo.path: (photo.facts.size, photo.facts.modified) for photo in photos}
                self._notice(file for file in files if table or known.get(str(file)) != size_and_time(file))
        self._notice(Path(photo.path) for photo in self.collection.missing())
        self.scanned = True

    def _deal(self, changed: list[Path]) -> None:
        """Take in what has settled, then forget what is gone; what fails is told once and tried again."""
        try:
            if not self.scanned:  # from now on changes are told
                self._scan()
            for path in changed:
                self._note(path)
            now = {file: size_and_time(file) for file in self.looked}
            settled = {file for file, stamp in now.items() if stamp == self.looked[file] and not _is_young(stamp)}
            self.looked |= now
            self.collection.current_hasher()
            for root, labels_from in self.folders.items():
                files = [file for file in settled if file.is_relative_to(root)]
                self._take_in(root, labels_from, sorted(str(file.relative_to(root)) for file in files if now[file]))
                self._forget(root, [str(file) for file in files if not now[file]])
            self.looked = {file: stamp for file, stamp in self.looked.items() if file not in settled}
            self.failure = ""
        except (HyphashError, OSError) as error:
            if str(error) != self.failure:
                self.failure = str(error)
                self.collection.log.tell("failed", [], reason=self.failure)

    def _take_in(self, root: Path, labels_from: str, names: list[str]) -> None:
        if names:
            labels = None if labels_from == "none" else labels_of(root, cast(LabelsFrom, labels_from), names)
            self.collection.add(PhotoFiles(names, root), labels=labels, again=False)

    def _forget(self, root: Path, paths: list[str]) -> None:
        """Forget photos that are gone; not where the whole folder is, such as a disk that is not mounted."""
        store = self.collection.store
        gone = store.find(paths=paths) if paths else []
        if gone and not (root.is_dir() and any(root.iterdir())):
            self.collection.log.tell("failed", [], reason=f"{root}: empty, as if its disk were away; nothing forgotten")
            return
        for photo in gone:  # copied to another disk before it was deleted: the copy is that photo now
            copies = [copy for copy in store.find(contents=[photo.facts.content]) if copy.id != photo.id]
            self.collection.judge(said for copy in copies[-1:] for said in duplicates.inherited(copy, [photo]))
        self.collection.prune(gone)


@contextmanager
def beside(folder: Path, work: Callable[[Collection, Callable[[], bool]], None]) -> Iterator[None]:
    """Do something to a collection in a thread, until told to stop; its log says what ends it before its time."""
    stop = Event()

    def run() -> None:
        try:
            with Collection.open(folder) as collection:
                work(collection, stop.is_set)
        except HyphashError as error:
            Log(folder).tell("failed", [], reason=str(error))

    thread = Thread(target=run, name="beside")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def is_remote(folder: Path) -> bool:
    """Whether a folder is on another machine, which does not tell of changes."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    kinds = {place: kind for place, kind in mounts if folder.is_relative_to(place.replace("\\040", " "))}
    return bool(kinds) and kinds[max(kinds, key=len)] in REMOTE


def _is_young(stamp: Stamp) -> bool:
    return stamp is not None and 0 <= time.time() - stamp[1] / 1e9 < SETTLED
