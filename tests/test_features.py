"""The cache of features: computed once, found by content, never lost, never mixed up."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hyphash.datasets import Split
from hyphash.encoder import BATCH
from hyphash.errors import StorageError
from hyphash.features import FeatureCache, compute_features, default_cache, encode_cached, looks_of
from hyphash.photos import PhotoFiles


def split_of(paths, root=None):
    root = root or paths[0].parent
    names = [str(path.relative_to(root)) for path in paths]
    return Split(PhotoFiles(names, root), np.arange(len(paths)), np.ones((len(paths), 3), np.uint8))


@pytest.fixture
def hasher(tiny_hasher):
    return tiny_hasher()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def counted(hasher):
    """How many photos have gone through the backbone, the grey one that shows the shape left out."""
    seen = []

    def count(module, inputs):
        if not torch.equal(inputs[0], inputs[0][:, :, :1, :1].expand_as(inputs[0])):
            seen.append(len(inputs[0]))

    hasher.network.backbone.body.register_forward_pre_hook(count)
    return lambda: sum(seen)


def test_features_are_what_the_head_sees(hasher, photo_files, cache):
    paths = photo_files(5)
    features = compute_features(hasher, split_of(paths), cache=cache)
    assert features.values.shape == (5, 96)
    assert features.values.dtype == np.float16
    assert_array_equal(features.rows, range(5))
    outputs = hasher.network.head.eval()(torch.from_numpy(features.values).float())
    assert_allclose(outputs.detach().numpy(), hasher.outputs(paths), rtol=0.01, atol=0.01)


def test_maps_are_kept_for_heads_that_look_at_them(tiny_hasher, photo_files, cache):
    features = compute_features(tiny_hasher(on_map=True, size=64), split_of(photo_files(2)), cache=cache)
    assert features.values.shape == (2, 96, 2, 2)


def test_encoding_by_way_of_the_cache_gives_the_same_outputs(hasher, photo_files, cache):
    paths = photo_files(5)
    paths[1].write_bytes(b"")
    photos = split_of(paths)
    cached, direct = encode_cached(hasher, photos, cache=cache), hasher.encode_photos(photos)
    assert_allclose(cached.values, direct.values, rtol=0.01, atol=0.01)
    assert_array_equal(cached.rows, direct.rows)
    assert cached.problems == direct.problems


def test_encoding_nothing_gives_nothing(hasher, cache):
    encoded = encode_cached(hasher, PhotoFiles([]), cache=cache)
    assert encoded.values.shape == (0, 12)


def test_a_second_time_no_photo_goes_through_the_backbone(hasher, photo_files, cache, counted):
    photos = split_of(photo_files(5))
    first = compute_features(hasher, photos, cache=cache)
    assert counted() == 5
    second = compute_features(hasher, photos, cache=cache)
    assert counted() == 5
    assert_array_equal(second.values, first.values)
    assert_array_equal(second.rows, first.rows)


def test_a_second_time_no_file_is_even_read(hasher, photo_files, cache, monkeypatch):
    photos = split_of(photo_files(3))
    compute_features(hasher, photos, cache=cache)
    monkeypatch.setattr(PhotoFiles, "read", lambda *_: pytest.fail("read again"))
    assert len(compute_features(hasher, photos, cache=cache).rows) == 3


def test_photos_are_known_by_their_content_not_by_their_path(hasher, photo_files, cache, counted):
    paths = photo_files(4)
    first = compute_features(hasher, split_of(paths), cache=cache)
    moved = [path.with_name(f"moved-{path.name}") for path in paths]
    for old, new in zip(paths, moved, strict=True):
        old.rename(new)
    second = compute_features(hasher, split_of(moved[::-1]), cache=cache)
    assert counted() == 4
    assert_array_equal(second.values, first.values[::-1])


def test_a_changed_photo_is_computed_anew(hasher, photo_files, photo, cache, counted):
    paths = photo_files(3)
    first = compute_features(hasher, split_of(paths), cache=cache)
    paths[1].write_bytes(photo(99))
    second = compute_features(hasher, split_of(paths), cache=cache)
    assert counted() == 4
    assert_array_equal(second.values[[0, 2]], first.values[[0, 2]])
    assert (second.values[1] != first.values[1]).any()


def test_the_same_relative_path_elsewhere_is_another_file(hasher, photo, cache, tmp_path, monkeypatch):
    """Two datasets with files of the same name, length and time, as archives unpack them."""
    values = []
    for folder, colour in (("a", (0, 0, 0)), ("b", (99, 0, 0))):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        content = photo(0, size=8, colour=colour, kind="BMP")
        Path("x.bmp").write_bytes(content)
        _set_time("x.bmp")
        values.append(compute_features(hasher, split_of([Path("x.bmp")], Path()), cache=cache).values)
    assert (values[0] != values[1]).any()


def _set_time(path):
    import os

    os.utime(path, (1e9, 1e9))


def test_the_same_photo_twice_is_two_rows(hasher, photo_files, cache):
    paths = photo_files(2)
    features = compute_features(hasher, PhotoFiles([paths[0], paths[1], paths[0]]), cache=cache)
    assert_array_equal(features.values[0], features.values[2])
    assert len(features.rows) == 3


def test_a_name_that_is_not_utf8_does_not_matter(hasher, photo, cache, tmp_path):
    path = Path(str(tmp_path / "photo-") + "\udcff.png")
    path.write_bytes(photo(0))
    photos = split_of([path], tmp_path)
    assert len(compute_features(hasher, photos, cache=cache).rows) == 1
    assert len(compute_features(hasher, photos, cache=cache).rows) == 1


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"size": 40}, {"on_map": True}, {"backbone": "timm:test_efficientnet"}, {"mirror": True}]
)
def test_another_backbone_or_size_has_another_file(tiny_hasher, photo_files, cache, change):
    photos = split_of(photo_files(2))
    for hasher in (tiny_hasher(), tiny_hasher(**change)):
        compute_features(hasher, photos, cache=cache)
    assert len(list(cache.glob("*.sqlite"))) == 2


def test_another_normalisation_has_another_file(hasher, photo_files, cache):
    photos = split_of(photo_files(2))
    first = compute_features(hasher, photos, cache=cache)
    hasher.encoder.preprocessing = replace(hasher.encoder.preprocessing, mean=(0.1, 0.2, 0.3))
    assert (compute_features(hasher, photos, cache=cache).values != first.values).any()
    assert len(list(cache.glob("*.sqlite"))) == 2


def test_another_head_shares_the_file(tiny_hasher, photo_files, cache):
    photos = split_of(photo_files(2))
    for settings in ({}, {"bits": 48, "hidden": 16}, {"classes": ("a", "b")}):
        hasher = tiny_hasher(backbone="timm:test_resnet", **settings)
        hasher.network.backbone.load_state_dict(tiny_hasher().network.backbone.state_dict())
        compute_features(hasher, photos, cache=cache)
    assert len(list(cache.glob("*.sqlite"))) == 1


def test_a_size_behind_the_name_is_that_size(tiny_hasher, photo_files, cache):
    photos = split_of(photo_files(2))
    named = compute_features(tiny_hasher(backbone="timm:test_resnet@40"), photos, cache=cache)
    assert_array_equal(compute_features(tiny_hasher(size=40), photos, cache=cache).values, named.values)
    assert len(list(cache.glob("*.sqlite"))) == 1


def test_one_backbone_at_two_sizes_gives_the_features_of_both(tiny_hasher, photo_files, cache):
    both = tiny_hasher(backbone="timm:test_resnet@32+timm:test_resnet@40", mirror=True)
    photos = split_of(photo_files(3))
    found = compute_features(both, photos, cache=cache).values
    assert found.shape == (3, 96 + 96)
    for part, size, values in zip(both.network.backbone.parts, (32, 40), np.split(found, 2, axis=1), strict=True):
        alone = tiny_hasher(size=size, mirror=True)
        alone.network.backbone.load_state_dict(part.state_dict())
        assert_array_equal(compute_features(alone, photos, cache=cache / "elsewhere").values, values)
    assert_allclose(encode_cached(both, photos, cache=cache).values, both.outputs(photos), rtol=0.01, atol=0.01)


def test_the_digest_tells_weights_apart(tiny_hasher):
    hasher = tiny_hasher()
    before = hasher.on_torch().backbone_digest()
    assert before == tiny_hasher().on_torch().backbone_digest()
    with torch.no_grad():
        next(hasher.network.backbone.parameters()).view(-1)[0] += 1e-3
    assert hasher.on_torch().backbone_digest() != before


def test_weights_are_hashed_once_however_many_rounds_read_features(hasher, photo_files, cache, monkeypatch):
    from hyphash import encoder

    hashed, digest = [], encoder.digest
    monkeypatch.setattr(encoder, "digest", lambda *args: hashed.append(args) or digest(*args))
    photos = split_of(photo_files(6))
    for start in range(0, 6, 2):  # as ranks take turns
        compute_features(hasher, photos.take(slice(start, start + 2)), cache=cache)
    compute_features(hasher, photos, cache=cache)
    assert len(hashed) == 1
    hasher.network.load_state_dict(hasher.network.state_dict())  # weights that are loaded anew might be others
    compute_features(hasher, photos, cache=cache)
    assert len(hashed) == 2


def test_stopping_keeps_what_was_done(hasher, photo_files, photo, cache, counted):
    paths = photo_files(2 * BATCH + 5)
    assert compute_features(hasher, split_of(paths), cache=cache, stop=lambda: counted() >= BATCH) is None
    assert counted() == BATCH
    features = compute_features(hasher, split_of(paths), cache=cache)
    assert counted() == len(paths)
    assert len(features.rows) == len(paths)


def test_an_exception_in_the_middle_keeps_what_was_done(hasher, photo_files, cache, counted):
    paths = photo_files(BATCH + 5)

    def progress(done, of):
        if done >= BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_features(hasher, split_of(paths), cache=cache, progress=progress)
    compute_features(hasher, split_of(paths), cache=cache)
    assert counted() == len(paths)


def test_progress_counts_every_photo(hasher, photo_files, cache):
    paths, seen = photo_files(BATCH + 5), []
    paths[3].unlink()
    compute_features(hasher, split_of(paths), cache=cache, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, BATCH + 5), (BATCH + 1, BATCH + 5), (BATCH + 5, BATCH + 5)]
    seen.clear()
    compute_features(hasher, split_of(paths), cache=cache, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(BATCH + 5, BATCH + 5)]


def test_unreadable_photos_are_reported_every_time(hasher, photo_files, cache):
    paths = photo_files(6)
    paths[1].write_bytes(b"")
    paths[3].write_bytes(paths[3].read_bytes()[:-50])
    paths[4].unlink()
    for _ in range(2):
        features = compute_features(hasher, split_of(paths), cache=cache)
        assert_array_equal(features.rows, [0, 2, 5])
        assert len(features.values) == 3
        assert sorted(problem.name for problem in features.problems) == ["001.png", "003.png", "004.png"]
        assert all(problem.reason for problem in features.problems)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from hyphash.features import FeatureCache
from hyphash.photos import PhotoFiles

photos = PhotoFiles(sorted(Path(sys.argv[1]).iterdir()))
for round in range(30):
    with FeatureCache(Path(sys.argv[2]) / "x-digest.sqlite") as store:
        keys = list(store.keys(photos)[0].values())
        store.put({key: np.frombuffer(key, np.float16) for key in keys})
        assert store.known((8,)) >= set(keys)
        assert store.get(keys, (8,)).tobytes() == b"".join(keys)
print("done", "torch" in sys.modules)
"""


