"""What every searcher must do over its store. One joins by its name in the registry; SEARCHERS has its address."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import BITS, ME, OTHER, SEARCHERS, STORES, fill, photos_with, random_codes, twos_and_threes

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.errors import CodesError, CollectionError, ConfigError, HyphashError, OtherHasherError
from hyphash.labels import ENTRY, Calibration, log_sigmoid
from hyphash.searchers import (
    Filter,
    Found,
    LabelQuery,
    LabelTerm,
    Query,
    Role,
    Searcher,
    recall,
    searcher_for,
    searchers,
)
from hyphash.stores import Photo, Store, store_for


@pytest.fixture(params=sorted({*searchers.names(), *SEARCHERS}))
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The addresses of a store and of a searcher over it."""
    name: str = request.param
    store, searcher = SEARCHERS.get(name, ("sqlite", lambda _: name))
    return STORES[store](request), searcher(request)


@pytest.fixture
def store(urls: tuple[str, str], tmp_path: Path) -> Iterator[Store]:
    store = store_for(urls[0]).create(tmp_path, urls[0], fingerprint=ME, bits=BITS)
    yield store
    store.close()


@pytest.fixture
def searcher(urls: tuple[str, str], store: Store, tmp_path: Path) -> Iterator[Searcher]:
    searcher = searcher_for(urls[1]).create(tmp_path, urls[1], store)
    yield searcher
    searcher.close()


def pairs(found: Found) -> list[tuple[int, int]]:
    return list(zip(found.distances.tolist(), found.ids.tolist(), strict=True))


def naive(query: Codes, truth: dict[int, bytes]) -> list[tuple[int, int]]:
    """The ranking of codes by (distance, id)."""
    database = Codes(np.frombuffer(b"".join(truth.values()), np.uint8).reshape(len(truth), -1), query.bits)
    return sorted(zip(query.distances(database)[0].tolist(), truth, strict=True))


# ── rankings ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("distinct", [None, 9])
def test_ranking_is_by_distance_then_id(searcher: Searcher, store: Store, distinct: int | None) -> None:
    ids, codes = fill(store, 300, distinct=distinct)
    for query in range(3):
        expected = sorted(zip(codes[query].distances(codes)[0].tolist(), ids, strict=True))
        found = searcher.search(Query(codes[query], 300, fingerprint=ME))
        assert pairs(found) == expected
        assert (found.total, found.behind, found.scores) == (300, 0, None)


def test_ranking_stays_right_while_photos_come_change_and_go(searcher: Searcher, store: Store) -> None:
    """The naive twin is a dictionary; every kind of change happens between two searches."""
    ids, codes = fill(store, 50)
    truth = {id: row.tobytes() for id, row in zip(ids, codes.packed, strict=True)}
    rng = np.random.default_rng(1)
    for round in range(12):
        new = photos_with(random_codes(4, seed=round + 10), start=1000 + 4 * round)
        truth |= {id: photo.code for id, photo in zip(store.upsert(new, fingerprint=ME), new, strict=True)}
        changed = [
            replace(photo, code=random_codes(1, seed=round + 50).packed[0].tobytes())
            for photo in store.get(rng.choice(list(truth), 3, replace=False).tolist())
        ]
        truth |= {id: photo.code for id, photo in zip(store.upsert(changed, fingerprint=ME), changed, strict=True)}
        gone = rng.choice(list(truth), 2, replace=False).tolist()
        assert store.remove(gone) == 2
        for id in gone:
            del truth[id]
        if round % 4 == 3:
            searcher.tidy()
            store.tidy()
        query = random_codes(1, seed=round + 100)
        assert pairs(searcher.search(Query(query, 20, fingerprint=ME))) == naive(query, truth)[:20]
    assert searcher.position() == store.state().position
    assert searcher.verify() == []


def test_pages_put_together_are_the_whole_ranking(searcher: Searcher, store: Store) -> None:
    _, codes = fill(store, 100, distinct=7)
    whole = searcher.search(Query(codes[5], 100, fingerprint=ME))
    pages = [searcher.search(Query(codes[5], 30, offset=offset, fingerprint=ME)) for offset in range(0, 150, 30)]
    assert np.concatenate([page.ids for page in pages]).tolist() == whole.ids.tolist()
    assert [len(page.ids) for page in pages] == [30, 30, 30, 10, 0]
    assert {page.total for page in pages} == {100}


