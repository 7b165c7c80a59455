"""What every store must do, whatever is behind it. A store joins by its name in the registry; STORES has addresses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import ANOTHER, BITS, ME, OTHER, SECOND, STORES, THIRD, fill, photos_with, random_codes

from hyphash.errors import CodesError, CollectionError, ConfigError, HyphashError, OtherHasherError
from hyphash.stores import Photo, Position, Session, State, Store, follows, store_for, stores


@pytest.fixture(params=sorted({*stores.names(), *STORES}))
def url(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return STORES[name](request) if name in STORES else name


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    store = store_for(url).create(tmp_path, url, fingerprint=ME, bits=BITS)
    yield store
    store.close()


def test_what_goes_in_comes_out(store: Store) -> None:
    photos = photos_with(random_codes(5), labels=lambda i: ("b", "a")[: i % 3])
    ids = store.upsert(photos, fingerprint=ME)
    assert len(set(ids)) == 5
    assert min(ids) > 0
    for id, before, after in zip(ids, photos, store.get(ids), strict=True):
        assert after.added == after.changed != ""
        expected = replace(before, id=id, labels=tuple(sorted(before.labels)), given=tuple(sorted(before.labels)))
        assert replace(after, added="", changed="") == expected
    assert store.count() == 5
    assert store.labels() == {"b": 3, "a": 1}


def test_scores_are_kept_beside_the_codes(store: Store) -> None:
    """Read in parts, whose scores may be of no bytes: photos from a hasher without a label layer have none."""
    codes = random_codes(6)
    scores = [b"", b"", bytes([1, 2, 3]), bytes([4, 5, 255]), b"", bytes([0, 0, 0])]
    photos = [replace(photo, scores=row) for photo, row in zip(photos_with(codes), scores, strict=True)]
    ids = store.upsert(photos, fingerprint=ME)
    assert [photo.scores for photo in store.get(ids)] == scores
    here = store.state().in_use
    expected = [row or bytes(3) for row in scores]
    for some in (store.read(lambda tx: tx.derived(here)), store.read(lambda tx: tx.derived_of(np.array(ids)))):
        assert some[0].tolist() == ids
        assert some[1] == codes
        assert [row.tobytes() for row in some[2]] == expected
    assert store.read(lambda tx: tx.derived(here, limit=2))[2].shape == (2, 0)
    assert store.read(lambda tx: tx.derived(here, after=ids[-1]))[0].tolist() == []
    commit = store.state().commit
    store.upsert([replace(photos[2], scores=b"abc"), photos[3]], fingerprint=ME)
    assert store.get([ids[2]])[0].scores == b"abc"
    assert store.read(lambda tx: tx.changed(commit, labels=False)).tolist() == [ids[2]]  # whose scores are others
    store.prepare(OTHER, BITS)
    store.put_coming([replace(photo, scores=b"new!") for photo in store.get(ids)], fingerprint=OTHER)
    assert store.get([ids[2]])[0].scores == b"abc"
    assert store.switch(OTHER)
    assert {photo.scores for photo in store.get(ids)} == {b"new!"}


def test_refusals_are_found_by_their_label(store: Store) -> None:
    ids, _ = fill(store, 4)
    for id, refused in ((ids[3], ("cat",)), (ids[1], ("cat", "two")), (ids[0], ("dog",))):
        store.relabel(id, lambda photo, refused=refused: replace(photo, refused=refused))  # type: ignore[misc]
    assert store.read(lambda tx: tx.ids_refusing("cat")).tolist() == [ids[1], ids[3]]
    assert store.read(lambda tx: tx.ids_refusing("nobody")).tolist() == []
    store.relabel(ids[3], lambda photo: replace(photo, labels=("cat",)))  # what is carried is not refused
    assert store.read(lambda tx: tx.ids_refusing("cat")).tolist() == [ids[1]]


def test_captions_say_the_same_as_photos(store: Store) -> None:
    photos = photos_with(random_codes(4), labels=lambda i: ('say "b\\"', "é,'🐕'", "[a]")[: i % 4])
    ids = store.upsert(photos, fingerprint=ME)
    store.relabel(ids[2], lambda photo: replace(photo, refused=("b",)))
    store.remove([ids[1]])
    kept = store.get(ids)
    expected = {photo.id: (photo.path, photo.labels, photo.facts.width, photo.facts.height) for photo in kept}
    assert store.captions([ids[3], *ids, max(ids) + 1]) == expected
    assert list(expected) == [ids[0], *ids[2:]]
    assert store.captions([]) == {}


def test_state_counts_commits_and_names_the_hasher(store: Store) -> None:
    before = store.state()
    fill(store, 3)
    after = store.state()
    assert (before.fingerprint, before.bits) == (after.fingerprint, after.bits) == (ME, BITS)
    assert after.commit > before.commit


def test_it_is_all_there_when_opened_again(store: Store, url: str, tmp_path: Path) -> None:
    ids, _ = fill(store, 7)
    photos = store.get(ids)
    store.close()
    again = type(store).open(tmp_path, url)
    assert again.get(ids) == photos
    assert again.state().fingerprint == ME
    again.close()


def test_a_path_is_one_photo_and_keeps_its_id(store: Store) -> None:
    ids, codes = fill(store, 4)
    photo = photos_with(codes)[2]
    changed = replace(photo, facts=replace(photo.facts, content="ff" * 32), code=codes.packed[0].tobytes())
    assert store.upsert([changed], fingerprint=ME) == [ids[2]]
    assert store.count() == 4
    after = store.get([ids[2]])[0]
    assert (after.facts, after.code) == (changed.facts, changed.code)


def test_an_id_under_another_path_has_moved(store: Store) -> None:
    ids, _ = fill(store, 3)
    photo = store.get([ids[1]])[0]
    assert store.upsert([replace(photo, path="/elsewhere.jpg")], fingerprint=ME) == [ids[1]]
    assert [p.path for p in store.find(contents=[photo.facts.content])] == ["/elsewhere.jpg"]
    assert store.find(paths=[photo.path]) == []
    assert store.count() == 3


def test_the_same_path_twice_in_one_call_is_one_photo(store: Store) -> None:
    photo = photos_with(random_codes(1))[0]
    one, two = store.upsert([photo, replace(photo, facts=replace(photo.facts, size=7))], fingerprint=ME)
    assert one == two
    assert store.count() == 1
    assert store.get([one])[0].facts.size == 7


def test_ids_are_never_used_again(store: Store) -> None:
    ids, codes = fill(store, 3)
    assert store.remove([ids[-1]]) == 1
    new = store.upsert(photos_with(codes, start=100), fingerprint=ME)
    assert not set(new) & set(ids)


def test_an_id_of_old_is_given_back_to_a_photo_that_names_it(store: Store) -> None:
    photo = replace(photos_with(random_codes(1))[0], id=41)
    assert store.upsert([photo], fingerprint=ME) == [41]
    (other,) = store.upsert([replace(photo, id=0, path="/other.jpg")], fingerprint=ME)
    assert other > 41


def test_removed_photos_are_gone_everywhere(store: Store) -> None:
    ids, _ = fill(store, 12)
    assert store.remove([ids[0], ids[6], 10**9]) == 2
    assert store.remove([ids[0]]) == 0
    assert store.get(ids) == store.get([id for id in ids if id not in (ids[0], ids[6])])
    assert store.labels() == {"two": 4, "three": 2}
    assert ids[0] not in np.concatenate([part[0] for part in store.scan()])
    assert store.count() == 10
    assert store.count(carrying=["two"]) == 4


def test_codes_of_another_hasher_are_refused(store: Store) -> None:
    photos = photos_with(random_codes(2))
    with pytest.raises(OtherHasherError, match=r"made by the hasher 0123.*reindex"):
        store.upsert(photos, fingerprint=ANOTHER)
    with pytest.raises(CodesError, match="bytes"):
        store.upsert([photos[0], replace(photos[1], code=b"1")], fingerprint=ME)
    with pytest.raises(CodesError, match="bits after the last"):
        store.upsert([replace(photos[1], code=b"\xff\xff\xff")], fingerprint=ME)
    assert store.count() == 0


def test_labels_change_by_what_the_source_changes(store: Store) -> None:
    photo = replace(photos_with(random_codes(1))[0], labels=("cat", "dog"), given=("cat", "dog"))
    (id,) = store.upsert([photo], fingerprint=ME)
    store.relabel(id, lambda p: replace(p, labels=("dog", "mine")))  # a person took cat away and added mine
    store.upsert([photo], fingerprint=ME)
    assert store.get([id])[0].labels == ("dog", "mine")
    store.upsert([replace(photo, given=None)], fingerprint=ME)
    assert store.get([id])[0].labels == ("dog", "mine")
    store.upsert([replace(photo, given=("bird", "cat"))], fingerprint=ME)  # the source: no dog any more, but a bird
    assert store.get([id])[0].labels == ("bird", "mine")
    assert store.labels() == {"bird": 1, "mine": 1}
    assert store.count(carrying=["dog"]) == 0


def test_relabel_tells_what_is_there_and_knows_no_strangers(store: Store) -> None:
    ids, _ = fill(store, 2)
    after = store.relabel(ids[0], lambda p: replace(p, labels=(*p.labels, "new"), refused=("no",)))
    assert after == store.get([ids[0]])[0]
    assert after is not None
    assert after.labels == ("new", "three", "two")
    assert after.refused == ("no",)
    assert store.relabel(10**9, lambda p: p) is None
    assert store.count(carrying=["new", "two"]) == 1


def test_many_are_relabelled_in_one_commit(store: Store) -> None:
    ids, _ = fill(store, 3)
    before, commit = store.get(ids), store.state().commit
    edits = {id: lambda p: replace(p, labels=(*p.labels, "new")) for id in (ids[2], ids[0], 10**9)}
    changes = store.relabel_all(edits)
    assert [change.before for change in changes] == [before[0], before[2]]
    assert [change.after for change in changes] == store.get([ids[0], ids[2]])
    assert all(
        set(change.after.labels) == {*photo.labels, "new"} for change, photo in zip(changes, before[::2], strict=True)
    )
    assert store.state().commit == commit + 1
    assert store.relabel_all({10**9: lambda p: p}) == []
    assert store.state().commit == commit + 1


def test_texts_of_any_spelling_are_only_texts(store: Store) -> None:
    texts = [
        "it's \"so\" `called`; DROP TABLE photos; --", "a\\b\\\\c\\'", "🐈\u200d⬛ 雪 é", "%s %(x)s {} {0}",
        " a or b and c ", "[a,b] {c}", "\n\r\t\x01\x7f\x85\u2028", "",
    ]  # fmt: skip
    photos = [
        replace(photo, path=f"/{text}", labels=(text,), given=(text, "x"), refused=(f"{text}!",))
        for photo, text in zip(photos_with(random_codes(len(texts))), texts, strict=True)
    ]
    ids = store.upsert(photos, fingerprint=ME)
    assert set(store.labels()) == set(texts)
    for id, photo, text in zip(ids, photos, texts, strict=True):
        (found,) = store.find(paths=[photo.path])
        assert (found.id, found.path, found.labels, found.refused) == (id, photo.path, (text,), photo.refused)
        assert set(found.given or ()) == {text, "x"}
        assert store.read(lambda session, text=text: session.ids_carrying([text])).tolist() == [id]  # type: ignore[misc]
        assert [other.id for other in store.page(0, 9, carrying=[text])] == [id]
    assert store.verify() == []


@pytest.mark.parametrize("text", ["a\0b", "雪" * 10_000], ids=["NUL", "long"])
def test_texts_are_kept_whole_or_refused_with_their_batch(store: Store, text: str) -> None:
    good, *odd = photos_with(random_codes(4))
    store.upsert([good], fingerprint=ME)
    changes: list[dict[str, Any]] = [{"path": text}, {"labels": (text,)}, {"refused": (text,)}]
    kept = 0
    for photo in (replace(photo, **change) for photo, change in zip(odd, changes, strict=True)):
        beside = replace(good, path=f"/beside/{kept}")
        try:
            ids = store.upsert([photo, beside], fingerprint=ME)
        except HyphashError:
            assert store.find(paths=[beside.path]) == []
        else:
            (found,) = store.get(ids[:1])
            assert (found.path == photo.path, found.labels == photo.labels, found.refused == photo.refused) == (
                True,
            ) * 3
            kept += 2
    assert store.upsert([good], fingerprint=ME) == [1]
    assert store.count() == 1 + kept
    assert store.verify() == []


def test_names_that_are_no_text_are_refused_by_all_alike(store: Store) -> None:
    """File systems allow names that are not UTF-8; Python holds them with half a surrogate."""
    odd, (good, photo) = "a\udcff", photos_with(random_codes(2))
    store.upsert([good], fingerprint=ME)
    for change in ({"path": odd}, {"labels": (odd,)}, {"given": (odd,)}, {"refused": (odd,)}):
        changed: Photo = replace(photo, **change)  # type: ignore[arg-type]
        with pytest.raises(CollectionError, match=r"udcff.*is no proper text \(UTF-8\)"):
            store.upsert([replace(photo, path="/beside"), changed], fingerprint=ME)
    with pytest.raises(CollectionError, match="no proper text"):
        store.relabel(1, lambda photo: replace(photo, labels=(odd,)))
    questions: list[Callable[[], object]] = [
        lambda: store.find(paths=[odd]),
        lambda: store.count(carrying=[odd]),
        lambda: store.page(0, 9, carrying=[odd]),
        lambda: store.read(lambda session: session.ids_carrying([odd])),
    ]
    for question in questions:
        with pytest.raises(CollectionError, match="no proper text"):
            question()
    assert [found.path for found in store.page(0, 9)] == [good.path]
    assert store.verify() == []


def test_lists_go_by_id(store: Store) -> None:
    ids, _ = fill(store, 13)
    assert [photo.id for photo in store.page(0, 5)] == ids[:5]
    assert [photo.id for photo in store.page(10, 5)] == ids[10:]
    assert [photo.id for photo in store.page(1, 2, carrying=["three"])] == [ids[3], ids[6]]
    untagged = [id for i, id in enumerate(ids) if i % 2 and i % 3]
    assert [photo.id for photo in store.page(0, 99, untagged=True)] == untagged
    assert store.count(untagged=True) == len(untagged)
    assert [photo.id for photo in store.page_after(ids[3], 4)] == ids[4:8]
    assert store.page_after(ids[-1], 4) == []


def test_hashes_of_thumbnails_are_read_back(store: Store) -> None:
    ids, _ = fill(store, 5)
    parts = list(store.thumbnail_hashes())
    assert np.concatenate([part[0] for part in parts]).tolist() == ids
    assert np.concatenate([part[1] for part in parts]).tolist() == [0, 1, 2, 3, 4]
    contents = [int.from_bytes(bytes.fromhex(photo.facts.content)[:8], "little") for photo in store.get(ids)]
    assert np.concatenate([part[2] for part in parts]).tolist() == contents


def test_an_empty_store_answers(store: Store) -> None:
    assert list(store.scan()) == []
    assert store.page(0, 10) == store.find(paths=["x"]) == store.get([1]) == []
    assert store.upsert([], fingerprint=ME) == []
    assert store.labels() == {}
    assert list(store.thumbnail_hashes()) == []
    assert store.verify() == []


def scanned(store: Store) -> dict[int, bytes]:
    """All ids with their codes, as a walk through the codes sees them."""
    return {int(id): row.tobytes() for ids, part in store.scan() for id, row in zip(ids, part.packed, strict=True)}


def coded(store: Store, codes: dict[int, bytes]) -> list[Photo]:
    """Photos as they are, with other codes."""
    return [replace(photo, code=codes[photo.id]) for photo in store.get(list(codes))]


def test_moving_to_another_hasher(store: Store) -> None:
    ids, old = fill(store, 10)
    new = {id: row.tobytes() for id, row in zip(ids, random_codes(10, bits=33, seed=5).packed, strict=True)}
    store.prepare(OTHER, 33)
    assert [photo.id for photo in store.pending(4)] == ids[:4]
    store.put_coming(coded(store, {id: new[id] for id in ids[:6]}), fingerprint=OTHER)
    assert [photo.id for photo in store.pending(99)] == ids[6:]
    store.prepare(OTHER, 33)  # interrupted and taken up again: nothing is done twice
    assert [photo.id for photo in store.pending(99, after=ids[7])] == ids[8:]
    assert not store.switch(OTHER)
    assert scanned(store) == {id: row.tobytes() for id, row in zip(ids, old.packed, strict=True)}  # still in use

    late_codes = coded(store, {id: new[id] for id in (ids[1], ids[2], *ids[6:])})
    (late,) = store.upsert(photos_with(random_codes(1, seed=9), start=500), fingerprint=ME)  # came meanwhile
    edited = store.get([ids[2]])[0]
    edited = replace(edited, code=old.packed[0].tobytes(), facts=replace(edited.facts, content="ab" * 32))
    store.upsert([edited], fingerprint=ME)
    store.remove([ids[1]])
    store.put_coming(late_codes, fingerprint=OTHER)  # one of them is gone, one shows what is no longer there
    assert not store.switch(OTHER)
    assert [photo.id for photo in store.pending(99)] == [ids[2], late]
    with pytest.raises(CodesError):
        store.put_coming(coded(store, {late: b"12"}), fingerprint=OTHER)
    del new[ids[1]]
    new[late] = new[ids[9]]
    store.put_coming(coded(store, {id: new[id] for id in (ids[2], late)}), fingerprint=OTHER)
    assert store.switch(OTHER)

    assert (store.state().fingerprint, store.state().bits) == (OTHER, 33)
    with pytest.raises(OtherHasherError):
        store.upsert([edited], fingerprint=ME)
    assert {photo.id: photo.code for photo in store.page(0, 99)} == scanned(store) == new
    assert store.verify() == []
    store.compact()
    assert {photo.id: photo.code for photo in store.page(0, 99)} == new


def test_another_hasher_after_all(store: Store) -> None:
    ids, _ = fill(store, 3)
    store.prepare(SECOND, 20)
    store.put_coming(coded(store, {ids[0]: b"\0\0\0"}), fingerprint=SECOND)
    store.prepare(THIRD, 20)  # what was stored for the second is worth nothing
    assert len(store.pending(9)) == 3
    with pytest.raises(OtherHasherError, match=f"prepared for {THIRD}, not for {SECOND}"):
        store.put_coming(coded(store, {ids[0]: b"\0\0\0"}), fingerprint=SECOND)
    with pytest.raises(OtherHasherError, match="let one move"):
        store.switch(SECOND)
    store.put_coming(coded(store, dict.fromkeys(ids, b"\1\1\1")), fingerprint=THIRD)
    assert store.switch(THIRD)
    assert store.state().fingerprint == THIRD


def test_compact_changes_nothing_that_can_be_seen(store: Store) -> None:
    ids, _ = fill(store, 40)
    store.remove(ids[::4])
    before = store.page(0, 99), scanned(store), store.labels(), store.state().position
    store.compact()
    assert (store.page(0, 99), scanned(store), store.labels(), store.state().position) == before
    assert store.verify() == []


def test_a_store_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no store is called 'redis'"):
        store_for("redis://localhost/1")


# ── commits, and those who follow them ───────────────────────────────────────────────────────────────────


def test_a_change_of_photos_that_are_not_there_is_none(store: Store) -> None:
    ids, _ = fill(store, 3)
    before = store.state()
    assert store.relabel(10**9, lambda photo: replace(photo, labels=("never",))) is None
    assert store.remove([10**9, 10**9 + 1]) == 0
    assert store.remove([]) == 0
    assert store.upsert([], fingerprint=ME) == []
    assert store.state() == before
    assert store.remove([ids[0], 10**9]) == 1
    assert store.state().commit == before.commit + 1


def test_an_edit_that_fails_changes_nothing(store: Store) -> None:
    (id,) = store.upsert(photos_with(random_codes(1), labels=lambda _: ("even",)), fingerprint=ME)
    before = store.state()

    def edit(photo: Photo) -> Photo:
        raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError):
        store.relabel(id, edit)
    assert store.state() == before
    assert store.get([id])[0].labels == ("even",)


def changed(store: Store, since: int, *, labels: bool) -> list[int]:
    return store.read(lambda session: session.changed(since, labels=labels)).tolist()


def test_changes_say_whose_facts_changed(store: Store) -> None:
    """A photo that has moved, or whose date was found, is another to those who keep such facts."""
    ids, _ = fill(store, 6)
    start, photos = store.state().commit, store.get(ids)
    store.prepare(OTHER, BITS)
    store.put_coming(photos, fingerprint=OTHER)
    store.upsert([replace(photos[0], path="/elsewhere.jpg"), photos[1]], fingerprint=ME)
    store.upsert([replace(photos[2], facts=replace(photos[2].facts, taken=1, camera="x"))], fingerprint=ME)
    assert changed(store, start, labels=False) == [ids[0], ids[2]]
    assert changed(store, start, labels=True) == ids[:3]
    assert store.get(ids[2:3])[0].facts.camera == "x"
    assert store.pending(9) == []  # their codes are what they were


def test_changes_say_whose_codes_and_whose_labels_changed(store: Store) -> None:
    ids, codes = fill(store, 6)
    start = store.state().commit
    assert changed(store, start, labels=True) == []
    store.relabel(ids[1], lambda photo: replace(photo, labels=("new",)))
    assert (changed(store, start, labels=False), changed(store, start, labels=True)) == ([], [ids[1]])
    store.upsert([replace(store.get([ids[4]])[0], code=codes.packed[0].tobytes())], fingerprint=ME)
    (late,) = store.upsert(photos_with(random_codes(1, seed=8), start=90), fingerprint=ME)
    store.remove([ids[2], late])
    assert changed(store, start, labels=False) == [ids[2], ids[4], late]
    assert changed(store, start, labels=True) == [ids[1], ids[2], ids[4], late]
    found, rows, _ = store.read(lambda session: session.derived_of(np.array([ids[0], ids[2], ids[4], late])))
    assert found.tolist() == [ids[0], ids[4]]
    assert rows.packed.tolist() == [codes.packed[0].tolist()] * 2
    empty, none, _ = store.read(lambda session: session.derived_of(np.empty(0, np.int64)))
    assert (len(empty), len(none), none.bits) == (0, 0, BITS)


def test_a_follower_goes_on_from_its_position_or_has_to_start_again(store: Store) -> None:
    def can_follow(position: Position | None) -> bool:
        return store.read(lambda session: follows(session, position))

    start = store.state().position
    ids, _ = fill(store, 4)
    here = store.state().position
    assert can_follow(start)
    assert can_follow(here)
    assert not can_follow(None)
    assert not can_follow(replace(here, stamp="of another past"))
    assert not can_follow(replace(here, generation=here.generation + 1))
    assert not can_follow(replace(here, commit=here.commit + 1))
    store.prepare(OTHER, BITS)
    store.put_coming(store.pending(9), fingerprint=OTHER)
    ready = replace(store.state().position, generation=here.generation + 1)
    store.remove(ids[:1])
    assert store.switch(OTHER)
    assert not can_follow(here)
    assert can_follow(ready)  # whoever has read the coming codes goes on with them
    assert changed(store, ready.commit, labels=False) == ids[:1]


def test_changes_of_long_ago_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyphash.stores.KEPT_CHANGES", 5)
    positions = [store.state().position]
    for round in range(8):
        store.upsert(photos_with(random_codes(2, seed=round), start=10 * round), fingerprint=ME)
        positions.append(store.state().position)
    before = store.state()
    store.prune()
    after = store.state()
    assert (after.position, after.photos) == (before.position, before.photos)
    assert 0 < after.pruned < after.commit
    still = [store.read(lambda session, p=position: follows(session, p)) for position in positions]  # type: ignore[misc]
    assert still == [position.commit >= after.pruned for position in positions]
    assert len(changed(store, after.pruned, labels=True)) in (4, 6)
    store.prune()  # few are left: nothing is done
    assert store.state() == after
    assert store.verify() == []


def test_searchers_leave_notes(store: Store, url: str, tmp_path: Path) -> None:
    def write(session: Session) -> None:
        session.leave_note("one", "first")
        session.leave_note("one", "second 🐕")

    before = store.state()
    store.write(write, "a test")
    assert store.state() == before
    other = type(store).open(tmp_path, url)
    notes = other.read(lambda session: (session.note("one"), session.note("two")))
    other.close()
    assert notes == ("second 🐕", "")


def test_what_is_written_happens_whole_or_not_at_all(store: Store) -> None:
    ids, _ = fill(store, 3)
    before = store.state()
    after = replace(before, photos=1, commit=before.commit + 1, stamp="new")

    def write(session: Session) -> None:
        session.begin_commit(after, "a test")
        session.delete(ids[:2], after)
        session.leave_note("one", "never")
        raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError):
        store.write(write, "a test")
    assert store.state() == before
    assert len(store.get(ids)) == 3
    assert store.read(lambda session: session.note("one")) == ""
    assert store.verify() == []


def test_a_reader_sees_one_moment(store: Store, url: str, tmp_path: Path) -> None:
    ids, _ = fill(store, 3)
    other = type(store).open(tmp_path, url)
    done: list[State] = []

    def look(session: Session) -> tuple[State, int, State, int]:
        first = session.state(), len(session.page(0, 99))
        if not done:
            other.remove(ids[:1])
            done.append(other.state())
        return *first, session.state(), len(session.page(0, 99))

    before, many, after, as_many = store.read(look)
    assert (before, many) == (after, as_many)
    assert many == 3
    assert store.count() == 2
    other.close()


def test_what_people_took_out_is_remembered_until_it_is_back(store: Store) -> None:
    photos = photos_with(random_codes(4), labels=lambda _: ("even",))
    ids = store.upsert(photos, fingerprint=ME)
    store.relabel(ids[1], lambda photo: replace(photo, refused=("odd",)))
    assert store.remove([ids[0]]) == 1  # forgotten, and nothing more
    assert store.remove(ids[:2], remember=True) == store.remove([ids[2]], remember=True, trashed="/here") == 1
    assert [row.id for row in store.removed()] == [ids[2]]
    assert store.removed(contents=[photos[0].facts.content]) == []
    (row,) = store.removed(contents=[photo.facts.content for photo in photos[:2]])
    assert (row.id, row.path, row.content) == (ids[1], photos[1].path, photos[1].facts.content)
    assert (row.labels, row.refused, row.trashed) == (("even",), ("odd",), None)
    assert [(row.id, row.trashed) for row in store.removed(ids=ids)] == [(ids[1], None), (ids[2], "/here")]
    again, other = store.put([photos[1], replace(photos[2], id=ids[2])], fingerprint=ME)
    assert (again.before, other.before, other.after.id) == (None, None, ids[2])
    assert store.removed(ids=ids) == []
    store.remove(ids[3:], remember=True, trashed="/here")
    store.forget_removed(ids)
    assert store.removed() == []