def test_processes_at_once_do_not_disturb_each_other(photo_files, cache):
    folder = photo_files(60)[0].parent
    command = [sys.executable, "-c", WRITER, folder, cache]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=100)[0].strip() for process in running]
    assert outputs == ["done False"] * 3
    assert [process.returncode for process in running] == [0, 0, 0]


def test_caches_opened_in_the_same_moment_all_work(hasher, photo_files, cache):
    from concurrent.futures import ThreadPoolExecutor

    photos = split_of(photo_files(3))

    def keys(_):
        with FeatureCache(cache / looks_of(hasher)[0].file) as store:
            return store.keys(photos)[0]

    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(keys, range(16)))
    assert all(other == found[0] for other in found)


def test_a_value_that_was_cut_is_computed_anew(hasher, photo_files, cache, counted):
    photos = split_of(photo_files(3))
    first = compute_features(hasher, photos, cache=cache)
    (file,) = cache.glob("*.sqlite")
    with sqlite3.connect(file) as db:
        db.execute("UPDATE features SET value = x'00' WHERE key = (SELECT min(key) FROM features)")
    db.close()
    assert_array_equal(compute_features(hasher, photos, cache=cache).values, first.values)
    assert counted() == 4


def test_a_cache_that_is_no_database_is_named(hasher, photo_files, cache):
    photos = split_of(photo_files(2))
    compute_features(hasher, photos, cache=cache)
    (file,) = cache.glob("*.sqlite")
    file.write_bytes(b"something else entirely" * 400)
    with pytest.raises(StorageError, match=rf"{file.name}: features cannot be kept there .*delete that file"):
        compute_features(hasher, photos, cache=cache)