def test_filters_leave_the_order_alone(searcher: Searcher, store: Store) -> None:
    _, codes = fill(store, 60, distinct=8)
    whole = searcher.search(Query(codes[1], 60, fingerprint=ME))
    labels = {photo.id: photo.labels for photo in store.page(0, 60)}
    for carrying in (("two",), ("two", "three"), ("two", "nobody")):
        found = searcher.search(Query(codes[1], 60, only=Filter(carrying=carrying), fingerprint=ME))
        expected = [id for id in whole.ids.tolist() if set(carrying) <= set(labels[id])]
        assert found.ids.tolist() == expected
        assert found.total == len(expected) == store.count(carrying=carrying)
    tagged = searcher.search(Query(codes[1], 60, only=Filter(tagged=True), fingerprint=ME))
    assert tagged.ids.tolist() == [id for id in whole.ids.tolist() if labels[id]]
    without = searcher.search(Query(codes[1], 60, only=Filter(excluded=(int(whole.ids[0]),)), fingerprint=ME))
    assert without.ids.tolist() == whole.ids.tolist()[1:]
    near = searcher.search(Query(codes[1], 60, only=Filter(radius=7), fingerprint=ME))
    assert near.ids.tolist() == whole.ids[whole.distances <= 7].tolist()
    assert near.total == np.count_nonzero(whole.distances <= 7)


FACTS: dict[str, tuple[dict[str, str], Callable[[Photo], bool]]] = {  # filters as people write them, and naive twins
    "year": ({"taken": "1971"}, lambda p: p.facts.taken is not None and year(p.facts.taken) == 1971),
    "since": ({"taken": "1969.."}, lambda p: p.facts.taken is not None and year(p.facts.taken) >= 1969),
    "camera": ({"camera": "CANON"}, lambda p: "canon" in (p.facts.camera or "").lower()),
    "size": ({"size": "1.01kB..1.02kB"}, lambda p: 1010 <= p.facts.size <= 1020),
    "pixels": ({"size": "0.3MP.."}, lambda p: p.facts.width * p.facts.height >= 300_000),
    "folder": ({"folder": "summer/beach"}, lambda p: "/summer/beach/" in p.path),
    "type": ({"type": "png, jpg"}, lambda p: p.path.endswith((".png", ".jpeg", ".JPG"))),
    "near": ({"near": "-10,140,3000km"}, lambda p: kilometres(p, -10, 140) <= 3000),
    "beyond the date line": ({"near": "-50,-179.9,4000"}, lambda p: kilometres(p, -50, -179.9) <= 4000),
    "around a pole": ({"near": "-89,20,4000km"}, lambda p: kilometres(p, -89, 20) <= 4000),
    "everywhere": ({"near": "0,0,30000km"}, lambda p: p.facts.latitude is not None),
    "added": ({"added": "2020-01-02..2020-01-03T12:30"}, lambda p: "2020-01-02" <= p.added[:16] <= "2020-01-03T12:30"),
    "two": (
        {"taken": "1969..", "camera": "pixel"},
        lambda p: p.facts.camera == "Pixel 7" and (p.facts.taken or -(10**9)) > -31_536_000,
    ),
    "nobody": ({"camera": "Leica"}, lambda _: False),
}  # fmt: skip


def year(seconds: int) -> int:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).year


def kilometres(photo: Photo, latitude: float, longitude: float) -> float:
    """Along the earth, by the angle of two vectors."""
    if photo.facts.latitude is None or photo.facts.longitude is None:
        return np.inf
    angles = np.radians([[latitude, longitude], [photo.facts.latitude, photo.facts.longitude]]).T
    north, east = angles
    here, there = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=1)
    return float(np.arccos(np.clip(here @ there, -1, 1)) * 6371.0088)


