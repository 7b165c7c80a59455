"""What takes long is found once for each commit."""

from threading import Thread

from hyphash.service.cache import CommitCache


def test_values_are_found_once_for_each_commit() -> None:
    commit, found = 1, []
    cache = CommitCache(lambda: commit)

    def find() -> int:
        found.append(commit)
        return commit

    askers = [Thread(target=cache.get, args=(("a",), find)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [1]
    commit = 2
    while cache.get(("a",), find) != 2:  # a moment longer than it took to find
        pass
    assert found == [1, 2]
    assert cache.get(("b",), lambda: "other") == "other"
    for i in range(100):  # whoever asks for many different ones does not fill the memory
        assert cache.get(("map", i), lambda i=i: i) == i  # type: ignore[misc]
    assert len(cache._kept) <= 17