def test_a_file_in_the_place_of_the_folder_is_refused(hasher, photo_files, cache):
    cache.write_text("a file")
    with pytest.raises(StorageError, match="another folder with --cache"):
        compute_features(hasher, split_of(photo_files(1)), cache=cache)


def test_a_full_disk_is_said_and_what_was_there_stays(hasher, photo_files, cache, counted, monkeypatch):
    """SQLite itself runs out of pages: the error comes from its commit, as on a real full disk."""
    paths = photo_files(40)
    compute_features(hasher, split_of(paths[:20]), cache=cache)
    enter = FeatureCache.__enter__

    def limited(self):
        enter(self)
        self._db.execute("PRAGMA max_page_count = 1")  # no page beyond those it has
        return self

    with monkeypatch.context() as patch:
        patch.setattr(FeatureCache, "__enter__", limited)
        with pytest.raises(StorageError, match=r"database or disk is full\); make room"):
            compute_features(hasher, split_of(paths), cache=cache)
    before = counted()
    assert len(compute_features(hasher, split_of(paths), cache=cache).rows) == 40
    assert counted() - before == 20


def test_the_place_of_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HYPHASH_CACHE", "/somewhere")
    assert default_cache() == Path("/somewhere")
    monkeypatch.delenv("HYPHASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache() == Path("/caches/hyphash")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert default_cache() == Path("/home/user/.cache/hyphash")


# ── several backbones ────────────────────────────────────────────────────────────────────────────────────

RESNET, EFFICIENTNET = "timm:test_resnet", "timm:test_efficientnet"


@pytest.fixture
def several(tiny_hasher):
    """Hashers of a resnet, of an efficientnet, and of both, with the same weights."""
    alone = tiny_hasher(backbone=RESNET), tiny_hasher(backbone=EFFICIENTNET)
    both = tiny_hasher(backbone=f"{RESNET}+{EFFICIENTNET}")
    for one, part in zip(alone, both.network.backbone.parts, strict=True):
        part.load_state_dict(one.network.backbone.state_dict())
    return *alone, both


def test_features_of_several_backbones_are_those_of_each(several, photo_files, cache):
    resnet, efficientnet, both = several
    photos = split_of(photo_files(5))
    together = compute_features(both, photos, cache=cache)
    assert together.values.shape == (5, 96 + 256)
    for one, values in ((resnet, together.values[:, :96]), (efficientnet, together.values[:, 96:])):
        assert_array_equal(compute_features(one, photos, cache=cache / "elsewhere").values, values)
    assert_allclose(encode_cached(both, photos, cache=cache).values, both.outputs(photos), rtol=0.01, atol=0.01)


def test_each_of_several_backbones_is_cached_on_its_own(several, photo_files, cache, monkeypatch):
    resnet, efficientnet, both = several
    paths = photo_files(6)
    compute_features(resnet, split_of(paths[:4]), cache=cache)
    compute_features(efficientnet, split_of(paths[2:5]), cache=cache)
    seen = {name: [] for name in ("resnet", "efficientnet")}
    for name, part in zip(seen, both.on_torch().parts, strict=True):
        assert part.feature_shape
        part.network.backbone.register_forward_pre_hook(lambda _, inputs, name=name: seen[name].append(len(inputs[0])))
    found = compute_features(both, split_of(paths), cache=cache)
    assert {name: sum(counts) for name, counts in seen.items()} == {"resnet": 2, "efficientnet": 3}
    assert len(list(cache.glob("*.sqlite"))) == 2
    monkeypatch.setattr("hyphash.photos.decode", lambda *_, **__: pytest.fail("decoded again"))
    for one, values in ((resnet, found.values[:, :96]), (efficientnet, found.values[:, 96:])):
        assert_array_equal(compute_features(one, split_of(paths), cache=cache).values, values)
    assert_array_equal(compute_features(both, split_of(paths), cache=cache).values, found.values)


def test_a_photo_is_decoded_once_for_all_backbones_that_lack_it(several, photo_files, cache, monkeypatch):
    from hyphash.photos import decode

    decoded, module = [], sys.modules[decode.__module__]  # not the function of the same name
    rgb = module._rgb
    monkeypatch.setattr(module, "_rgb", lambda image: decoded.append(1) or rgb(image))
    compute_features(several[2], split_of(photo_files(5)), cache=cache)
    assert len(decoded) == 5


def test_unreadable_photos_are_left_out_for_all_backbones(several, photo_files, cache):
    paths = photo_files(6)
    paths[3].write_bytes(paths[3].read_bytes()[:-50])
    features = compute_features(several[2], split_of(paths), cache=cache)
    assert_array_equal(features.rows, [0, 1, 2, 4, 5])
    assert [problem.name for problem in features.problems] == ["003.png"]


def test_a_damaged_file_is_named_among_several(several, photo_files, cache):
    photos = split_of(photo_files(2))
    compute_features(several[2], photos, cache=cache)
    (file,) = cache.glob("timm-test_resnet-*.sqlite")
    file.write_bytes(b"something else entirely" * 400)
    with pytest.raises(StorageError, match=rf"{file.name}: features cannot be kept there"):
        compute_features(several[2], photos, cache=cache)


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────


def test_features_of_views_are_those_of_photos_that_look_so(several, photo_files, cache):
    """A photo that was mirrored before has the features of the mirror image; of all backbones."""
    from PIL import Image, ImageOps

    both, paths = several[2], photo_files(4)
    views = compute_features(both, split_of(paths), cache=cache, views=3)
    assert views.values.shape == (4, 3, 96 + 256)
    assert_array_equal(views.values[:, 0], compute_features(both, split_of(paths), cache=cache).values)
    for path in paths:
        ImageOps.mirror(Image.open(path)).save(path)
    mirrored = compute_features(both, split_of(paths), cache=cache / "elsewhere").values
    assert_allclose(views.values[:, 1], mirrored, rtol=0.01, atol=0.01)
    assert (views.values[:, 2] != views.values[:, 1]).any(1).all()


def test_each_view_is_cached_on_its_own(hasher, photo_files, cache, counted):
    photos = split_of(photo_files(5))
    first = compute_features(hasher, photos, cache=cache)
    two = compute_features(hasher, photos, cache=cache, views=2)
    assert counted() == 10  # the mirror images alone came on top
    assert_array_equal(two.values[:, 0], first.values)
    four = compute_features(hasher, photos, cache=cache, views=4)
    assert counted() == 20
    assert_array_equal(four.values[:, :2], two.values)
    assert_array_equal(compute_features(hasher, photos, cache=cache, views=4).values, four.values)
    assert counted() == 20
    assert [len(list(cache.glob(f"*-view{view}.sqlite"))) for view in range(5)] == [0, 1, 1, 1, 0]


def test_views_of_feature_maps_keep_their_places(tiny_hasher, photo_files, cache):
    hasher = tiny_hasher(on_map=True, size=64)
    assert compute_features(hasher, split_of(photo_files(2)), cache=cache, views=2).values.shape == (2, 2, 96, 2, 2)