def placed(photos: list[Photo]) -> list[Photo]:
    """Photos in several folders, of several types and days."""
    folders, endings = (
        ("/photos", "/photos/summer/beach", "/photos/summer", "/old/beach"),
        ("jpeg", "png", "JPG", "gif", "tiff"),
    )
    return [
        replace(
            photo, path=f"{folders[i % 4]}/{Path(photo.path).stem}.{endings[i % 5]}",
            added=f"2020-01-{1 + i % 4:02}T12:{i:02}:59.999Z",
            facts=replace(photo.facts, width=640 + i),
        )
        for i, photo in enumerate(photos)
    ]  # fmt: skip


@pytest.mark.parametrize("wide", [1, 8])  # few are copied out, many are marked
def test_filters_by_facts_are_exact(searcher: Searcher, store: Store, wide: int, monkeypatch: Any) -> None:
    """Alone, with labels, with a radius and page by page; while photos come, move, are described and go."""
    monkeypatch.setattr("hyphash.searchers.local.view.FEW", wide)
    codes = random_codes(60, distinct=8)
    ids = store.upsert(placed(photos_with(codes, labels=twos_and_threes)), fingerprint=ME)
    for step in range(3):
        photos = {photo.id: photo for photo in store.page(0, 99)}
        whole = searcher.search(Query(codes[1], 99, fingerprint=ME))
        near = set(whole.ids[whole.distances <= 9].tolist())
        for name, (texts, fits) in FACTS.items():
            only = Filter.parse(**texts)
            expected = [id for id in whole.ids.tolist() if fits(photos[id])]
            assert step or expected or name == "nobody"
            found = searcher.search(Query(codes[1], 99, only=only, fingerprint=ME))
            assert (found.ids.tolist(), found.total) == (expected, len(expected)), name
            assert searcher.select(only).ids.tolist() == sorted(expected)
            page = searcher.search(Query(codes[1], 3, offset=2, only=only, fingerprint=ME))
            assert page.ids.tolist() == expected[2:5]
            both = replace(only, carrying=("two",), radius=9)
            found = searcher.search(Query(codes[1], 99, only=both, fingerprint=ME))
            assert found.ids.tolist() == [id for id in expected if "two" in photos[id].labels and id in near]
        if step == 0:
            store.remove(ids[:7])
            moved = [replace(photo, path=f"/photos/summer/beach/{photo.id}.png") for photo in store.get(ids[8:14])]
            known = {"taken": 40 * 10**6, "camera": "CANON\u00df", "latitude": -48.5, "longitude": -178.0}
            moved += [replace(photo, facts=replace(photo.facts, **known)) for photo in store.get(ids[20:30])]  # type: ignore[arg-type]
            store.upsert([*moved, *placed(photos_with(random_codes(9, seed=3), start=100))], fingerprint=ME)
        else:
            searcher.tidy()
    assert searcher.verify() == []


def test_months_and_days_of_what_a_filter_allows(searcher: Searcher, store: Store) -> None:
    ids, _ = fill(store, 30)
    photos = store.get(ids)
    dated = [(photo.facts.taken, photo.id) for photo in photos if photo.facts.taken is not None]
    selected = searcher.select(Filter())
    assert selected.ids.tolist() == ids
    assert sum(selected.months().values()) == len(dated)
    assert selected.months()["1967-01"] == sum(-94_694_400 <= taken < -92_016_000 for taken, _ in dated) > 0
    newest = [id for _, id in sorted(dated, key=lambda one: (-one[0], one[1]))]
    newest += [photo.id for photo in photos if photo.facts.taken is None]
    pages = [selected.newest(offset, 7).tolist() for offset in range(0, 42, 7)]
    assert [id for page in pages for id in page] == newest
    assert searcher.select(Filter(carrying=("two", "three"))).ids.tolist() == ids[::6]


def test_filters_follow_the_labels(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 12)
    only, tagged = Filter(carrying=("new",)), Filter(tagged=True)
    assert searcher.search(Query(codes[0], 12, only=only, fingerprint=ME)).total == 0
    store.relabel(ids[5], lambda photo: replace(photo, labels=("new",)))
    assert searcher.search(Query(codes[0], 12, only=only, fingerprint=ME)).ids.tolist() == [ids[5]]
    assert searcher.search(Query(codes[0], 12, only=tagged, fingerprint=ME)).total == 9  # 5 was none of these before
    store.relabel(ids[5], lambda photo: replace(photo, labels=(), refused=("new",)))
    assert searcher.search(Query(codes[0], 12, only=only, fingerprint=ME)).total == 0
    assert searcher.search(Query(codes[0], 12, only=tagged, fingerprint=ME)).total == 8
    assert searcher.verify() == []


