"""`hyphash start` and `hyphash refine`"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

from hyphash import Collection
from hyphash.cli.start import _labelled


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


def test_an_empty_folder_is_told_of(run, tmp_path):
    ran = run("start", tmp_path)
    assert ran.code == 2
    assert "no photos here" in ran.err


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
    command = [sys.executable, "-m", "hyphash", "start", photos, "--into", into, "--port", "0", "--no-open"]
    env = os.environ | {"HYPHASH_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
            url, token = re.fullmatch(r"(http\S+)#token=(\S+)\n", started.stdout.readline()).groups()
            with urllib.request.urlopen(f"{url}api/collection") as answer:
                assert not json.load(answer)["read_only"]
            for line in started.stderr:
                if "goes on until Ctrl-C" in line:
                    break
            request = urllib.request.Request(
                f"{url}api/photos/1/accept", json.dumps({"label": "mine"}).encode(), method="POST",
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["labels"] == ["mine"]
            started.send_signal(signal.SIGINT)
        assert started.returncode == 0
    with Collection.open(into) as collection:
        assert len(collection) == 6
        assert "dog" in collection.hasher.spec.guessed
        assert all(tag.guessed == (tag.label != "mine") for tag in collection.suggest(2, k=200))
        assert len(collection.search(labels=["dog"], k=6)) == 6
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
