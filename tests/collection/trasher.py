"""Takes photos out and brings them back, and dies at each line of the way: python trasher.py WORLD resolve|restore

WORLD/begin is what it starts from, each time as WORLD/now; what is left is checked before the next death.
"""

import os
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

WAY = {"trash.py": None, "duplicates.py": None, "files.py": ("move", "write_atomically", "make_folder")}


def die_at(line: int) -> Any:
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        file, function = Path(frame.f_code.co_filename).name, frame.f_code.co_name
        if file not in WAY or function not in (WAY[file] or (function,)):
            return None
        left -= event == "line"
        if left <= 0:
            os._exit(9)
        return trace

    return trace


def act(folder: Path, what: str) -> None:
    from tiny import TinyHasher

    from hyphash.collection import Collection, duplicates, trash

    with Collection.open(folder, hasher=TinyHasher()) as collection:
        if what == "resolve":
            duplicates.resolve(collection, 1, [2, 3])
        else:
            trash.restore(collection, [2, 3])


def check(now: Path) -> None:
    """Whatever is left, photos 2 and 3 are here with what was said of them, or come back with it; 1 lost nothing."""
    from tiny import TinyHasher

    from hyphash.collection import Collection, trash

    with Collection.open(now / "collection", hasher=TinyHasher()) as collection:
        assert collection.add(now / "photos", again=False).problems == ()
        out = [row.id for row in collection.store.removed()]
        assert trash.restore(collection, out) == out
        said = {photo.id: (Path(photo.path).name, photo.labels, photo.refused) for photo in collection.photos()}
        assert said[2] == ("2.jpg", ("cat", "mine"), ("dog",)), said
        assert said[3] == ("3.jpg", ("sea",), ()), said
        assert (len(said), said[1][0]) == (3, "1.jpg")
        for photo in collection.photos():
            collection.original(photo.id)  # the very bytes
        assert not (wrong := collection.verify()), wrong


def main() -> None:
    from hyphash.collection import Collection  # noqa: F401 (before the fork)

    world, what = Path(sys.argv[1]), sys.argv[2]
    line, status = 0, 9
    while status == 9:
        line += 1
        shutil.rmtree(world / "now", ignore_errors=True)
        shutil.copytree(world / "begin", world / "now")
        child = os.fork()
        if not child:
            sys.settrace(die_at(line))
            act(world / "now" / "collection", what)
            sys.settrace(None)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        check(world / "now")
    print(line, status)  # noqa: T201


if __name__ == "__main__":
    main()
