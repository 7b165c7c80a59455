"""A disk that forgets: what strace saw a program do to its files is done again in memory, and power is cut anywhere.

What was synced is on the disk: the bytes of a file as they were when it was synced last, and the names in a
folder as they were when the folder was. Everything else is gone at a cut, or any part of it.
"""

import ast
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "open,openat,close,write,pwrite64,writev,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,"
    "mkdirat,fsync,fdatasync,lseek,sendfile,copy_file_range,dup,dup2,dup3,fcntl"
)
LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")
UNFINISHED, RESUMED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$"), re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")


@dataclass(eq=False)
class Node:
    """A file, or a folder: as programs see it, and as it is on the disk."""

    folder: bool = False
    data: bytearray = field(default_factory=bytearray)
    names: "dict[str, Node]" = field(default_factory=dict)
    synced: "bytes | dict[str, Node]" = b""

    def sync(self) -> None:
        self.synced = dict(self.names) if self.folder else bytes(self.data)


@dataclass
class Handle:
    node: Node
    at: int = 0
    append: bool = False


def recorded(command: list[str], trace: Path) -> list[tuple[str, list[str], int]]:
    """Every call of a program that touches files: its name, its arguments as strace writes them, and its result."""
    strace = ["strace", "-f", "-qq", "-xx", "-s", "100000000", "-o", str(trace), "-e", f"trace={CALLS}"]
    subprocess.run([*strace, *command], check=True)
    calls, begun = [], {}
    for line in trace.read_text().splitlines():
        if found := UNFINISHED.match(line):
            begun[found[1]] = found[2]
            continue
        if found := RESUMED.match(line):
            line = f"{found[1]} {begun.pop(found[1])}{found[2]}"  # noqa: PLW2901
        if found := LINE.match(line):
            calls.append((found[2], _arguments(found[3]), int(found[4])))
    return calls


def _arguments(text: str) -> list[str]:
    """Arguments, which have commas between them; those in brackets stay together."""
    return re.findall(r'"[^"]*"|[\[{][^\]}]*[\]}]|[^,\s][^,]*', text)


def _bytes(text: str) -> bytes:
    value: bytes = ast.literal_eval("b" + text)
    return value


