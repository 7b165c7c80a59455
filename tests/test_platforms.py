"""What Linux has and Windows or macOS have not is never needed: a Python from which it is hidden.

Reviewed, and held here: no fork (processes are started anew, by a command), no lock that only POSIX has, no flag of
`open` that Windows lacks, folders that cannot be synced, paths that are written to files with forward slashes.
"""

import os
import subprocess
import sys
from pathlib import Path

WITHOUT_LINUX = """
import os, socket, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "pwd", "grp", "termios", "uvloop"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import asyncio, multiprocessing, subprocess, tempfile, shutil, numpy, PIL.Image  # these know where they are
for name in ("fcntl", "pwd", "grp", "termios", "uvloop"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name in ("fork", "sched_getaffinity", "O_NONBLOCK", "O_NOFOLLOW", "getuid", "geteuid", "mkfifo", "posix_fadvise"):
    if hasattr(os, name):
        delattr(os, name)
if hasattr(socket, "SO_REUSEPORT"):
    del socket.SO_REUSEPORT
"""


def elsewhere(program: str, folder: Path) -> str:
    """What a program prints on a machine that lacks all this."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    command = [sys.executable, "-c", WITHOUT_LINUX + program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_light_half_can_be_imported(tmp_path):
    told = elsewhere(
        """
import importlib, pkgutil
import hyphash
heavy = {"networks", "losses", "training", "tuning", "benchmarks", "guesses", "refining", "publishing"}
for module in pkgutil.walk_packages(hyphash.__path__, "hyphash."):
    if module.name.split(".")[1] not in heavy and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from hyphash.machine import cores, keep_memory
keep_memory()
print(cores())
""",
        tmp_path,
    )
    assert int(told) >= 1


def test_files_are_written_locked_and_read(tmp_path):
    told = elsewhere(
        """
from pathlib import Path
from hyphash.files import append_json, new_folder, open_regular, read_json_lines, write_atomically
write_atomically(Path("a.txt"), "one\\n")
write_atomically(Path("a.txt"), "two\\n")  # over a file that is there: a rename must replace it
append_json(Path("b.jsonl"), {"n": 1}); append_json(Path("b.jsonl"), {"n": 2})
with new_folder(Path("made")) as draft:
    (draft / "c").write_bytes(b"\\x00\\r\\n\\x1a")
with open_regular(Path("made/c")) as file:
    print(file.read(), Path("a.txt").read_text().strip(), len(read_json_lines(Path("b.jsonl"))))
""",
        tmp_path,
    )
    assert told.split() == ["b'\\x00\\r\\n\\x1a'", "two", "2"]


def test_codes_are_searched_and_their_index_is_mapped(tmp_path):
    told = elsewhere(
        """
import numpy as np
from hyphash import Codes, hamming
codes = Codes.from_outputs(np.random.default_rng(0).normal(size=(400, 48)))
hamming.Index.build(codes).save("codes.index")
distances, ids = hamming.Index.open("codes.index").search(codes, k=3)
print((ids[:, 0] == np.arange(400)).all(), (distances == hamming.search(codes, codes, k=3)[0]).all())
""",
        tmp_path,
    )
    assert told.split() == ["True", "True"]


def test_workers_are_processes_of_their_own_not_forks():
    source = (Path(__file__).parents[1] / "src" / "hyphash" / "workers.py").read_text(encoding="utf-8")
    assert "fork" not in source.replace("forkserver", "")
