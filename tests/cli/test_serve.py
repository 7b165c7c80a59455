"""`hyphash start`, `serve`, `watch`, `refine`, `export` and `publish`"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import httpx
import pytest
from modules import loaded

from hyphash import Collection, refining
from hyphash.cli import serve
from hyphash.cli.serve import _labelled
from hyphash.collection.watching import watched
from hyphash.encoder import ONNX_FILE, OnnxEncoder
from hyphash.errors import StoppedError
from hyphash.hasher import Hasher


@pytest.fixture
def folder(tmp_path, photo):
    """Six photos in the folders that a test names."""

    def make(*names):
        for i, name in enumerate(names):
            (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "photos" / name).write_bytes(photo(i, size=48, kind="JPEG"))
        return tmp_path / "photos"

    return make


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a.jpg", "b.jpg"), [[], []]),
        (("cats/a.jpg", "dogs/b.jpg"), [["cats"], ["dogs"]]),
        (("2019/a.jpg", "2020/b.jpg"), [[], []]),
        (("cats/a.jpg", "100CANON/b.jpg"), [[], []]),
        (("all/a.jpg", "all/b.jpg"), [[], []]),
    ],
)
def test_folders_are_labels_only_where_words_name_them(folder, names, expected):
    source, labels, _ = _labelled(folder(*names), "")
    assert sorted(map(source.name, range(len(source)))) == sorted(names)
    assert sorted(labels) == sorted(expected)


def test_a_label_file_says_more_than_folders_do(folder):
    photos = folder("cats/a.jpg", "dogs/b.jpg")
    (photos / "labels.csv").write_text("image,labels\ncats/a.jpg,sea|sky\n")
    source, labels, _ = _labelled(photos, "")
    assert dict(zip(map(source.name, range(2)), labels, strict=True)) == {
        "cats/a.jpg": ["sea", "sky"],
        "dogs/b.jpg": None,
    }
    assert sorted(_labelled(photos, "folders")[1]) == [["cats"], ["dogs"]]


def test_photos_that_are_listed_but_gone_end_nothing(folder, capsys):
    photos = folder("a.jpg", "b.jpg")  # the third was a duplicate of one of them, and is in the trash
    (photos / "labels.csv").write_text("image,labels\na.jpg,sea\nb.jpg,sky\nc.jpg,sea\n")
    source, labels, _ = _labelled(photos, "")
    assert (len(source), sorted(labels)) == (2, [["sea"], ["sky"]])
    assert "1 photo listed but not there: 'c.jpg'" in capsys.readouterr().err


def test_an_empty_folder_is_told_of(run, tmp_path):
    ran = run("start", tmp_path)
    assert ran.code == 2
    assert "no photos here that may be read" in ran.err


def test_a_collection_in_place_of_photos_is_told_of(run, indexed):
    ran = run("start", indexed, "--no-open")
    assert (ran.code, "give the folder of its photos" in ran.err) == (2, True)


def test_refine_says_what_it_came_to(run, indexed, tmp_path):
    """Of 28 photos of scenes little is learned, and nothing that is sure."""
    folder, cache = shutil.copytree(indexed, tmp_path / "collection"), tmp_path / "cache"
    ran = run("refine", folder, "--cache", cache)
    assert ran.code == 0, ran.err
    assert "learned from 28 photos" in ran.out
    assert "keeps the hasher that it has" in ran.out
    assert "suggested labels" in ran.out
    assert run("train", folder, "--set", "epochs=1", "--into", tmp_path / "run", "--cache", cache).code == 0


@pytest.mark.slow
def test_from_a_folder_to_the_page_and_on_when_given_again(folder, tmp_path):
    photos, into = folder(*(f"{i}.jpg" for i in range(6))), tmp_path / "collection"
    (photos / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and nothing more")
    command = [sys.executable, "-m", "hyphash", "start", photos, "--into", into, "--port", "0", "--no-open"]
    env = os.environ | {"HYPHASH_CACHE": str(tmp_path / "cache")}
    for end in (os.kill, os.killpg):  # it alone, and as a terminal does it, which tells the service too
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as started:
            url, token = re.fullmatch(r"(http\S+)#token=(\S+)\n", started.stdout.readline()).groups()
            with urllib.request.urlopen(f"{url}api/collection") as answer:
                assert not json.load(answer)["read_only"]
            told = ""
            for line in started.stderr:
                told += line
                if "goes on until Ctrl-C" in line:
                    break
            request = urllib.request.Request(
                f"{url}api/photos/1/accept", json.dumps({"label": "mine"}).encode(), method="POST",
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["labels"] == ["mine"]
            end(started.pid, signal.SIGINT)
            assert started.stderr.read() == ""  # nor do extensions say anything at the end
        assert started.returncode == 0
        assert re.search(r"1 photo left out:\n  .*torn\.jpg: damaged or cut off", told)
    with Collection.open(into) as collection:
        assert len(collection) == 6
        assert [line.what for line in collection.log.recent(9)].count("left out") == 1
        assert "dog" in collection.hasher.spec.guessed
        assert all(tag.guessed == (tag.label != "mine") for tag in collection.suggest(2, k=200))
        assert len(collection.search(labels=["dog"], k=6)) == 6
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_ctrl_c_is_answered_at_once_while_photos_come_in(folder, run, indexed, tmp_path, monkeypatch):
    """One that is in the middle of a batch, which may take seconds."""

    def take_in(*_, stop, **__):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        raise StoppedError("stopped after 2 photos")

    into = shutil.copytree(indexed, tmp_path / "collection")
    monkeypatch.setattr(refining, "take_in", take_in)
    monkeypatch.setattr(serve, "_wait_for", lambda *_, **__: None)
    ran = run("start", folder("a.jpg", "b.jpg"), "--into", into, "--no-open", "--port", 0)
    assert ran.err.splitlines()[-2:] == [
        "stopping after this batch; nothing is lost: given again, it goes on", "hyphash: stopped after 2 photos"
    ]  # fmt: skip


@pytest.fixture
def made(run, tmp_path):
    """A collection of a folder with one photo, and another photo beside it."""
    draw = loaded("collection/tiny.py").draw
    draw(tmp_path / "photos" / "dog" / "1.jpg", 1)
    draw(tmp_path / "2.jpg", 2)
    loaded("encoding/conftest.py")._run(tmp_path / "run", 0)
    ran = run("index", tmp_path / "run", tmp_path / "photos", "--into", tmp_path / "collection")
    assert "1 photo (1 added)" in ran.out, ran.err
    assert watched(tmp_path / "collection") == {tmp_path / "photos": "auto"}
    return tmp_path


def started(*words):
    command = [sys.executable, "-m", "hyphash", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_new_photo_is_taken_in_until_it_is_stopped(made):
    process = started("watch", made / "collection")
    try:
        assert "watching" in process.stderr.readline()
        shutil.copy(made / "2.jpg", made / "photos" / "dog" / "2.jpg")
        assert re.search(r"added 1: 2\.jpg", process.stdout.readline())
        (made / "photos" / "dog" / "2.jpg").unlink()
        assert re.search(r"forgotten 1: 2\.jpg", process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_service_shows_what_its_watch_took_in(made):
    process = started("serve", made / "collection", "--watch", "--port", 0, "--log", "error", "--workers", 1)
    try:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        shutil.copy(made / "2.jpg", made / "photos" / "dog" / "2.jpg")
        end = time.monotonic() + 60
        with httpx.Client(base_url=address) as client:
            while (line := client.get("/api/activity").json()[0])["names"] != ["2.jpg"]:
                assert time.monotonic() < end
                time.sleep(0.1)
            assert (line["what"], line["photos"]) == ("added", 1)
            label = client.get("/api/labels").json()[0]
            assert (label["label"], label["photos"]) == ("dog", 2)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_collection_without_folders_asks_for_one(run, made):
    (made / "collection" / "watched.toml").unlink()
    ran = run("watch", made / "collection")
    assert (ran.code, "name one" in ran.err) == (2, True)


pytestmark = pytest.mark.usefixtures("export_once")


@pytest.mark.slow
def test_export_compares_on_the_photos_of_the_run(run, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    ran = run("export", folder)
    assert ran.code == 0, ran.err
    assert "agrees with the original on 12 photos" in ran.out
    assert isinstance(Hasher.load(folder, device="onnx").encoder, OnnxEncoder)


@pytest.mark.slow
def test_export_of_what_was_exported_copies_it(run, trained, tmp_path):
    assert run("export", trained, "--into", tmp_path / "light").code == 0
    ran = run("export", tmp_path / "light", "--into", tmp_path / "again")
    assert ran.code == 0, ran.err
    assert (tmp_path / "again" / ONNX_FILE).read_bytes() == (tmp_path / "light" / ONNX_FILE).read_bytes()
    assert run("export", tmp_path / "light").code == 0


@pytest.mark.slow
def test_export_of_a_collection_serves_it_without_weights_of_torch(run, trained, sample, tmp_path):
    assert run("index", trained, sample, "--into", tmp_path / "c").code == 0
    ran = run("export", tmp_path / "c", "--json")
    told = json.loads(ran.out)
    assert told["photos"] == 64
    assert told["difference"] < 1e-4
    with Collection.open(tmp_path / "c", device="onnx") as collection:
        assert (collection.hasher.folder / ONNX_FILE).is_file()
        assert collection.search(sample / "database" / "00003.jpg", k=1)[0].distance == 0


@pytest.mark.slow
def test_export_without_the_photos_says_so(run, trained, sample, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "config.toml").unlink()
    ran = run("export", folder, "--into", tmp_path / "light")
    assert ran.code == 0, ran.err
    assert "not here" in ran.err
    assert sorted(path.name for path in (tmp_path / "light").iterdir()) == [
        "hasher.toml", "network.onnx", "weights.safetensors",
    ]  # fmt: skip
    assert Hasher.load(tmp_path / "light").fingerprint == Hasher.load(folder, device="cpu").fingerprint


def test_serve_refuses_others_without_a_token(run, indexed, monkeypatch):
    monkeypatch.delenv("HYPHASH_TOKEN", raising=False)
    ran = run("serve", indexed, "--host", "0.0.0.0")
    assert ran.code == 2
    assert "--token" in ran.err


def test_serve_needs_a_collection(run, tmp_path):
    ran = run("serve", tmp_path, "--port", 0)
    assert ran.code == 2
    assert "not a collection" in ran.err
