"""A server that somebody else runs, named by a collection that they sent: what it gets to hear."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from hyphash.errors import ConfigError, EngineError
from hyphash.stores.address import HOSTS, PASSWORD
from hyphash.stores.postgresql import PostgreSQL

CLEARTEXT, MD5 = struct.pack("!cII", b"R", 8, 3), struct.pack("!cII4s", b"R", 12, 5, b"salt")


class Rogue:
    """Asks everybody for a password, and hears what they say."""

    def __init__(self, question: bytes) -> None:
        self.question = question
        self.heard = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            with client:
                while message := client.recv(1000):
                    self.heard += message
                    if message[4:8] in (b"\x04\xd2\x16/", b"\x04\xd2\x160"):  # may we use TLS, or GSS?
                        client.send(b"N")
                    elif message[4:6] == b"\x00\x03":
                        client.send(self.question)


@pytest.fixture(params=[CLEARTEXT, MD5], ids=["cleartext", "md5"])
def rogue(request: pytest.FixtureRequest) -> Iterator[Rogue]:
    rogue = Rogue(request.param)
    yield rogue
    rogue.socket.close()


@pytest.mark.parametrize("variable", [PASSWORD, "PGPASSWORD"])
@pytest.mark.parametrize("named", [False, True])
def test_nobody_hears_the_password_of_the_environment(
    rogue: Rogue, monkeypatch: pytest.MonkeyPatch, variable: str, named: bool
) -> None:
    """Neither a host that only the collection names, nor one that the user names, in clear."""
    monkeypatch.setattr("hyphash.stores.address._named", set())
    monkeypatch.setenv(variable, "Sesam")
    monkeypatch.setenv(HOSTS, "127.0.0.1" if named else "db.example.org")
    words = "authentication method requirement|no password supplied"
    with pytest.raises(EngineError, match=words):
        PostgreSQL.open(Path(), f"postgresql://me@127.0.0.1:{rogue.port}/photos?patience=0")
    assert b"me" in rogue.heard  # it was asked
    assert b"Sesam" not in rogue.heard
    assert b"md5" not in rogue.heard


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("patience=nan", "patience lies between 0 and 86400, nan does not"),
        ("patience=-1", "patience lies between"),
        ("partitions=-5", "partitions lies between 0 and 4096, -5 does not"),
        ("ef_search=0", "ef_search lies between"),
        ("m=1000", "m lies between"),
        ("collection=information_schema", "is not the server's"),
        ("collection=pg_catalog", "does not start with pg_"),
        ("collection=a%0A", "a name has a"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PostgreSQL.open(Path(), f"postgresql://127.0.0.1:1/photos?{option}")