def test_tables_rank_by_their_sums(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 80, distinct=20)
    outputs = np.random.default_rng(3).normal(size=BITS).astype(np.float32)
    found = searcher.search(
        Query(Codes.from_outputs(outputs[None]), 80, tables=hamming.byte_tables(outputs[None])[0], fingerprint=ME)
    )
    sums = -(codes.signs().astype(np.float32) @ outputs)
    assert found.scores == pytest.approx(np.sort(sums), abs=1e-4)
    distance = dict(zip(ids, Codes.from_outputs(outputs[None]).distances(codes)[0].tolist(), strict=True))
    assert found.distances.tolist() == [distance[id] for id in found.ids.tolist()]


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────

LEVELS = np.linspace(-8, 8, 16, dtype=np.float32)
ROLES: tuple[Role, ...] = ("every", "some", "unwanted")
WORDS = ("two", "three", "five", "seven", "new")


def term(label: str, role: Role = "every", *, at_least: float = 0.0) -> LabelTerm:
    """A label whose scores are kept; `new` has none, and is taken for a matter of the first two bits."""
    weights = np.zeros(BITS + 6 + 1, np.float32)  # of each bit, of five scores and of what fills up the last byte
    weights[[0, 1, -1]] = 3, -2, 1
    source = weights.tobytes() if label == "new" else WORDS.index(label)
    return LabelTerm(label, source, LEVELS, 0.4, role=role, at_least=at_least)


def scored(count: int, *, start: int = 0) -> list[Photo]:
    """Photos with scores of five labels, some of them tagged and some with refusals."""
    rng, labelled = np.random.default_rng(start), np.full(5, 0.1, np.float32)
    packed = Calibration(labelled, labelled).pack(rng.normal(0, 4, (count, 5)).astype(np.float32))
    photos = photos_with(random_codes(count, seed=start), labels=twos_and_threes, start=start)
    refused = [("five",) if i % 5 == 1 else ("two",) if i % 7 == 1 else () for i in range(count)]
    return [
        replace(photo, scores=row.tobytes(), refused=no) for photo, row, no in zip(photos, packed, refused, strict=True)
    ]


def naive_label_ranking(photos: list[Photo], asked: LabelQuery) -> tuple[list[tuple[bool, float, int]], int, int]:
    """(whether it follows, cost, id) of all photos that are found, in order; how many are known and probable."""
    found, known, probable = [], 0, 0
    for photo in photos:
        numbers = [nibble for byte in photo.scores for nibble in (byte & 15, byte >> 4)]
        signs = Codes(np.frombuffer(photo.code, np.uint8)[None], BITS).signs()[0]
        numbers[4] = round(min(max((3 * int(signs[0]) - 2 * int(signs[1]) + 1 + 8) * 15 / 16, 0), 15))

        def cost(one: LabelTerm, numbers: list[int] = numbers) -> float:
            return float(one.costs[numbers[WORDS.index(one.label)]])

        every, some, unwanted = ({one.label for one in asked.those(role)} for role in ROLES)
        carried = set(photo.labels)
        if carried & unwanted or set(photo.refused) & every:
            continue
        leads = every <= carried and (not some or bool(some & carried))
        told = 0.0 if leads else 1.0  # those that lead are ordered by their scores alone
        total = sum(cost(one) for one in asked.those("every") if one.label not in carried or not told)
        total += sum(cost(one) for one in asked.those("unwanted"))
        if some and not (some & carried and told):
            present = [np.exp(-cost(one)) for one in asked.those("some") if one.label not in photo.refused or not told]
            total += -np.log(1 - np.prod([1 - p for p in present])) if present else np.inf
        if leads or total < np.inf:
            found.append((not leads, float(total), photo.id))
            known, probable = known + leads, probable + (not leads and total <= asked.border)
    return sorted(found), known, probable