class Disk:
    """The folder `root`, from its first file on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Node(folder=True, synced={})
        self.handles: dict[int, Handle] = {}
        self.outside: dict[int, str] = {}  # files of the rest of the machine that are open

    def done(self, call: str, arguments: list[str], result: int) -> bytes | None:
        """Do what a program did. What it wrote into a file called `acknowledged`, outside, is returned."""
        if result < 0:
            return None
        name = {"open": "openat", "renameat": "rename", "renameat2": "rename", "unlinkat": "unlink", "rmdir": "unlink"}
        name |= {"mkdirat": "mkdir", "fdatasync": "fsync", "copy_file_range": "sendfile", "dup2": "dup", "dup3": "dup"}
        acknowledged: bytes | None = getattr(self, f"_{name.get(call, call)}")(arguments, result)
        return acknowledged

    def _places(self, arguments: list[str]) -> list[tuple[Node, str] | None]:
        """Of each path among the arguments its folder and its last name; None: it is not under the root."""
        return [
            self._place(os.fsdecode(_bytes(text)), arguments[i - 1] if i else "")
            for i, text in enumerate(arguments)
            if text.startswith('"')
        ]

    def _place(self, path: str, base: str) -> tuple[Node, str] | None:
        node, root = self.top, str(self.root)
        if not path.startswith("/") and base.isdecimal():  # relative to a folder that is open
            if int(base) not in self.handles:
                return None
            node, path = self.handles[int(base)].node, f"{root}/{path}"
        if path == root:
            return Node(folder=True, names={"": self.top}), ""
        if not path.startswith(f"{root}/"):
            return None
        *folders, last = path[len(root) + 1 :].split("/")
        for name in folders:
            node = node.names[name]
        return node, last

    def _openat(self, arguments: list[str], result: int) -> None:
        (place,) = self._places(arguments)
        flags = next(text for text in arguments if text.startswith("O_"))
        self.outside.pop(result, None)
        self.handles.pop(result, None)
        if place is None:
            self.outside[result] = next(os.fsdecode(_bytes(text)) for text in arguments if text.startswith('"'))
            return
        folder, name = place
        node = folder.names.setdefault(name, Node())
        if "O_TRUNC" in flags:
            node.data.clear()
        self.handles[result] = Handle(node, append="O_APPEND" in flags)

    def _close(self, arguments: list[str], _: int) -> None:
        self.handles.pop(int(arguments[0]), None)
        self.outside.pop(int(arguments[0]), None)

    def _lseek(self, arguments: list[str], result: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            handle.at = result

    def _write(self, arguments: list[str], result: int) -> bytes | None:
        number, data = int(arguments[0]), _bytes(arguments[1])[:result]
        if handle := self.handles.get(number):
            at = len(handle.node.data) if handle.append else handle.at
            self._put(handle.node, at, data)
            handle.at = at + result
        elif self.outside.get(number, "").endswith("/acknowledged"):
            return data
        return None

    def _writev(self, arguments: list[str], _: int) -> None:
        assert int(arguments[0]) not in self.handles, "nobody writes so here"

    def _pwrite64(self, arguments: list[str], result: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            self._put(handle.node, int(arguments[3]), _bytes(arguments[1])[:result])

    def _sendfile(self, arguments: list[str], result: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            source, at = int(arguments[1]), int((re.findall(r"\d+", arguments[2]) or ["0"])[0])
            there = self.handles.get(source)
            data = bytes(there.node.data) if there else Path(self.outside[source]).read_bytes()
            self._put(handle.node, handle.at, data[at : at + result])
            handle.at += result

    def _put(self, node: Node, at: int, data: bytes) -> None:
        node.data.extend(bytes(max(0, at - len(node.data))))
        node.data[at : at + len(data)] = data

    def _ftruncate(self, arguments: list[str], _: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            size = int(arguments[1])
            del handle.node.data[size:]
            self._put(handle.node, size, b"")

    def _fallocate(self, arguments: list[str], _: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            self._put(handle.node, int(arguments[2]) + int(arguments[3]), b"")

    def _fcntl(self, arguments: list[str], result: int) -> None:
        if arguments[1].startswith("F_DUPFD"):
            self._dup(arguments, result)

    def _dup(self, arguments: list[str], result: int) -> None:
        for opened in (self.handles, self.outside):
            opened.pop(result, None)  # type: ignore[attr-defined]
            if int(arguments[0]) in opened:
                opened[result] = opened[int(arguments[0])]  # type: ignore[index]

    def _fsync(self, arguments: list[str], _: int) -> None:
        if handle := self.handles.get(int(arguments[0])):
            handle.node.sync()

    def _mkdir(self, arguments: list[str], _: int) -> None:
        (place,) = self._places(arguments)
        if place and place[1]:
            place[0].names[place[1]] = Node(folder=True, synced={})

    def _unlink(self, arguments: list[str], _: int) -> None:
        (place,) = self._places(arguments)
        if place:
            del place[0].names[place[1]]

    def _rename(self, arguments: list[str], _: int) -> None:
        old, new = self._places(arguments)
        assert (old is None) == (new is None), "files come from inside and stay there"
        if old and new:
            new[0].names[new[1]] = old[0].names.pop(old[1])

    def left(self, into: Path, chance: random.Random | None = None) -> None:
        """Write what a power cut now leaves: what was synced; by `chance` also some of the rest."""
        shutil.rmtree(into, ignore_errors=True)
        self._write_out(self.top, into, chance)

    def _write_out(self, node: Node, path: Path, chance: random.Random | None) -> None:
        lucky = chance is not None and chance.random() < 0.5
        if not node.folder:
            assert isinstance(node.synced, bytes)
            path.write_bytes(node.data if lucky else node.synced)
            return
        path.mkdir()
        assert isinstance(node.synced, dict)
        for name, inner in (node.names if lucky else node.synced).items():
            if not name.endswith("-shm"):  # SQLite makes it anew
                self._write_out(inner, path / name, chance)


def cuts(calls: list[tuple[str, list[str], int]], disk: Disk) -> Iterator[tuple[int, list[bytes]]]:
    """Moments after which the disk would be another, and what was acknowledged until then.

    Between two of them the disk is the same and only more is acknowledged: the number says how many calls that are.
    """
    acknowledged: list[bytes] = []
    since = 0
    for call, arguments, result in calls:
        if call in ("fsync", "fdatasync") and since:
            yield since, acknowledged
            since = 0
        said = disk.done(call, arguments, result)
        since += 1
        if said:
            acknowledged += said.splitlines()
    yield since, acknowledged
