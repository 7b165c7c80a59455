"""What every engine must do, whatever is behind it. An engine joins by its name in the registry.

One that needs a server is started by a fixture that puts its address into URLS.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.engines import Choice, Engine, Photo, engine_for, engines
from hyphash.errors import CodesError, CollectionError, ConfigError, HyphashError, OtherHasherError

BITS = 20
ME = "0123456789abcdef"
URLS: dict[str, Callable[[pytest.FixtureRequest], str]] = {  # engine → address, for those that have one
    "postgresql": lambda request: request.getfixturevalue("postgres_server").url(),
    "postgresql partitioned": lambda request: request.getfixturevalue("postgres_server").url(partitions=3),
    "postgresql-approximate": lambda request: request.getfixturevalue("postgres_server").url(
        scheme="postgresql-approximate"
    ),
    "milvus": lambda request: request.getfixturevalue("milvus_server").ready("milvus", BITS),
    "milvus-approximate": lambda request: request.getfixturevalue("milvus_server").ready(
        "milvus-approximate", BITS, lists=8, probes=8
    ),
}


@pytest.fixture(params=sorted({*engines.names(), *URLS}))
def url(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return URLS[name](request) if name in URLS else name


@pytest.fixture
def engine(url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = engine_for(url).create(tmp_path, url, fingerprint=ME, bits=BITS)
    yield engine
    engine.close()


def random_codes(count: int, bits: int = BITS, *, seed: int = 0, distinct: int | None = None) -> Codes:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2, (distinct or count, bits))
    return Codes.from_bits(table[rng.integers(0, len(table), count)] if distinct else table)


def photos_with(
    codes: Codes, *, labels: Callable[[int], tuple[str, ...]] = lambda _: (), start: int = 0
) -> list[Photo]:
    return [
        Photo(
            path=f"/photos/{start + i:06}.jpg",
            content=hashlib.sha256(f"{start + i}".encode()).hexdigest(),
            size=1000 + i,
            modified=i + 1,
            width=640,
            height=480,
            look=i.to_bytes(8, "little"),
            code=row.tobytes(),
            labels=labels(i),
            given=labels(i),
        )
        for i, row in enumerate(codes.packed)
    ]


def fill(engine: Engine, count: int, *, distinct: int | None = None, seed: int = 0) -> tuple[list[int], Codes]:
    """Photos whose labels say whether their number is divisible by 2 and by 3."""
    codes = random_codes(count, seed=seed, distinct=distinct)
    labels = lambda i: tuple(word for word, n in (("three", 3), ("two", 2)) if i % n == 0)  # noqa: E731
    return engine.upsert(photos_with(codes, labels=labels), fingerprint=ME), codes


def test_what_goes_in_comes_out(engine: Engine) -> None:
    photos = photos_with(random_codes(5), labels=lambda i: ("b", "a")[: i % 3])
    ids = engine.upsert(photos, fingerprint=ME)
    assert len(set(ids)) == 5
    assert min(ids) > 0
    for id, before, after in zip(ids, photos, engine.get(ids), strict=True):
        assert after.added == after.changed != ""
        expected = replace(before, id=id, labels=tuple(sorted(before.labels)), given=tuple(sorted(before.labels)))
        assert replace(after, added="", changed="") == expected
    assert engine.count() == 5
    assert engine.labels() == {"b": 3, "a": 1}


def test_captions_say_the_same_as_photos(engine: Engine) -> None:
    photos = photos_with(random_codes(4), labels=lambda i: ('say "b\\"', "é,'🐕'", "[a]")[: i % 4])
    ids = engine.upsert(photos, fingerprint=ME)
    engine.relabel(ids[2], lambda photo: replace(photo, refused=("b",)))
    engine.remove([ids[1]])
    expected = {photo.id: (photo.path, photo.labels) for photo in engine.get(ids)}
    assert engine.captions([ids[3], *ids, max(ids) + 1]) == expected
    assert list(expected) == [ids[0], *ids[2:]]
    assert engine.captions([]) == {}


def test_state_counts_commits_and_names_the_hasher(engine: Engine) -> None:
    before = engine.state()
    fill(engine, 3)
    after = engine.state()
    assert (before.fingerprint, before.bits) == (after.fingerprint, after.bits) == (ME, BITS)
    assert after.commit > before.commit


def test_it_is_all_there_when_opened_again(engine: Engine, url: str, tmp_path: Path) -> None:
    ids, _ = fill(engine, 7)
    photos = engine.get(ids)
    engine.close()
    again = type(engine).open(tmp_path, url)
    assert again.get(ids) == photos
    assert again.state().fingerprint == ME
    again.close()


def test_a_path_is_one_photo_and_keeps_its_id(engine: Engine) -> None:
    ids, codes = fill(engine, 4)
    changed = replace(photos_with(codes)[2], content="ff" * 32, code=codes.packed[0].tobytes())
    assert engine.upsert([changed], fingerprint=ME) == [ids[2]]
    assert engine.count() == 4
    after = engine.get([ids[2]])[0]
    assert (after.content, after.code) == (changed.content, changed.code)
    found = engine.search(codes[0], 2, fingerprint=ME)
    assert found.ids.tolist() == [ids[0], ids[2]]
    assert found.distances.tolist() == [0, 0]


def test_an_id_under_another_path_has_moved(engine: Engine) -> None:
    ids, _ = fill(engine, 3)
    photo = engine.get([ids[1]])[0]
    assert engine.upsert([replace(photo, path="/elsewhere.jpg")], fingerprint=ME) == [ids[1]]
    assert [p.path for p in engine.find(contents=[photo.content])] == ["/elsewhere.jpg"]
    assert engine.find(paths=[photo.path]) == []
    assert engine.count() == 3


def test_the_same_path_twice_in_one_call_is_one_photo(engine: Engine) -> None:
    photo = photos_with(random_codes(1))[0]
    one, two = engine.upsert([photo, replace(photo, size=7)], fingerprint=ME)
    assert one == two
    assert engine.count() == 1
    assert engine.get([one])[0].size == 7


def test_ids_are_never_used_again(engine: Engine) -> None:
    ids, codes = fill(engine, 3)
    assert engine.remove([ids[-1]]) == 1
    new = engine.upsert(photos_with(codes, start=100), fingerprint=ME)
    assert not set(new) & set(ids)


def test_an_id_of_old_is_given_back_to_a_photo_that_names_it(engine: Engine) -> None:
    photo = replace(photos_with(random_codes(1))[0], id=41)
    assert engine.upsert([photo], fingerprint=ME) == [41]
    (other,) = engine.upsert([replace(photo, id=0, path="/other.jpg")], fingerprint=ME)
    assert other > 41


def test_removed_photos_are_gone_everywhere(engine: Engine) -> None:
    ids, codes = fill(engine, 12)
    assert engine.remove([ids[0], ids[6], 10**9]) == 2
    assert engine.remove([ids[0]]) == 0
    assert engine.get(ids) == engine.get([id for id in ids if id not in (ids[0], ids[6])])
    assert engine.labels() == {"two": 4, "three": 2}
    assert ids[0] not in engine.search(codes[0], 12, fingerprint=ME).ids
    assert engine.search(codes[0], 12, fingerprint=ME).total == 10
    assert engine.count(carrying=["two"]) == 4


@pytest.mark.parametrize("distinct", [None, 9])
def test_ranking_is_by_distance_then_id(engine: Engine, distinct: int | None) -> None:
    ids, codes = fill(engine, 300, distinct=distinct)
    for query in range(3):
        expected = sorted(zip(codes[query].distances(codes)[0].tolist(), ids, strict=True))
        found = engine.search(codes[query], 300, fingerprint=ME)
        assert list(zip(found.distances.tolist(), found.ids.tolist(), strict=True)) == expected
        assert found.total == 300


def test_ranking_stays_right_while_photos_come_change_and_go(engine: Engine) -> None:
    """The naive twin is a dictionary; every kind of change happens between two searches."""
    ids, codes = fill(engine, 50)
    truth = {id: row.tobytes() for id, row in zip(ids, codes.packed, strict=True)}
    rng = np.random.default_rng(1)
    for round in range(12):
        new = photos_with(random_codes(4, seed=round + 10), start=1000 + 4 * round)
        truth |= {id: photo.code for id, photo in zip(engine.upsert(new, fingerprint=ME), new, strict=True)}
        changed = [
            replace(photo, code=random_codes(1, seed=round + 50).packed[0].tobytes())
            for photo in engine.get(rng.choice(list(truth), 3, replace=False).tolist())
        ]
        truth |= {id: photo.code for id, photo in zip(engine.upsert(changed, fingerprint=ME), changed, strict=True)}
        gone = rng.choice(list(truth), 2, replace=False).tolist()
        assert engine.remove(gone) == 2
        for id in gone:
            del truth[id]
        if round % 4 == 3:
            engine.settle()
        query = random_codes(1, seed=round + 100)
        database = Codes(np.frombuffer(b"".join(truth.values()), np.uint8).reshape(len(truth), -1), BITS)
        expected = sorted(zip(query.distances(database)[0].tolist(), truth, strict=True))[:20]
        found = engine.search(query, 20, fingerprint=ME)
        assert list(zip(found.distances.tolist(), found.ids.tolist(), strict=True)) == expected
    scanned = {int(id): row.tobytes() for ids, part in engine.scan() for id, row in zip(ids, part.packed, strict=True)}
    assert scanned == truth


def test_pages_put_together_are_the_whole_ranking(engine: Engine) -> None:
    _, codes = fill(engine, 100, distinct=7)
    whole = engine.search(codes[5], 100, fingerprint=ME)
    pages = [engine.search(codes[5], 30, offset=offset, fingerprint=ME) for offset in range(0, 150, 30)]
    assert np.concatenate([page.ids for page in pages]).tolist() == whole.ids.tolist()
    assert [len(page.ids) for page in pages] == [30, 30, 30, 10, 0]
    assert {page.total for page in pages} == {100}


def test_filters_leave_the_order_alone(engine: Engine) -> None:
    _, codes = fill(engine, 60, distinct=8)
    whole = engine.search(codes[1], 60, fingerprint=ME)
    labels = {photo.id: photo.labels for photo in engine.page(0, 60)}
    for carrying in (("two",), ("two", "three"), ("two", "nobody")):
        found = engine.search(codes[1], 60, choice=Choice(carrying=carrying), fingerprint=ME)
        expected = [id for id in whole.ids.tolist() if set(carrying) <= set(labels[id])]
        assert found.ids.tolist() == expected
        assert found.total == len(expected) == engine.count(carrying=carrying)
    tagged = engine.search(codes[1], 60, choice=Choice(tagged=True), fingerprint=ME)
    assert tagged.ids.tolist() == [id for id in whole.ids.tolist() if labels[id]]
    without = engine.search(codes[1], 60, choice=Choice(excluded=(int(whole.ids[0]),)), fingerprint=ME)
    assert without.ids.tolist() == whole.ids.tolist()[1:]
    near = engine.search(codes[1], 60, choice=Choice(radius=7), fingerprint=ME)
    assert near.ids.tolist() == whole.ids[whole.distances <= 7].tolist()
    assert near.total == np.count_nonzero(whole.distances <= 7)


def test_tables_rank_by_their_sums(engine: Engine) -> None:
    ids, codes = fill(engine, 80, distinct=20)
    outputs = np.random.default_rng(3).normal(size=BITS).astype(np.float32)
    found = engine.search(
        Codes.from_outputs(outputs[None]), 80, tables=hamming.byte_tables(outputs[None])[0], fingerprint=ME
    )
    sums = -(codes.signs().astype(np.float32) @ outputs)
    assert found.scores == pytest.approx(np.sort(sums), abs=1e-4)
    distance = dict(zip(ids, Codes.from_outputs(outputs[None]).distances(codes)[0].tolist(), strict=True))
    assert found.distances.tolist() == [distance[id] for id in found.ids.tolist()]


def test_codes_of_another_hasher_are_refused(engine: Engine) -> None:
    photos = photos_with(random_codes(2))
    with pytest.raises(OtherHasherError, match=r"made by the hasher 0123.*reindex"):
        engine.upsert(photos, fingerprint="another")
    with pytest.raises(CodesError, match="bytes"):
        engine.upsert([photos[0], replace(photos[1], code=b"1")], fingerprint=ME)
    with pytest.raises(CodesError, match="bits after the last"):
        engine.upsert([replace(photos[1], code=b"\xff\xff\xff")], fingerprint=ME)
    assert engine.count() == 0
    with pytest.raises(OtherHasherError):
        engine.search(random_codes(1), 1, fingerprint="another")


def test_labels_change_by_what_the_source_changes(engine: Engine) -> None:
    photo = replace(photos_with(random_codes(1))[0], labels=("cat", "dog"), given=("cat", "dog"))
    (id,) = engine.upsert([photo], fingerprint=ME)
    engine.relabel(id, lambda p: replace(p, labels=("dog", "mine")))  # a person took cat away and added mine
    engine.upsert([photo], fingerprint=ME)
    assert engine.get([id])[0].labels == ("dog", "mine")
    engine.upsert([replace(photo, given=None)], fingerprint=ME)
    assert engine.get([id])[0].labels == ("dog", "mine")
    engine.upsert([replace(photo, given=("bird", "cat"))], fingerprint=ME)  # the source: no dog any more, but a bird
    assert engine.get([id])[0].labels == ("bird", "mine")
    assert engine.labels() == {"bird": 1, "mine": 1}
    assert engine.count(carrying=["dog"]) == 0


def test_relabel_tells_what_is_there_and_knows_no_strangers(engine: Engine) -> None:
    ids, _ = fill(engine, 2)
    after = engine.relabel(ids[0], lambda p: replace(p, labels=(*p.labels, "new"), refused=("no",)))
    assert after == engine.get([ids[0]])[0]
    assert after is not None
    assert after.labels == ("new", "three", "two")
    assert after.refused == ("no",)
    assert engine.relabel(10**9, lambda p: p) is None
    assert engine.count(carrying=["new", "two"]) == 1


def test_texts_of_any_spelling_are_only_texts(engine: Engine) -> None:
    texts = [
        "it's \"so\" `called`; DROP TABLE photos; --", "a\\b\\\\c\\'", "🐈\u200d⬛ 雪 é", "%s %(x)s {} {0}",
        " a or b and c ", "[a,b] {c}", "\n\r\t\x01\x7f\x85\u2028", "",
    ]  # fmt: skip
    photos = [
        replace(photo, path=f"/{text}", labels=(text,), given=(text, "x"), refused=(f"{text}!",))
        for photo, text in zip(photos_with(random_codes(len(texts))), texts, strict=True)
    ]
    ids = engine.upsert(photos, fingerprint=ME)
    assert set(engine.labels()) == set(texts)
    for id, photo, text in zip(ids, photos, texts, strict=True):
        (found,) = engine.find(paths=[photo.path])
        assert (found.id, found.path, found.labels, found.refused) == (id, photo.path, (text,), photo.refused)
        assert set(found.given or ()) == {text, "x"}
        choice = Choice(carrying=(text,))
        assert engine.search(random_codes(1), 9, choice=choice, fingerprint=ME).ids.tolist() == [id]
        assert [other.id for other in engine.page(0, 9, carrying=[text])] == [id]
    assert engine.verify() == []


@pytest.mark.parametrize("text", ["a\0b", "雪" * 10_000], ids=["NUL", "long"])
def test_texts_are_kept_whole_or_refused_with_their_batch(engine: Engine, text: str) -> None:
    good, *odd = photos_with(random_codes(4))
    engine.upsert([good], fingerprint=ME)
    changes: list[dict[str, Any]] = [{"path": text}, {"labels": (text,)}, {"refused": (text,)}]
    kept = 0
    for photo in (replace(photo, **change) for photo, change in zip(odd, changes, strict=True)):
        beside = replace(good, path=f"/beside/{kept}")
        try:
            ids = engine.upsert([photo, beside], fingerprint=ME)
        except HyphashError:
            assert engine.find(paths=[beside.path]) == []
        else:
            (found,) = engine.get(ids[:1])
            assert (found.path == photo.path, found.labels == photo.labels, found.refused == photo.refused) == (
                True,
            ) * 3
            kept += 2
    assert engine.upsert([good], fingerprint=ME) == [1]
    assert engine.count() == 1 + kept
    assert engine.verify() == []


def test_names_that_are_no_text_are_refused_by_all_alike(engine: Engine) -> None:
    """File systems allow names that are not UTF-8; Python holds them with half a surrogate."""
    odd, (good, photo) = "a\udcff", photos_with(random_codes(2))
    engine.upsert([good], fingerprint=ME)
    for change in ({"path": odd}, {"labels": (odd,)}, {"given": (odd,)}, {"refused": (odd,)}):
        changed: Photo = replace(photo, **change)  # type: ignore[arg-type]
        with pytest.raises(CollectionError, match=r"udcff.*is no proper text \(UTF-8\)"):
            engine.upsert([replace(photo, path="/beside"), changed], fingerprint=ME)
    with pytest.raises(CollectionError, match="no proper text"):
        engine.relabel(1, lambda photo: replace(photo, labels=(odd,)))
    questions: list[Callable[[], object]] = [
        lambda: engine.find(paths=[odd]),
        lambda: engine.count(carrying=[odd]),
        lambda: engine.page(0, 9, carrying=[odd]),
        lambda: engine.search(random_codes(1), 9, choice=Choice(carrying=(odd,)), fingerprint=ME),
    ]
    for question in questions:
        with pytest.raises(CollectionError, match="no proper text"):
            question()
    assert [found.path for found in engine.page(0, 9)] == [good.path]
    assert engine.verify() == []


def test_lists_go_by_id(engine: Engine) -> None:
    ids, _ = fill(engine, 13)
    assert [photo.id for photo in engine.page(0, 5)] == ids[:5]
    assert [photo.id for photo in engine.page(10, 5)] == ids[10:]
    assert [photo.id for photo in engine.page(1, 2, carrying=["three"])] == [ids[3], ids[6]]
    untagged = [id for i, id in enumerate(ids) if i % 2 and i % 3]
    assert [photo.id for photo in engine.page(0, 99, untagged=True)] == untagged
    assert engine.count(untagged=True) == len(untagged)
    assert [photo.id for photo in engine.page_after(ids[3], 4)] == ids[4:8]
    assert engine.page_after(ids[-1], 4) == []


def test_looks_are_read_back(engine: Engine) -> None:
    ids, _ = fill(engine, 5)
    parts = list(engine.looks())
    assert np.concatenate([part[0] for part in parts]).tolist() == ids
    assert np.concatenate([part[1] for part in parts]).tolist() == [0, 1, 2, 3, 4]
    contents = [int.from_bytes(bytes.fromhex(photo.content)[:8], "little") for photo in engine.get(ids)]
    assert np.concatenate([part[2] for part in parts]).tolist() == contents


def test_an_empty_engine_answers(engine: Engine) -> None:
    found = engine.search(random_codes(1), 5, fingerprint=ME)
    assert (len(found.ids), found.total) == (0, 0)
    assert engine.search(random_codes(1), 5, choice=Choice(radius=3, carrying=("a",)), fingerprint=ME).total == 0
    assert engine.page(0, 10) == engine.find(paths=["x"]) == engine.get([1]) == []
    assert engine.upsert([], fingerprint=ME) == []
    assert engine.labels() == {}
    assert list(engine.looks()) == []
    assert engine.verify() == []


def coded(engine: Engine, codes: dict[int, bytes]) -> list[Photo]:
    """Photos as they are, with other codes."""
    return [replace(photo, code=codes[photo.id]) for photo in engine.get(list(codes))]


def test_moving_to_another_hasher(engine: Engine) -> None:
    ids, old = fill(engine, 10)
    new = {id: row.tobytes() for id, row in zip(ids, random_codes(10, bits=33, seed=5).packed, strict=True)}
    engine.prepare("other", 33)
    assert [photo.id for photo in engine.pending(4)] == ids[:4]
    engine.store(coded(engine, {id: new[id] for id in ids[:6]}), fingerprint="other")
    assert [photo.id for photo in engine.pending(99)] == ids[6:]
    engine.prepare("other", 33)  # interrupted and taken up again: nothing is done twice
    assert [photo.id for photo in engine.pending(99, after=ids[7])] == ids[8:]
    assert not engine.switch("other")
    assert engine.search(old[3], 1, fingerprint=ME).distances.tolist() == [0]  # the old one still answers

    late_codes = coded(engine, {id: new[id] for id in (ids[1], ids[2], *ids[6:])})
    (late,) = engine.upsert(photos_with(random_codes(1, seed=9), start=500), fingerprint=ME)  # came meanwhile
    edited = replace(engine.get([ids[2]])[0], code=old.packed[0].tobytes(), content="ab" * 32)
    engine.upsert([edited], fingerprint=ME)
    engine.remove([ids[1]])
    engine.store(late_codes, fingerprint="other")  # one of them is gone, one shows what is no longer there
    assert not engine.switch("other")
    assert [photo.id for photo in engine.pending(99)] == [ids[2], late]
    with pytest.raises(CodesError):
        engine.store(coded(engine, {late: b"12"}), fingerprint="other")
    del new[ids[1]]
    new[late] = new[ids[9]]
    engine.store(coded(engine, {id: new[id] for id in (ids[2], late)}), fingerprint="other")
    assert engine.switch("other")

    assert (engine.state().fingerprint, engine.state().bits) == ("other", 33)
    with pytest.raises(OtherHasherError):
        engine.search(old[3], 1, fingerprint=ME)
    assert {photo.id: photo.code for photo in engine.page(0, 99)} == new
    query = Codes(np.frombuffer(new[ids[4]], np.uint8)[None], 33)
    assert engine.search(query, 1, fingerprint="other").ids.tolist() == [ids[4]]
    assert engine.verify() == []
    engine.compact()
    assert {photo.id: photo.code for photo in engine.page(0, 99)} == new


def test_another_hasher_after_all(engine: Engine) -> None:
    ids, _ = fill(engine, 3)
    engine.prepare("second", 20)
    engine.store(coded(engine, {ids[0]: b"\0\0\0"}), fingerprint="second")
    engine.prepare("third", 20)  # what was stored for the second is worth nothing
    assert len(engine.pending(9)) == 3
    with pytest.raises(OtherHasherError, match="prepared for third, not for second"):
        engine.store(coded(engine, {ids[0]: b"\0\0\0"}), fingerprint="second")
    with pytest.raises(OtherHasherError, match="let one move"):
        engine.switch("second")
    engine.store(coded(engine, dict.fromkeys(ids, b"\1\1\1")), fingerprint="third")
    assert engine.switch("third")
    assert engine.state().fingerprint == "third"


def test_compact_changes_nothing_that_can_be_seen(engine: Engine) -> None:
    ids, codes = fill(engine, 40)
    engine.remove(ids[::4])
    before = engine.page(0, 99), engine.search(codes[2], 30, fingerprint=ME).ids.tolist(), engine.labels()
    engine.compact()
    assert (engine.page(0, 99), engine.search(codes[2], 30, fingerprint=ME).ids.tolist(), engine.labels()) == before
    assert engine.verify() == []


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no engine is called 'redis'"):
        engine_for("redis://localhost/1")