@pytest.mark.parametrize(
    "asked",
    [
        LabelQuery((term("five"),)),
        LabelQuery((term("two"), term("five"), term("three", "unwanted"))),
        LabelQuery((term("two", "some"), term("seven", "some"), term("five", "some"))),
        LabelQuery((term("seven"), term("two", "some"), term("three", "some"))),
        LabelQuery((term("new"), term("two", at_least=0.6))),
    ],
    ids=["one", "two without", "any", "one and any", "new at least"],
)
def test_labels_rank_by_what_people_say_and_then_by_scores(searcher: Searcher, store: Store, asked: LabelQuery) -> None:
    """Everybody gives the same ranking, page by page, while photos come, change and go."""
    store.upsert(scored(41), fingerprint=ME)
    for round in range(3):
        photos = store.page(0, 999)
        expected, known, probable = naive_label_ranking(photos, asked)
        pages = [
            searcher.search(Query(random_codes(1), 20, offset=offset, labels=asked, fingerprint=ME))
            for offset in (0, 20, 40, 60)
        ]
        assert {(page.total, page.known, page.probable) for page in pages} == {(len(expected), known, probable)}
        ids = np.concatenate([page.ids for page in pages]).tolist()
        costs = dict(zip(ids, np.concatenate([page.scores for page in pages if page.scores is not None]), strict=True))
        assert sorted(ids) == sorted(id for _, _, id in expected)
        assert sorted(ids[:known]) == sorted(id for follows, _, id in expected if not follows)
        for _, cost, id in expected:
            assert costs[id] == pytest.approx(cost, rel=1e-4, abs=1e-5)
        for part in (ids[:known], ids[known:]):
            assert [(costs[id], id) for id in part] == sorted((costs[id], id) for id in part)
        p = np.concatenate([page.probabilities for page in pages if page.probabilities is not None])
        assert p[:known].tolist() == [1.0] * known
        assert p[known:] == pytest.approx([np.exp(-costs[id]) for id in ids[known:]], rel=1e-4)
        store.remove([photos[3].id])
        store.upsert(scored(7, start=100 * (round + 1)), fingerprint=ME)
        store.relabel(photos[8].id, lambda photo: replace(photo, labels=("five",), refused=("seven",)))
    assert searcher.verify() == []


@pytest.mark.parametrize("some", [(), (term("five", "some"), term("seven", "some"))], ids=["all", "any"])
def test_labels_and_a_photo_rank_together(searcher: Searcher, store: Store, some: tuple[LabelTerm, ...]) -> None:
    ids = store.upsert(scored(30), fingerprint=ME)
    outputs = np.random.default_rng(3).normal(size=BITS).astype(np.float32)
    code, tables = Codes.from_outputs(outputs[None]), hamming.byte_tables(outputs[None])[0]
    asked = LabelQuery((term("two"), *some), "counts")
    found = searcher.search(Query(code, 30, tables=tables, labels=asked, fingerprint=ME))
    alone = searcher.search(Query(code, 30, labels=replace(asked, said="first"), fingerprint=ME))
    assert (found.known, found.probable, found.total) == (alone.known, alone.probable, alone.total)
    assert found.scores is not None
    for id, score, p in zip(found.ids, found.scores, found.probabilities, strict=True):
        photo = store.get([int(id)])[0]
        sums = -(Codes(np.frombuffer(photo.code, np.uint8)[None], BITS).signs()[0].astype(np.float32) @ outputs)
        assert score == pytest.approx(sums - np.log(p), abs=1e-4)
        assert p == 1 if "two" in photo.labels and not some else p < 1
    assert found.scores.tolist() == sorted(found.scores.tolist())
    assert set(found.ids.tolist()) <= set(ids)


