def test_a_path_is_one_photo_and_keeps_its_id(searcher: Searcher) -> None:
    ids, codes = fill(searcher.store, 4)
    changed = replace(photos_with(codes)[2], content="ff" * 32, code=codes.packed[0].tobytes())
    assert searcher.store.upsert([changed], fingerprint=ME) == [ids[2]]
    assert searcher.store.count() == 4
    after = searcher.store.get([ids[2]])[0]
    assert (after.content, after.code) == (changed.content, changed.code)
    found = searcher.search(codes[0], 2, fingerprint=ME)
    assert found.ids.tolist() == [ids[0], ids[2]]
    assert found.distances.tolist() == [0, 0]


def test_removed_photos_are_gone_everywhere(searcher: Searcher) -> None:
    ids, codes = fill(searcher.store, 12)
    assert searcher.store.remove([ids[0], ids[6], 10**9]) == 2
    assert searcher.store.remove([ids[0]]) == 0
    assert searcher.store.get(ids) == searcher.store.get([id for id in ids if id not in (ids[0], ids[6])])
    assert searcher.store.labels() == {"two": 4, "three": 2}
    assert ids[0] not in searcher.search(codes[0], 12, fingerprint=ME).ids
    assert searcher.search(codes[0], 12, fingerprint=ME).total == 10
    assert searcher.store.count(carrying=["two"]) == 4


@pytest.mark.parametrize("distinct", [None, 9])
def test_ranking_is_by_distance_then_id(searcher: Searcher, distinct: int | None) -> None:
    ids, codes = fill(searcher.store, 300, distinct=distinct)
    for query in range(3):
        expected = sorted(zip(codes[query].distances(codes)[0].tolist(), ids, strict=True))
        found = searcher.search(codes[query], 300, fingerprint=ME)
        assert list(zip(found.distances.tolist(), found.ids.tolist(), strict=True)) == expected
        assert found.total == 300


def test_ranking_stays_right_while_photos_come_change_and_go(searcher: Searcher) -> None:
    """The naive twin is a dictionary; every kind of change happens between two searches."""
    ids, codes = fill(searcher.store, 50)
    truth = {id: row.tobytes() for id, row in zip(ids, codes.packed, strict=True)}
    rng = np.random.default_rng(1)
    for round in range(12):
        new = photos_with(random_codes(4, seed=round + 10), start=1000 + 4 * round)
        truth |= {id: photo.code for id, photo in zip(searcher.store.upsert(new, fingerprint=ME), new, strict=True)}
        changed = [
            replace(photo, code=random_codes(1, seed=round + 50).packed[0].tobytes())
            for photo in searcher.store.get(rng.only(list(truth), 3, replace=False).tolist())
        ]
        truth |= {id: photo.code for id, photo in zip(searcher.store.upsert(changed, fingerprint=ME), changed, strict=True)}
        gone = rng.only(list(truth), 2, replace=False).tolist()
        assert searcher.store.remove(gone) == 2
        for id in gone:
            del truth[id]
        if round % 4 == 3:
            searcher.settle()
        query = random_codes(1, seed=round + 100)
        database = Codes(np.frombuffer(b"".join(truth.values()), np.uint8).reshape(len(truth), -1), BITS)
        expected = sorted(zip(query.distances(database)[0].tolist(), truth, strict=True))[:20]
        found = searcher.search(query, 20, fingerprint=ME)
        assert list(zip(found.distances.tolist(), found.ids.tolist(), strict=True)) == expected
    scanned = {int(id): row.tobytes() for ids, part in searcher.store.scan() for id, row in zip(ids, part.packed, strict=True)}
    assert scanned == truth


def test_pages_put_together_are_the_whole_ranking(searcher: Searcher) -> None:
    _, codes = fill(searcher.store, 100, distinct=7)
    whole = searcher.search(codes[5], 100, fingerprint=ME)
    pages = [searcher.search(codes[5], 30, offset=offset, fingerprint=ME) for offset in range(0, 150, 30)]
    assert np.concatenate([page.ids for page in pages]).tolist() == whole.ids.tolist()
    assert [len(page.ids) for page in pages] == [30, 30, 30, 10, 0]
    assert {page.total for page in pages} == {100}


