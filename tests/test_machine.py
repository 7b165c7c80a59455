"""What a process may use: cores, threads, memory that it keeps."""

import hashlib
import os
import signal
import subprocess
import sys
from threading import Timer
from types import SimpleNamespace

import pytest

from hyphash.errors import ConfigError
from hyphash.machine import cores, default_threads, gpus, stop_on_signal, told_at_once

FAULTS = """
import resource, sys
import numpy as np
from hyphash.machine import keep_memory

if sys.argv[1] == "keep":
    keep_memory()
def layer():
    np.ones(60_000_000 // 8)  # 60 MB, as a layer's outputs
for _ in range(3):
    layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_cores_are_those_that_this_process_may_use():
    assert 1 <= cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        assert cores() == len(os.sched_getaffinity(0))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows in a folder what there is")
def test_torch_is_asked_for_gpus_only_where_one_may_be(monkeypatch):
    asked = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setitem(sys.modules, "torch", asked)
    monkeypatch.setattr("hyphash.machine.GPU_FILES", ("null",))
    assert gpus() == ["cuda:0", "cuda:1"]
    monkeypatch.setattr("hyphash.machine.GPU_FILES", ("such a file is nowhere",))
    assert gpus() == []
    monkeypatch.setattr("hyphash.machine.GPU_FILES", ("null",))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gpus() == []  # not installed


def test_threads_are_as_many_as_cores_unless_said_otherwise(monkeypatch):
    monkeypatch.delenv("HYPHASH_THREADS", raising=False)
    assert default_threads() == cores()
    monkeypatch.setenv("HYPHASH_THREADS", "3")
    assert default_threads() == 3
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("HYPHASH_THREADS", wrong)
        with pytest.raises(ConfigError, match="HYPHASH_THREADS is a number of threads"):
            default_threads()


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_memory_that_is_kept_costs_no_new_pages():
    def faults(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)

    assert 10 * faults("keep") < faults("leave")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number):
    before = signal.getsignal(number)
    with stop_on_signal() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    other = signal.SIGINT + signal.SIGTERM - number
    with stop_on_signal() as asked:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), other)  # the terminal told all of a group, and the one that started this tells it again
        assert asked()
    with stop_on_signal(once=True) as asked:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # what the terminal sent, passed on by a launcher
        assert asked()


def test_a_signal_is_told_of_at_once_in_the_middle_of_a_computation():
    """What Python itself does about a signal waits until a long call into C returns."""
    told = []
    with stop_on_signal() as asked, told_at_once(lambda: told.append(asked())):
        Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        hashlib.pbkdf2_hmac("sha256", b"photo", b"salt", 4_000_000)  # seconds
        assert asked()
    assert told == [False]  # before
    with stop_on_signal(), told_at_once(lambda: told.append(True)):
        pass
    os.kill(os.getpid(), signal.SIGWINCH)
    assert (told, signal.set_wakeup_fd(-1)) == ([False], -1)