def test_labels_that_photos_lack_and_those_that_they_should_not_have(searcher: Searcher, store: Store) -> None:
    store.upsert(scored(40), fingerprint=ME)
    photos = {photo.id: photo for photo in store.page(0, 99)}
    lacking = searcher.search(Query(random_codes(1), 40, labels=LabelQuery((term("two"),), "lacking"), fingerprint=ME))
    neither = [id for id, photo in photos.items() if "two" not in (*photo.labels, *photo.refused)]
    assert sorted(lacking.ids.tolist()) == neither
    assert lacking.known == 0
    wrong = LabelQuery((term("two", "unwanted"),), "ignored")
    only = Filter(carrying=("two",), excluded=(1,), radius=15)
    found = searcher.search(Query(random_codes(1), 40, only=only, labels=wrong, fingerprint=ME))
    assert sorted(found.ids.tolist()) == [
        id for id, photo in photos.items() if "two" in photo.labels and id > 1
        and int(random_codes(1).distances(Codes(np.frombuffer(photo.code, np.uint8)[None], BITS))[0, 0]) <= 15
    ]  # fmt: skip
    for ranking, nibbles in ((lacking, -1), (found, 1)):
        scores = [nibbles * (photos[id].scores[0] & 15) for id in ranking.ids.tolist()]
        assert scores == sorted(scores)


def test_photos_that_keep_their_best_labels_are_listed_by_label(searcher: Searcher, store: Store) -> None:
    """Of 300 labels 32; a label that is not kept has its prior."""
    rng, count = np.random.default_rng(0), 33
    calibration = Calibration(np.full(300, 0.5, np.float32), np.full(300, 0.1, np.float32))
    packed = calibration.pack(rng.normal(-3, 3, (count, 300)).astype(np.float32))
    photos = [replace(p, scores=row.tobytes()) for p, row in zip(photos_with(random_codes(count)), packed, strict=True)]
    ids = np.array(store.upsert(photos[:20], fingerprint=ME) + store.upsert(photos[20:], fingerprint=ME))
    levels = np.linspace(-8, 8, 256, dtype=np.float32)
    prior, costs = round((float(np.log(0.1 / 0.9)) + 8) * 255 / 16), -log_sigmoid(levels)
    for label in (0, 7, 299):
        asked = LabelQuery((LabelTerm("any", label, levels, unkept=prior),))
        found = searcher.search(Query(random_codes(1), count, labels=asked, fingerprint=ME))
        entries = np.ascontiguousarray(packed).view(ENTRY)
        numbers = [next((s for n, s in row if n == label), prior) for row in entries.tolist()]
        assert found.ids.tolist() == ids[np.lexsort((ids, costs[numbers]))].tolist()
        store.remove([int(ids[3])])
        ids, packed = np.delete(ids, 3), np.delete(packed, 3, axis=0)
        searcher.tidy()
    assert searcher.verify() == []


def test_texts_of_any_spelling_are_only_texts(searcher: Searcher, store: Store) -> None:
    texts = [
        "it's \"so\" `called`; DROP TABLE photos; --", "a\\b\\\\c\\'", "🐈\u200d⬛ 雪 é", "%s %(x)s {} {0}",
        " a or b and c ", "[a,b] {c}", "\n\r\t\x01\x7f\x85\u2028", "",
    ]  # fmt: skip
    photos = [
        replace(photo, path=f"/{text}", labels=(text,), given=(text, "x"), refused=(f"{text}!",))
        for photo, text in zip(photos_with(random_codes(len(texts))), texts, strict=True)
    ]
    for id, text in zip(store.upsert(photos, fingerprint=ME), texts, strict=True):
        only = Filter(carrying=(text,))
        assert searcher.search(Query(random_codes(1), 9, only=only, fingerprint=ME)).ids.tolist() == [id]
    assert searcher.verify() == []


@pytest.mark.parametrize("text", ["a\0b", "雪" * 30_000], ids=["NUL", "long"])
def test_what_a_store_holds_its_searcher_finds(searcher: Searcher, store: Store, text: str) -> None:
    good, odd = photos_with(random_codes(2))
    ids = store.upsert([good], fingerprint=ME)
    try:
        ids += store.upsert([replace(odd, labels=(text,), given=None)], fingerprint=ME)
    except HyphashError:  # then there is nothing to find
        assert store.count() == 1
    assert sorted(searcher.search(Query(random_codes(1), 9, fingerprint=ME)).ids.tolist()) == ids
    if "\0" not in text or len(ids) == 2:
        found = searcher.search(Query(random_codes(1), 9, only=Filter(carrying=(text,)), fingerprint=ME))
        assert found.ids.tolist() == ids[1:]
    assert searcher.verify() == []