def test_filters_leave_the_order_alone(searcher: Searcher) -> None:
    _, codes = fill(searcher.store, 60, distinct=8)
    whole = searcher.search(codes[1], 60, fingerprint=ME)
    labels = {photo.id: photo.labels for photo in searcher.store.page(0, 60)}
    for carrying in (("two",), ("two", "three"), ("two", "nobody")):
        found = searcher.search(codes[1], 60, only=Filter(carrying=carrying), fingerprint=ME)
        expected = [id for id in whole.ids.tolist() if set(carrying) <= set(labels[id])]
        assert found.ids.tolist() == expected
        assert found.total == len(expected) == searcher.store.count(carrying=carrying)
    tagged = searcher.search(codes[1], 60, only=Filter(tagged=True), fingerprint=ME)
    assert tagged.ids.tolist() == [id for id in whole.ids.tolist() if labels[id]]
    without = searcher.search(codes[1], 60, only=Filter(excluded=(int(whole.ids[0]),)), fingerprint=ME)
    assert without.ids.tolist() == whole.ids.tolist()[1:]
    near = searcher.search(codes[1], 60, only=Filter(radius=7), fingerprint=ME)
    assert near.ids.tolist() == whole.ids[whole.distances <= 7].tolist()
    assert near.total == np.count_nonzero(whole.distances <= 7)


def test_tables_rank_by_their_sums(searcher: Searcher) -> None:
    ids, codes = fill(searcher.store, 80, distinct=20)
    outputs = np.random.default_rng(3).normal(size=BITS).astype(np.float32)
    found = searcher.search(
        Codes.from_outputs(outputs[None]), 80, tables=hamming.byte_tables(outputs[None])[0], fingerprint=ME
    )
    sums = -(codes.signs().astype(np.float32) @ outputs)
    assert found.scores == pytest.approx(np.sort(sums), abs=1e-4)
    distance = dict(zip(ids, Codes.from_outputs(outputs[None]).distances(codes)[0].tolist(), strict=True))
    assert found.distances.tolist() == [distance[id] for id in found.ids.tolist()]


def test_codes_of_another_hasher_are_refused(searcher: Searcher) -> None:
    photos = photos_with(random_codes(2))
    with pytest.raises(OtherHasherError, match=r"made by the hasher 0123.*reindex"):
        searcher.store.upsert(photos, fingerprint="another")
    with pytest.raises(CodesError, match="bytes"):
        searcher.store.upsert([photos[0], replace(photos[1], code=b"1")], fingerprint=ME)
    with pytest.raises(CodesError, match="bits after the last"):
        searcher.store.upsert([replace(photos[1], code=b"\xff\xff\xff")], fingerprint=ME)
    assert searcher.store.count() == 0
    with pytest.raises(OtherHasherError):
        searcher.search(random_codes(1), 1, fingerprint="another")


def test_texts_of_any_spelling_are_only_texts(searcher: Searcher) -> None:
    texts = [
        "it's \"so\" `called`; DROP TABLE photos; --", "a\\b\\\\c\\'", "🐈\u200d⬛ 雪 é", "%s %(x)s {} {0}",
        " a or b and c ", "[a,b] {c}", "\n\r\t\x01\x7f\x85\u2028", "",
    ]  # fmt: skip
    photos = [
        replace(photo, path=f"/{text}", labels=(text,), given=(text, "x"), refused=(f"{text}!",))
        for photo, text in zip(photos_with(random_codes(len(texts))), texts, strict=True)
    ]
    ids = searcher.store.upsert(photos, fingerprint=ME)
    assert set(searcher.store.labels()) == set(texts)
    for id, photo, text in zip(ids, photos, texts, strict=True):
        (found,) = searcher.store.find(paths=[photo.path])
        assert (found.id, found.path, found.labels, found.refused) == (id, photo.path, (text,), photo.refused)
        assert set(found.given or ()) == {text, "x"}
        only = Filter(carrying=(text,))
        assert searcher.search(random_codes(1), 9, only=only, fingerprint=ME).ids.tolist() == [id]
        assert [other.id for other in searcher.store.page(0, 9, carrying=[text])] == [id]
    assert searcher.verify() == []


def test_names_that_are_no_text_are_refused_by_all_alike(searcher: Searcher) -> None:
    """File systems allow names that are not UTF-8; Python holds them with half a surrogate."""
    odd, (good, photo) = "a\udcff", photos_with(random_codes(2))
    searcher.store.upsert([good], fingerprint=ME)
    for change in ({"path": odd}, {"labels": (odd,)}, {"given": (odd,)}, {"refused": (odd,)}):
        changed: Photo = replace(photo, **change)  # type: ignore[arg-type]
        with pytest.raises(CollectionError, match=r"udcff.*is no proper text \(UTF-8\)"):
            searcher.store.upsert([replace(photo, path="/beside"), changed], fingerprint=ME)
    with pytest.raises(CollectionError, match="no proper text"):
        searcher.store.relabel(1, lambda photo: replace(photo, labels=(odd,)))
    questions: list[Callable[[], object]] = [
        lambda: searcher.store.find(paths=[odd]),
        lambda: searcher.store.count(carrying=[odd]),
        lambda: searcher.store.page(0, 9, carrying=[odd]),
        lambda: searcher.search(random_codes(1), 9, only=Filter(carrying=(odd,)), fingerprint=ME),
    ]
    for question in questions:
        with pytest.raises(CollectionError, match="no proper text"):
            question()
    assert [found.path for found in searcher.store.page(0, 9)] == [good.path]
    assert searcher.verify() == []


