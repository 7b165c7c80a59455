"""`hyphash index`, `search`, `tag`, `encode` with `collection load`, and `plan`"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest

from hyphash import Collection
from hyphash.hasher import Hasher
from hyphash.photos import PhotoFiles
from hyphash.planning import Wish


def test_index_makes_a_collection_and_adds_nothing_twice(run, trained, sample, tmp_path):
    first = run("index", trained, sample, "--part", "database", "--into", tmp_path / "c", "--json")
    assert first.code == 0, first.err
    assert json.loads(first.out) | {"collection": ""} == {
        "collection": "", "photos": 60, "added": 60, "updated": 0, "moved": 0, "unchanged": 0, "left_out": 0,
    }  # fmt: skip
    again = run("index", trained, sample, "--into", tmp_path / "c")
    assert "72 photos (12 added, 60 unchanged)" in again.out


def test_index_without_labels_takes_every_photo(run, trained, sample, tmp_path):
    (tmp_path / "photos").mkdir()
    for photo in sorted((sample / "queries").iterdir())[:3]:
        (tmp_path / "photos" / photo.name).write_bytes(photo.read_bytes())
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    ran = run("index", trained, tmp_path / "photos", "--no-labels", "--into", tmp_path / "c")
    assert ran.code == 0
    assert "3 photos (3 added)" in ran.out
    assert "broken.jpg" in ran.err


@pytest.mark.parametrize(
    ("stored", "told"),
    [(0, "stopped before any photos were done"), (1, "stopped after 32 of 72 photos, which are kept")],
)
def test_index_that_is_stopped_says_what_is_kept_and_how_to_go_on(
    run, trained, sample, tmp_path, monkeypatch, stored, told
):
    real = Collection.adding

    def stopped(self, *args, **options):
        yield from islice(real(self, *args, **options | {"batch": 32}), stored)
        raise KeyboardInterrupt

    monkeypatch.setattr(Collection, "adding", stopped)
    ran = run("index", trained, sample, "--into", tmp_path / "c")
    assert ran.code == 130
    assert f"{told}; give the same command again to finish" in ran.err
    with Collection.open(tmp_path / "c") as collection:
        assert len(collection) == 32 * stored


def test_index_says_nothing_of_splits_and_takes_photos_without_labels(run, trained, sample, tmp_path):
    for i, photo in enumerate(sorted((sample / "queries").iterdir())[:6]):
        for folder in ("flat", f"sorted/{'ab'[i % 2]}"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / photo.name).write_bytes(photo.read_bytes())
    ran = run("index", trained, tmp_path / "sorted", "--into", tmp_path / "c")
    assert "6 photos (6 added)" in ran.out
    assert "split" not in ran.err
    part = run("index", trained, tmp_path / "sorted", "--part", "queries", "--into", tmp_path / "d")
    assert "no split given" in part.err
    ran = run("index", trained, tmp_path / "flat", "--into", tmp_path / "e")
    assert "6 photos (6 added)" in ran.out
    assert run("index", trained, tmp_path / "flat", "--skip-unlabelled", "--into", tmp_path / "f").code == 2
    assert not (tmp_path / "f").exists()


def test_one_index_takes_photos_with_labels_without_and_unlisted_ones(run, trained, sample, tmp_path):
    photos = tmp_path / "photos"
    (photos / "more").mkdir(parents=True)
    for i, photo in enumerate(sorted((sample / "queries").iterdir())[:5]):
        (photos / ("more" if i == 4 else ".") / f"{i}.jpg").write_bytes(photo.read_bytes())

    def index(*rows, source=photos, into="c"):
        (photos / "labels.csv").write_text("\n".join(["image,labels", *rows]))
        ran = run("index", trained, source, "--into", tmp_path / into)
        assert ran.code == 0, ran.err
        with Collection.open(tmp_path / into) as collection:
            return ran.out, {photo.path[-5:-4]: photo.labels for photo in collection.photos()}

    rows = ["0.jpg,cat|sea", "1.jpg,", "2.jpg,dog"]
    out, carried = index(*rows)
    assert "5 photos (5 added)" in out
    assert carried == {"0": ("cat", "sea"), "1": (), "2": ("dog",), "3": (), "4": ()}
    assert index(*rows, source=photos / "labels.csv", into="d")[1] == {"0": ("cat", "sea"), "1": (), "2": ("dog",)}
    with Collection.open(tmp_path / "c") as collection:
        collection.accept(3, "own")
        collection.accept(4, "own")
    out, carried = index("0.jpg,", "1.jpg,sea", "2.jpg,")  # emptied cells take back what the file had said
    assert "5 photos (3 updated, 2 unchanged)" in out
    assert carried == {"0": (), "1": ("sea",), "2": ("own",), "3": ("own",), "4": ()}


def test_index_leaves_out_what_was_removed_unless_asked(run, trained, sample, tmp_path):
    run("index", trained, sample, "--into", tmp_path / "c")
    run("collection", "remove", tmp_path / "c", "3", "4")
    again = run("index", trained, sample, "--into", tmp_path / "c")
    assert "70 photos (70 unchanged, 2 stay removed: --again takes them)" in again.out
    told = json.loads(run("index", trained, sample, "--again", "--into", tmp_path / "c", "--json").out)
    assert (told["photos"], told["added"], told["unchanged"]) == (72, 2, 70)


def test_index_prunes_what_is_gone_and_only_if_asked(run, trained, sample, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i, photo in enumerate(sorted((sample / "queries").iterdir())[:4]):
        (photos / f"{i}.jpg").write_bytes(photo.read_bytes())
    run("index", trained, photos, "--into", tmp_path / "c")
    (photos / "0.jpg").unlink()
    (photos / "1.jpg").rename(photos / "moved.jpg")
    assert "4 photos (1 moved, 2 unchanged)" in run("index", trained, photos, "--into", tmp_path / "c").out
    ran = run("index", trained, photos, "--prune", "--into", tmp_path / "c", "--json")
    assert json.loads(ran.out) | {"collection": ""} == {
        "collection": "", "photos": 3, "added": 0, "updated": 0, "moved": 0, "unchanged": 3, "forgotten": 1,
        "left_out": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "labels", [["cat"] * 4, ["a", "b", "c", "d"], ["cat|dog", "cat", "bird", "sea"]], ids=["one", "own", "some"]
)
def test_index_takes_labels_that_no_split_could_be_drawn_from(run, trained, sample, tmp_path, labels):
    """One label for all photos, or labels that one photo carries: nothing to train on, and enough to find photos by."""
    photos = sorted((sample / "queries").iterdir())[: len(labels)]
    rows = [f"{photo},{label}" for photo, label in zip(photos, labels, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,labels", *rows]))
    ran = run("index", trained, tmp_path / "labels.csv", "--into", tmp_path / "c")
    assert "4 photos (4 added)" in ran.out, ran.err
    with Collection.open(tmp_path / "c") as collection:
        carried = {photo.path: "|".join(photo.labels) for photo in collection.photos()}
    assert carried == {str(photo): label for photo, label in zip(photos, labels, strict=True)}
    part = run("index", trained, tmp_path / "labels.csv", "--part", "database", "--into", tmp_path / "d")
    assert (part.code == 0) == (labels[0] == "cat|dog")  # a part has to be drawn


def test_search_by_photo_finds_the_photo_itself_first(run, indexed, sample):
    photo = sample / "database" / "00007.jpg"
    found = json.loads(run("search", indexed, photo, "-k", 5, "--json").out)
    assert len(found) == 5
    assert found[0]["distance"] == 0
    assert str(photo) in {match["path"] for match in found if match["distance"] == 0}
    assert found == sorted(found, key=lambda match: (match["distance"], match["id"]))


def test_search_with_filters(run, indexed):
    with Collection.open(indexed) as collection:
        first = collection.get(1)
    folder, kind = Path(first.path).parent.name, Path(first.path).suffix.lstrip(".")
    found = json.loads(
        run("search", indexed, "--folder", folder, "--type", kind, "--size", "..9MB", "-k", 99, "--json").out
    )
    assert [match["id"] for match in found] == sorted(match["id"] for match in found)  # nobody knows when
    assert {Path(match["path"]).parent.name for match in found} == {folder}
    assert run("search", indexed, "--like", 1, "--camera", "Leica", "--json").out.strip() == "[]"
    assert run("search", indexed, "--taken", "2019", "--added", "7d", "--near", "0,0,1km").code == 0
    wrong = run("search", indexed, "--taken", "May")
    assert wrong.code == 2
    assert "taken 'May' cannot be understood; write it like 2019" in wrong.err


def test_search_by_labels_agrees_with_the_library(run, indexed):
    found = json.loads(run("search", indexed, "--labels", "dog, person,-car", "-k", 7, "--json").out)
    with Collection.open(indexed) as collection:
        expected = collection.search(labels=["dog", "person"], unwanted=["car"], k=7)
        assert [match["id"] for match in found] == [match.id for match in expected]


def test_search_prints_a_table_and_writes_a_gallery(run, indexed, sample, tmp_path):
    page = tmp_path / "g.html"
    ran = run("search", indexed, sample / "queries" / "00000.jpg", "--labels", "dog", "-k", 3, "--gallery", page)
    assert ran.code == 0, ran.err
    assert "distance" in ran.out
    assert page.read_text().count("data:image") == 4  # the query and three matches


def test_search_errors(run, indexed, tmp_path):
    assert "Give a photo" in run("search", indexed).err
    assert "unicorn" in run("search", indexed, "--labels", "unicorn").err
    assert run("search", tmp_path / "nowhere", "--labels", "dog").code == 2
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert "empty.jpg" in run("search", indexed, tmp_path / "empty.jpg").err
    assert run("search", indexed, "--labels", "dog", "--rank", "best").code == 2


def test_a_label_that_photos_must_not_carry_is_refused_not_dropped(run, indexed):
    ran = run("search", indexed, "--labels", "dog", "--carrying", "dog,-car")
    assert ran.code == 2
    assert "--carrying" in ran.err
    assert "--labels dog,-car" in ran.err  # the way out
    assert run("search", indexed, "--labels", "dog", "--carrying", "person, person").code == 0


def test_tag_prints_scores_and_goes_on_past_a_bad_photo(run, trained, sample, tmp_path):
    photo = sample / "queries" / "00001.jpg"
    (tmp_path / "text.jpg").write_text("no photo")
    ran = run("tag", trained, photo, tmp_path / "text.jpg", "-k", 3, "--json")
    assert ran.code == 0
    tags = json.loads(ran.out)[str(photo)]
    assert list(tags.values()) == sorted(tags.values(), reverse=True)
    assert len(tags) == 3
    assert "text.jpg" in ran.err
    assert run("tag", trained, tmp_path / "text.jpg").code == 2


def test_tags_of_a_label_layer_are_probabilities_and_those_above_threshold_are_marked(run, trained, sample):
    photo = sample / "queries" / "00001.jpg"
    hasher = Hasher.load(trained, device="cpu")
    encoded = hasher.encode_photos(PhotoFiles([photo]))
    (tags,) = hasher.tags(encoded.values, encoded.logits)
    assert 0 < tags[-1].score < tags[0].score < 1
    ran = run("tag", trained, photo, "-k", len(tags))
    assert "probability" in ran.out
    assert ran.out.count("probably") == sum(tag.carried for tag in tags)


def test_a_search_by_labels_needs_no_torch(indexed):
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['hyphash', 'search', sys.argv[1], '--labels', 'dog', "
        "'--json']; from hyphash.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(indexed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 10


def test_a_search_that_does_not_wait_says_what_it_has_not_seen(run, trained, sample, tmp_path):
    run("index", trained, sample, "--part", "database", "--into", tmp_path / "c", "--engine", "faiss")
    assert "not looked at" not in run("search", tmp_path / "c", "--labels", "dog", "--no-catch-up").err
    run("collection", "remove", tmp_path / "c", "1")
    run("collection", "remove", tmp_path / "c", "2")
    behind = run("search", tmp_path / "c", "--labels", "dog", "--no-catch-up")
    assert "not looked at: the last 2 changes of the collection" in behind.err
    assert "not looked at" not in run("search", tmp_path / "c", "--labels", "dog").err


def test_an_engine_elsewhere_changes_one_option_and_nothing_else(
    run, trained, sample, indexed, tmp_path, postgres_server
):
    url = postgres_server.url().replace("postgres@", "postgres:Geheimnis@")
    first = run("index", trained, sample, "--part", "database", "--engine", url, "--into", tmp_path / "c")
    assert "60 photos (60 added)" in first.out, first.err
    again = run("index", trained, sample, "--into", tmp_path / "c", "--part", "database")
    assert "60 photos (60 unchanged)" in again.out
    for asked in (["--labels", "dog", "-k", 7], [sample / "queries" / "00000.jpg", "--rank", "asymmetric"]):
        here, there = (json.loads(run("search", folder, *asked, "--json").out) for folder in (indexed, tmp_path / "c"))
        assert here == there != []
    assert "all is well" in run("collection", "verify", tmp_path / "c").out
    stats = json.loads(run("collection", "stats", tmp_path / "c", "--json").out)
    assert (stats["photos"], stats["bits"]) == (60, 12)
    elsewhere = run("index", trained, sample, "--engine", url + "2", "--into", tmp_path / "c")
    assert elsewhere.code == 2
    assert "leave the engine out" in elsewhere.err
    wrong = run(
        "index", trained, sample, "--engine", url.replace("postgresql", "postgres", 1), "--into", tmp_path / "d"
    )
    assert "did you mean 'postgresql'" in wrong.err
    pair = run(
        "index", trained, sample, "--part", "database", "--store", url, "--engine", "local", "--into", tmp_path / "e"
    )
    assert "60 photos (60 unchanged)" in pair.out, pair.err  # the same store, searched by another engine
    here, there = (run("search", tmp_path / name, "--labels", "dog", "-k", 9, "--json").out for name in "ce")
    assert here == there
    for ran in (first, again, elsewhere, wrong, pair):
        assert "Geheimnis" not in ran.out + ran.err


@pytest.fixture
def codes(run, trained, sample, tmp_path):
    ran = run("encode", trained, sample / "queries", "--into", tmp_path / "codes", "--workers", 1, "--per-shard", 5)
    assert ran.code == 0, ran.err
    assert "12 photos in 3 shards, 12 bits each" in ran.out
    return tmp_path / "codes"


def test_encode_load_search(run, codes, trained, sample, tmp_path):
    collection = tmp_path / "collection"
    ran = run("collection", "load", collection, codes, "--run", trained)
    assert "12 photos (12 added, 12 loaded)" in ran.out, ran.err
    assert "(0 added, 12 loaded)" in run("collection", "load", collection, codes).out
    photo = sample / "queries" / "00003.jpg"
    found = json.loads(run("search", collection, photo, "-k", 12, "--json").out)
    assert str(photo) in [match["path"] for match in found if match["distance"] == 0]


def test_a_load_that_is_refused_leaves_no_collection_behind(run, codes, trained, tmp_path):
    refused = {"no manifest.json": tmp_path, "1 of 3 shards are there": tmp_path / "begun"}
    for folder in ("begun", "less", "other"):
        shutil.copytree(codes, tmp_path / folder)
    (tmp_path / "begun" / "summary.json").unlink()
    for shard in ("begun/shard-000001", "begun/shard-000002", "less/shard-000001"):
        (tmp_path / f"{shard}.parquet").unlink()
    summary = tmp_path / "other" / "summary.json"
    summary.write_text(summary.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    refused |= {"shard-000001.parquet: missing": tmp_path / "less", "encode the photos": tmp_path / "other"}
    for reason, folder in refused.items():
        ran = run("collection", "load", tmp_path / "new", folder, "--run", trained)
        assert ran.code == 2
        assert reason in ran.err
        assert not (tmp_path / "new").exists()


def test_again_there_is_nothing_to_do_and_problems_are_told(run, codes, trained, sample, tmp_path):
    again = run("encode", trained, sample / "queries", "--into", codes, "--per-shard", 5, "--json")
    told = json.loads(again.out)
    assert (told["photos"], told["shards"], told["left_out"]) == (12, 3, 0)
    (tmp_path / "list.txt").write_text(f"{sample}/queries/00000.jpg\ngone.jpg\n")
    ran = run("encode", trained, tmp_path / "list.txt", "--into", tmp_path / "other", "--workers", 1)
    assert ran.code == 0
    assert "1 photo left out" in ran.err
    assert "gone.jpg" in ran.err


def test_bad_input_is_one_line_and_exit_2(run, codes, trained, sample, tmp_path):
    for args in (
        [trained, tmp_path / "nowhere", "--into", tmp_path / "new"],
        [trained, sample / "train", "--into", codes],
        [trained, "nonsense://photos", "--into", tmp_path / "new"],
        [sample, sample, "--into", tmp_path / "new"],
        [trained, sample / "queries", "--into", tmp_path / "new", "--address", "moon"],
    ):
        ran = run("encode", *args)
        assert ran.code == 2, args
        assert len(ran.err.splitlines()) == 1, ran.err
    assert run("collection", "load", tmp_path / "no", codes).code == 2
    assert not (tmp_path / "new").exists()


def test_plan_prints_a_formula_beside_each_figure(run):
    ran = run("plan", "--photos", "1e9", "--bits", 64, "--qps", 500)
    assert ran.code == 0, ran.err
    assert "latency p50" in ran.out
    assert "1,000,000,000 ×" in ran.out
    ran = run("plan", "--photos", "2e6", "--node-memory", "256GB", "--replicas", 2, "--k", 100, "--markdown")
    assert ran.out.startswith("| engine | what | estimate | formula |")


def test_plan_as_json(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"]["photos"] == 1_000_000
    (local,) = [engine for engine in told["engines"] if engine["engine"] == "local"]
    assert {"memory", "disk", "nodes", "latency p50"} <= {figure["name"] for figure in local["figures"]}
    assert all(figure["formula"] for figure in local["figures"] + told["encoding"])


def test_the_command_wishes_for_what_the_library_does(run):
    told = json.loads(run("plan", "--photos", "1e6", "--json").out)
    assert told["wish"] == asdict(Wish(photos=1_000_000))


def test_nonsense_is_one_line_and_exit_2(run):
    for args in (
        *(["--photos", photos] for photos in ("0", "nan", "inf", "1e400", "-5", "1e300", "many")),
        *(["--photos", "1e6", "--node-memory", size] for size in ("much", "64", "nan", "-1GB")),
    ):
        ran = run("plan", *args)
        assert ran.code == 2
        assert len(ran.err.strip().splitlines()) == 1, ran.err


@pytest.mark.parametrize("more", [(), ("--no-labels",), ("--labels-from", "keywords")])
def test_folders_that_may_not_be_read_are_named(run, trained, sample, tmp_path, monkeypatch, more):
    for name in ("a", "b", "c", "d", "e"):
        shutil.copytree(sample / "queries", tmp_path / "photos" / name)
    scan = os.scandir

    def refuse(path):  # root may read all
        if str(path).endswith(("/b", "/c", "/d", "/e")):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    ran = run("index", trained, tmp_path / "photos", "--into", tmp_path / "new", *more)
    assert (ran.code, ran.out) == (0, f"{tmp_path}/new: 12 photos (12 added)\n"), ran.err
    (line,) = [line for line in ran.err.splitlines() if "read" in line]
    assert line == f"4 folders left out, unreadable: {', '.join(f'{tmp_path}/photos/{x}' for x in 'bcd')} …"