def test_labels_that_are_no_text_are_refused(searcher: Searcher, store: Store) -> None:
    """File systems allow names that are not UTF-8; Python holds them with half a surrogate."""
    fill(store, 3)
    with pytest.raises(CollectionError, match="no proper text"):
        searcher.search(Query(random_codes(1), 9, only=Filter(carrying=("a\udcff",)), fingerprint=ME))
    assert searcher.search(Query(random_codes(1), 9, fingerprint=ME)).total == 3


def test_an_empty_searcher_answers(searcher: Searcher, store: Store) -> None:
    found = searcher.search(Query(random_codes(1), 5, fingerprint=ME))
    assert (len(found.ids), found.total) == (0, 0)
    assert searcher.search(Query(random_codes(1), 5, only=Filter(radius=3, carrying=("a",)), fingerprint=ME)).total == 0
    assert searcher.verify() == []
    ids, codes = fill(store, 3)
    store.remove(ids)
    assert searcher.search(Query(codes[0], 5, fingerprint=ME)).total == 0


def test_its_recall_is_as_its_name_says(searcher: Searcher, store: Store) -> None:
    fill(store, 200)
    searcher.tidy()
    found = recall(searcher, random_codes(10, seed=4), 20)
    assert found == 1 or (found > 0.9 and not searcher.exact)
    assert searcher.exact == (not any(name.endswith("-approximate") for name in _names(searcher)))


def _names(searcher: Searcher) -> list[str]:
    return [name for name in searchers.names() if searchers[name] is type(searcher)]


# ── the store is the truth ───────────────────────────────────────────────────────────────────────────────


def test_one_that_is_behind_says_so_if_it_may_answer(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 10)
    searcher.follow()
    assert searcher.position() == store.state().position
    store.remove(ids[:1])
    store.upsert(photos_with(random_codes(2, seed=7), start=70), fingerprint=ME)
    early = searcher.search(Query(codes[0], 99, fingerprint=ME, catch_up=False))
    assert (early.behind, early.total) in ((2, 10), (0, 11))  # one inside of the store is never behind
    now = searcher.search(Query(codes[0], 99, fingerprint=ME))
    assert (now.behind, now.total) == (0, 11)
    assert searcher.search(Query(codes[0], 99, fingerprint=ME, catch_up=False)).behind == 0
    assert searcher.position() == store.state().position


def test_one_that_is_opened_again_goes_on(
    searcher: Searcher, store: Store, urls: tuple[str, str], tmp_path: Path
) -> None:
    _, codes = fill(store, 30)
    searcher.tidy()
    searcher.close()
    store.upsert(photos_with(random_codes(5, seed=7), start=70), fingerprint=ME)
    again = type(searcher).open(tmp_path, urls[1], store)
    assert again.search(Query(codes[0], 99, fingerprint=ME)).total == 35
    assert again.verify() == []
    again.close()


def test_two_of_them_see_the_same(searcher: Searcher, store: Store, urls: tuple[str, str], tmp_path: Path) -> None:
    """As two processes do that have the same folder open."""
    other = type(searcher).open(tmp_path, urls[1], store)
    for round in range(4):
        ids = store.upsert(
            photos_with(random_codes(7, seed=round), labels=twos_and_threes, start=100 * round), fingerprint=ME
        )
        query, only = random_codes(1, seed=round), Filter(carrying=("two",))
        assert pairs(other.search(Query(query, 99, fingerprint=ME))) == pairs(
            searcher.search(Query(query, 99, fingerprint=ME))
        )
        store.remove(ids[:2])
        if round == 2:
            searcher.tidy()
        assert other.search(Query(query, 99, only=only, fingerprint=ME)).total == store.count(carrying=["two"])
        assert pairs(searcher.search(Query(query, 99, fingerprint=ME))) == pairs(
            other.search(Query(query, 99, fingerprint=ME))
        )
    assert searcher.verify() == other.verify() == []
    other.close()


