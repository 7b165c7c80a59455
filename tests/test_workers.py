"""Workers: the results of threads from processes, whatever happens to these."""

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread

import psutil
import pytest

from hyphash.errors import ConfigError, MissingExtraError
from hyphash.workers import LostError, Workers, batched, in_threads, told_to_stop


def troubled(name: str) -> str:
    """What its name says happens."""
    match name:
        case "heic":
            raise MissingExtraError("reading HEIC photos", "heic")
        case "deadly":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "chatty":
            print("a library says hello")  # noqa: T201
            os.write(1, b"and so does its C code")
        case "wrong":
            raise ConfigError("wrong: no such thing")
        case "fault":
            raise KeyError("nobody")
        case "unpicklable":
            return lambda: None  # type: ignore[return-value]
    return name.upper()


class Held:
    """What a worker holds: its number, and how often it was used."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number, self.folder, self.used = number, folder, 0
        with (folder / "begun").open("a") as file:
            file.write("x")
        if (folder / "wrong").exists():
            raise ConfigError("wrong: cannot be loaded")
        if (folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def use(self, task: int) -> tuple[int, int, str]:
        self.used += 1
        return task, self.number, os.environ["HYPHASH_THREADS"] + os.environ["OMP_NUM_THREADS"]

    def survive(self, lives: int) -> int:
        """Killed as often as a file says."""
        begun = len((self.folder / "begun").read_text())
        if begun <= lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return begun

    def steps(self, task: int):
        for step in range(200):
            if told_to_stop():
                yield task, "stopped"
                return
            yield task, step
            if task:
                time.sleep(0.02)


@pytest.fixture
def children(worker_processes):
    return lambda: {child.pid for child in worker_processes()}


def test_errors_of_ours_are_raised_as_they_were_and_others_with_their_traceback():
    with Workers(1) as workers:
        assert [workers.call(troubled, name) for name in ("a", "chatty", "b")] == ["A", "CHATTY", "B"]
        with pytest.raises(ConfigError, match="wrong: no such thing"):
            workers.call(troubled, "wrong")
        with pytest.raises(MissingExtraError, match=r"hyphash\[heic\]"):
            workers.call(troubled, "heic")
        with pytest.raises(RuntimeError, match=r"(?s)in troubled.*KeyError: 'nobody'"):
            workers.call(troubled, "fault")
    with Workers(0) as workers, pytest.raises(KeyError):
        workers.call(troubled, "fault")


def test_work_that_cannot_travel_does_no_harm():
    with Workers(1) as workers:
        with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
            workers.call(lambda name: name, "a")
        with pytest.raises(RuntimeError, match="lambda"):
            workers.call(troubled, "unpicklable")
        assert workers.call(troubled, "b") == "B"


def test_a_task_that_ends_its_process_is_told_and_the_next_one_done():
    with Workers(1) as workers:
        with pytest.raises(LostError, match="exit code -11"):
            workers.call(troubled, "deadly")
        assert workers.call(troubled, "c") == "C"


def test_a_worker_that_is_lost_while_it_has_nothing_to_do_costs_no_task(children):
    before = children()
    with Workers(1) as workers:
        workers.call(troubled, "a")
        (idle,) = children() - before
        os.kill(idle, signal.SIGKILL)
        os.waitid(os.P_PID, idle, os.WEXITED | os.WNOWAIT)  # with all its threads, and left to its owner
        assert workers.call(troubled, "b") == "B"


def test_processes_are_started_when_needed_and_end_with_their_owner(children):
    before = children()
    workers = Workers(4)
    assert children() == before
    workers.call(troubled, "a")
    workers.call(troubled, "b")
    assert len(children() - before) == 1
    workers.close()
    assert children() == before
    with pytest.raises(LostError):
        workers.call(troubled, "c")
    forgotten = Workers(2)
    forgotten.call(troubled, "a")
    del forgotten
    assert children() == before


def test_a_plain_script_needs_no_guard_and_leaves_nothing_behind_when_it_is_killed(tmp_path, children):
    """multiprocessing would run the script again in each process."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import operator, time
        from threading import Thread
        import psutil
        from hyphash.workers import Workers

        workers = Workers(2)
        print(*(workers.call(operator.neg, i) for i in range(5)), flush=True)
        Thread(target=workers.call, args=(time.sleep, 60)).start()  # one that is busy ends too
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        time.sleep(60)
        """),
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "0 -1 -2 -3 -4\n"
        started = [int(pid) for pid in process.stdout.readline().split()]
        assert 1 <= len(started) <= 2
        process.kill()
    until = time.monotonic() + 10
    while any(map(psutil.pid_exists, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, started))


def test_ctrl_c_is_for_the_one_that_asks_from_the_first_moment(children):
    """Not only once a process is up and ignores it: it is started deaf, and only it."""
    before = children()
    with Workers(1) as workers:
        workers.call(troubled, "a")
        (worker,) = children() - before
        assert signal.SIGINT in blocked(worker)
        assert signal.SIGINT not in blocked(os.getpid())
        os.kill(worker, signal.SIGINT)
        assert workers.call(troubled, "b") == "B"


def blocked(pid: int) -> set[int]:
    """The signals that the main thread of a process is deaf to."""
    (mask,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_worker_holds_what_was_set_up_once(processes, tmp_path, monkeypatch, children):
    monkeypatch.setenv("HYPHASH_THREADS", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    workers = Workers(processes, setup=partial(Held, tmp_path), threads=2)
    found = list(workers.as_done(Held.use, range(20)))
    assert sorted(task for task, _ in found) == list(range(20))
    assert all(result[0] == task and result[2] == "22" for task, result in found)
    assert {result[1] for _, result in found} <= set(range(max(processes, 1)))
    assert len((tmp_path / "begun").read_text()) <= max(processes, 1)
    assert not children()


def test_a_task_is_given_again_until_it_is_done_or_was_tried_often_enough(tmp_path):
    found = list(Workers(1, setup=partial(Held, tmp_path), attempts=3).as_done(Held.survive, [2]))
    assert found == [(2, 3)]
    (tmp_path / "begun").unlink()
    (lost, more) = Workers(1, setup=partial(Held, tmp_path), attempts=3).as_done(Held.survive, [99, 0])
    assert lost[0] == 99
    assert isinstance(lost[1], LostError)
    assert more == (0, 4)  # the others go on


def test_workers_that_cannot_begin_are_told(tmp_path, children):
    (tmp_path / "deadly").touch()
    ((task, lost),) = Workers(1, setup=partial(Held, tmp_path), attempts=3).as_done(Held.use, [1])
    assert (task, str(lost)) == (1, "exit code -9 before it could begin")
    assert len((tmp_path / "begun").read_text()) == 3
    (tmp_path / "deadly").rename(tmp_path / "wrong")
    for processes in (0, 2):
        with pytest.raises(ConfigError, match="wrong: cannot be loaded"):
            list(Workers(processes, setup=partial(Held, tmp_path)).as_done(Held.use, [1, 2, 3]))
    assert not children()


@pytest.mark.parametrize("processes", [0, 2])
def test_a_generator_tells_as_it_goes(processes, tmp_path):
    found = list(Workers(processes, setup=partial(Held, tmp_path)).as_done(Held.steps, [0]))
    assert found == [(0, (0, step)) for step in range(200)]


def test_those_at_work_are_told_to_stop_and_no_more_is_begun(tmp_path):
    seen = []
    workers = Workers(2, setup=partial(Held, tmp_path))
    for task, result in workers.as_done(Held.steps, [1, 2, 3], stop=lambda: len(seen) > 3, grace=30):
        seen.append((task, result[1]))
    assert {task for task, _ in seen} == {1, 2}
    assert [task for task, step in seen if step == "stopped"].count(1) == 1
    assert len(seen) < 300


def test_whoever_ends_ends_the_workers_too(children):
    arriving = Workers(2).as_done(time.sleep, [0, 60, 60])
    assert next(arriving) == (0, None)
    arriving.close()
    assert not children()


def test_many_threads_may_ask():
    found: dict[int, int] = {}
    with Workers(2) as workers:
        threads = [Thread(target=lambda i=i: found.update({i: workers.call(abs, -i)})) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {i: i for i in range(20)}


def test_threads_keep_the_order_and_stop_when_nobody_listens():
    begun = []

    def work(i):
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return -i

    assert list(in_threads(work, range(50), workers=4, ahead=10)) == [-i for i in range(50)]
    begun.clear()
    stream = in_threads(work, range(1000), workers=2, ahead=5)
    assert next(stream) == 0
    stream.close()
    assert len(begun) < 20


def test_batches_are_all_items():
    assert list(batched(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batched([], 3)) == []


def test_programs_in_the_folder_where_somebody_is_are_not_run(tmp_path, monkeypatch):
    """A collection that somebody sent, with a program in it called as one of ours."""
    (tmp_path / "hyphash.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    with Workers(1) as workers:
        assert workers.call(len, "four") == 4
    assert not (tmp_path / "ran").exists()


def test_what_is_set_up_may_have_workers_of_its_own():
    def setup(_number):
        with Workers() as inner:
            return sum(in_threads(partial(inner.call, abs), [-1, -2], workers=2, ahead=2))

    done = Queue()
    Thread(target=lambda: done.put(Workers(setup=setup).call(int)), daemon=True).start()
    assert done.get(timeout=30) == 3
