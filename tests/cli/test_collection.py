"""`hyphash reindex` and `hyphash collection …`"""

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def own(indexed, tmp_path):
    """A copy of the collection that a test may change."""
    shutil.copytree(indexed, tmp_path / "own")
    return tmp_path / "own"


def test_stats_and_verify(run, own):
    assert json.loads(run("collection", "stats", own, "--json").out)["photos"] == 60
    assert "different codes" in run("collection", "stats", own).out
    assert "all is well" in run("collection", "verify", own).out


def test_remove_relabel_and_compact(run, own):
    assert "1 removed, 59 left" in run("collection", "remove", own, 3).out
    assert "cat, moon" in run("collection", "relabel", own, 4, "moon, cat").out
    found = json.loads(run("search", own, "--labels", "cat", "--carrying", "moon", "--json").out)
    assert [match["id"] for match in found] == [4]
    assert run("collection", "compact", own).code == 0
    assert run("collection", "relabel", own, 3, "cat").code == 2
    for command in (["remove", own, 4, "a.jpg"], ["relabel", own, "a.jpg", "cat"]):
        ran = run("collection", *command)
        assert ran.code == 2
        assert "'a.jpg' is no number of a photo; `hyphash search` prints them" in ran.err
    assert json.loads(run("collection", "stats", own, "--json").out)["photos"] == 59


def test_export_and_import_bring_the_same_photos(run, own, trained, tmp_path):
    from hyphash import Collection

    assert "60 photos" in run("collection", "export", own, tmp_path / "all.jsonl").out
    Collection.create(tmp_path / "other", trained).close()
    assert "60 added" in run("collection", "import", tmp_path / "other", tmp_path / "all.jsonl").out
    assert run("collection", "export", own, tmp_path / "all.doc").code == 2


def test_missing_and_duplicates(run, own):
    assert run("collection", "missing", own).out == ""
    assert run("collection", "duplicates", own).code == 0


def test_the_trash_is_listed_brought_back_and_emptied(run, own, photo_files, tmp_path):
    from hyphash import Collection
    from hyphash.collection import trash

    with Collection.open(own) as opened:
        opened.add(photo_files(2))
        one, other = opened.photos(60)
        trash.put(opened, [one, other])
    assert run("collection", "trash", own).out == f"{one.id}\t{one.path}\n{other.id}\t{other.path}\n"
    ran = run("collection", "trash", own, "--restore", one.id)
    assert (ran.code, ran.out) == (0, f"{other.id}\t{other.path}\n")
    assert f"brought back {one.id}" in ran.err
    assert Path(one.path).exists()
    ran = run("collection", "trash", own, "--empty")
    assert (ran.code, ran.out, "1 deleted" in ran.err) == (0, "", True)
    assert run("collection", "trash", own, "--restore", "a.jpg").code == 2


def test_photos_in_folders_of_other_machines_are_not_called_missing(run, own, monkeypatch):
    monkeypatch.setattr("hyphash.collection.folder.place_of", lambda _, *, shared: "gone" if shared else "elsewhere")
    result = run("collection", "missing", own, "--remove")
    assert (result.code, result.out) == (0, "")
    assert "photos left out, in folders of another machine or that may not be read\nforgotten: 0" in result.err


def test_reindex_moves_to_another_hasher(run, own, sample, tmp_path):
    import hyphash

    hasher = hyphash.train(
        sample, into=tmp_path / "run", cache=tmp_path / "c", bits=20, backbone="timm:test_resnet", weights="none",
        size=32, hidden=8, epochs=1, seed=5, device="cpu", mode="frozen",
    )  # fmt: skip
    assert hasher.fingerprint in run("reindex", own, tmp_path / "run").out
    assert json.loads(run("collection", "stats", own, "--json").out)["bits"] == 20
    assert json.loads(run("search", own, "--labels", "dog", "-k", 2, "--json").out)


def test_recall_of_an_exact_engine_is_one(run, indexed):
    assert json.loads(run("collection", "recall", indexed, "--queries", 5, "--json").out) == {"10": 1.0, "100": 1.0}
    assert "1.0000" in run("collection", "recall", indexed, "--queries", 5).out


def test_rebuild_makes_searching_possible_again(run, own):
    before = json.loads(run("search", own, "--labels", "dog", "-k", 5, "--json").out)
    for file in own.glob("codes-*"):
        file.write_bytes(b"nonsense")
    assert "photos can be searched" in run("collection", "rebuild", own).out
    assert "all is well" in run("collection", "verify", own).out
    assert json.loads(run("search", own, "--labels", "dog", "-k", 5, "--json").out) == before


def test_tags_are_written_only_when_asked_and_conflicts_are_shown(run, own, tmp_path):
    from hyphash import Collection

    with Collection.open(own) as collection:
        photo = next(photo for photo in collection.all_photos() if photo.labels)
        copy = tmp_path / "copy.jpg"
        copy.write_bytes(collection.original(photo.id))
        collection.add([copy], labels=[["animal/dog"]])
        collection.remove([one.id for one in collection.all_photos() if one.path != str(copy)])
    assert f"planned\t{copy}\tanimal/dog" in run("collection", "write-tags", own, "--dry-run").out
    assert not list(tmp_path.glob("*.xmp"))
    ran = run("collection", "write-tags", own)
    assert (ran.out, ran.err) == (f"written\t{copy}\tanimal/dog\n", f"{own}: 1 written\n")
    sidecar = tmp_path / "copy.jpg.xmp"
    sidecar.write_text(sidecar.read_text().replace("<rdf:li>animal</rdf:li>", "<rdf:li>tree</rdf:li>"))
    ran = run("collection", "write-tags", own)
    assert ran.out == f"conflict\t{copy}\tanimal/dog\t+ tree\n"
    assert "1 conflict\nconflicts are left alone: choose --conflicts keep, or --conflicts ours" in ran.err
    (found,) = json.loads(run("collection", "write-tags", own, "--conflicts", "keep", "--json").out)
    assert (found["status"], found["labels"], found["files"]) == ("written", ["animal/dog", "tree"], [str(sidecar)])
