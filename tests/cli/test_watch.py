"""`hyphash watch` and `hyphash serve --watch`, as processes"""

import re
import shutil
import signal
import subprocess
import sys
import time

import httpx
import pytest
from modules import loaded

from hyphash.collection.watching import watched

pytestmark = pytest.mark.slow


@pytest.fixture
def made(run, tmp_path):
    """A collection of a folder with one photo, and another photo beside it."""
    draw = loaded("collection/tiny.py").draw
    draw(tmp_path / "photos" / "dog" / "1.jpg", 1)
    draw(tmp_path / "2.jpg", 2)
    loaded("encoding/conftest.py")._run(tmp_path / "run", 0)
    ran = run("index", tmp_path / "run", tmp_path / "photos", "--into", tmp_path / "collection")
    assert "1 photos (1 added)" in ran.out, ran.err
    assert watched(tmp_path / "collection") == {tmp_path / "photos": "auto"}
    return tmp_path


def started(*words):
    command = [sys.executable, "-m", "hyphash", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


def test_a_collection_without_folders_asks_for_one(run, made):
    (made / "collection" / "watched.toml").unlink()
    ran = run("watch", made / "collection")
    assert (ran.code, "name one" in ran.err) == (2, True)