def test_one_that_is_rebuilt_finds_the_same(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 40)
    before = pairs(searcher.search(Query(codes[3], 99, fingerprint=ME)))
    searcher.rebuild()
    assert pairs(searcher.search(Query(codes[3], 99, fingerprint=ME))) == before
    store.remove(ids[::3])
    searcher.rebuild()
    assert searcher.position() == store.state().position
    assert searcher.search(Query(codes[3], 99, fingerprint=ME)).total == store.count()
    assert searcher.verify() == []


def test_one_that_is_too_far_behind_starts_again(
    searcher: Searcher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, codes = fill(store, 20)
    searcher.tidy()
    monkeypatch.setattr("hyphash.stores.KEPT_CHANGES", 3)
    monkeypatch.setattr("hyphash.stores.KEPT_SHARE", 10**9)
    for id in ids[:5]:
        store.remove([id])
    store.upsert(photos_with(random_codes(9, seed=7), start=70), fingerprint=ME)
    store.prune()
    assert store.state().pruned > 1
    truth = {photo.id: photo.code for photo in store.page(0, 99)}
    assert pairs(searcher.search(Query(codes[3], 99, fingerprint=ME))) == naive(codes[3], truth)
    assert searcher.verify() == []


def coded(store: Store, codes: dict[int, bytes]) -> list[Photo]:
    """Photos as they are, with other codes."""
    return [replace(photo, code=codes[photo.id]) for photo in store.get(list(codes))]


def test_moving_to_another_hasher(searcher: Searcher, store: Store) -> None:
    ids, old = fill(store, 10)
    new = {id: row.tobytes() for id, row in zip(ids, random_codes(10, bits=33, seed=5).packed, strict=True)}
    store.prepare(OTHER, 33)
    store.put_coming(coded(store, new), fingerprint=OTHER)
    assert searcher.search(Query(old[3], 1, fingerprint=ME)).distances.tolist() == [0]  # the old one still answers
    with pytest.raises(OtherHasherError, match=r"made by the hasher 0123.*reindex"):
        searcher.search(Query(old[3], 1, fingerprint=OTHER))
    searcher.prepare()
    (late,) = store.upsert(photos_with(random_codes(1, seed=9), start=500), fingerprint=ME)  # came meanwhile
    store.remove([ids[1]])
    assert not store.switch(OTHER)
    assert searcher.search(Query(old[3], 99, fingerprint=ME)).total == 10
    new = {id: code for id, code in new.items() if id != ids[1]} | {late: new[ids[9]]}
    store.put_coming(coded(store, {late: new[late]}), fingerprint=OTHER)
    searcher.prepare()
    assert store.switch(OTHER)

    with pytest.raises(OtherHasherError):
        searcher.search(Query(old[3], 1, fingerprint=ME))
    query = Codes(np.frombuffer(new[ids[4]], np.uint8)[None], 33)
    with pytest.raises(CodesError):
        searcher.search(Query(old[3], 1, fingerprint=OTHER))
    assert pairs(searcher.search(Query(query, 99, fingerprint=OTHER))) == naive(query, new)
    assert searcher.verify() == []
    searcher.compact()
    store.compact()
    store.remove([ids[2]])
    del new[ids[2]]
    assert pairs(searcher.search(Query(query, 99, fingerprint=OTHER))) == naive(query, new)


def test_a_move_that_nobody_was_prepared_for(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 6)
    searcher.follow()
    store.prepare(OTHER, BITS)
    store.put_coming(coded(store, dict.fromkeys(ids, codes.packed[0].tobytes())), fingerprint=OTHER)
    assert store.switch(OTHER)
    found = searcher.search(Query(codes[0], 99, fingerprint=OTHER, catch_up=False))  # what it has is worth nothing
    assert pairs(found) == [(0, id) for id in ids]
    assert found.behind == 0


def test_compact_changes_nothing_that_can_be_seen(searcher: Searcher, store: Store) -> None:
    ids, codes = fill(store, 40)
    store.remove(ids[::4])
    before = pairs(searcher.search(Query(codes[2], 30, fingerprint=ME)))
    searcher.compact()
    assert pairs(searcher.search(Query(codes[2], 30, fingerprint=ME))) == before
    assert searcher.verify() == []


def test_a_searcher_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no engine is called 'redis'"):
        searcher_for("redis://localhost/1")