def test_an_empty_searcher_answers(searcher: Searcher) -> None:
    found = searcher.search(random_codes(1), 5, fingerprint=ME)
    assert (len(found.ids), found.total) == (0, 0)
    assert searcher.search(random_codes(1), 5, only=Filter(radius=3, carrying=("a",)), fingerprint=ME).total == 0
    assert searcher.store.page(0, 10) == searcher.store.find(paths=["x"]) == searcher.store.get([1]) == []
    assert searcher.store.upsert([], fingerprint=ME) == []
    assert searcher.store.labels() == {}
    assert list(searcher.store.looks()) == []
    assert searcher.verify() == []


def coded(searcher: Searcher, codes: dict[int, bytes]) -> list[Photo]:
    """Photos as they are, with other codes."""
    return [replace(photo, code=codes[photo.id]) for photo in searcher.store.get(list(codes))]


def test_moving_to_another_hasher(searcher: Searcher) -> None:
    ids, old = fill(searcher.store, 10)
    new = {id: row.tobytes() for id, row in zip(ids, random_codes(10, bits=33, seed=5).packed, strict=True)}
    searcher.store.prepare("other", 33)
    assert [photo.id for photo in searcher.store.pending(4)] == ids[:4]
    searcher.store.put_coming(coded(searcher, {id: new[id] for id in ids[:6]}), fingerprint="other")
    assert [photo.id for photo in searcher.store.pending(99)] == ids[6:]
    searcher.store.prepare("other", 33)  # interrupted and taken up again: nothing is done twice
    assert [photo.id for photo in searcher.store.pending(99, after=ids[7])] == ids[8:]
    assert not searcher.store.switch("other")
    assert searcher.search(old[3], 1, fingerprint=ME).distances.tolist() == [0]  # the old one still answers

    late_codes = coded(searcher, {id: new[id] for id in (ids[1], ids[2], *ids[6:])})
    (late,) = searcher.store.upsert(photos_with(random_codes(1, seed=9), start=500), fingerprint=ME)  # came meanwhile
    edited = replace(searcher.store.get([ids[2]])[0], code=old.packed[0].tobytes(), content="ab" * 32)
    searcher.store.upsert([edited], fingerprint=ME)
    searcher.store.remove([ids[1]])
    searcher.store.put_coming(late_codes, fingerprint="other")  # one of them is gone, one shows what is no longer there
    assert not searcher.store.switch("other")
    assert [photo.id for photo in searcher.store.pending(99)] == [ids[2], late]
    with pytest.raises(CodesError):
        searcher.store.put_coming(coded(searcher, {late: b"12"}), fingerprint="other")
    del new[ids[1]]
    new[late] = new[ids[9]]
    searcher.store.put_coming(coded(searcher, {id: new[id] for id in (ids[2], late)}), fingerprint="other")
    assert searcher.store.switch("other")

    assert (searcher.store.state().fingerprint, searcher.store.state().bits) == ("other", 33)
    with pytest.raises(OtherHasherError):
        searcher.search(old[3], 1, fingerprint=ME)
    assert {photo.id: photo.code for photo in searcher.store.page(0, 99)} == new
    query = Codes(np.frombuffer(new[ids[4]], np.uint8)[None], 33)
    assert searcher.search(query, 1, fingerprint="other").ids.tolist() == [ids[4]]
    assert searcher.verify() == []
    searcher.compact()
    assert {photo.id: photo.code for photo in searcher.store.page(0, 99)} == new


def test_compact_changes_nothing_that_can_be_seen(searcher: Searcher) -> None:
    ids, codes = fill(searcher.store, 40)
    searcher.store.remove(ids[::4])
    before = searcher.store.page(0, 99), searcher.search(codes[2], 30, fingerprint=ME).ids.tolist(), searcher.store.labels()
    searcher.compact()
    assert (searcher.store.page(0, 99), searcher.search(codes[2], 30, fingerprint=ME).ids.tolist(), searcher.store.labels()) == before
    assert searcher.verify() == []


def test_an_searcher_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no searcher is called 'redis'"):
        searcher_for("redis://localhost/1")
