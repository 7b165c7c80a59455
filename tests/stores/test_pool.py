"""Connections that are kept: each is used by one at a time, and one that failed never again."""

import threading
from typing import Any

import pytest

from hyphash.errors import CollectionError
from hyphash.stores.pool import Pool


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool() -> Pool[Connection]:
    return Pool(Connection, OSError, "/my/photos")


def used(pool: Pool[Connection], error: BaseException | None = None) -> Connection:
    with pool.connection() as connection:
        if error:
            raise error
        return connection


def test_a_connection_is_used_again_by_whoever_comes_next(pool: Pool[Connection]) -> None:
    first = used(pool)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(used(pool)))
    thread.start()
    thread.join()
    assert found == [first]
    with pool.connection() as one, pool.connection() as other:
        assert one is first
        assert other is not first


def test_one_that_failed_is_closed_and_one_whose_user_failed_is_kept(pool: Pool[Connection]) -> None:
    first = used(pool)
    with pytest.raises(KeyError):
        used(pool, KeyError())
    assert used(pool) is first
    with pytest.raises(OSError, match="gone"):
        used(pool, OSError("gone"))
    assert first.closed
    assert used(pool) is not first


def test_a_closed_pool_gives_none_and_closes_what_comes_back(pool: Pool[Connection]) -> None:
    idle = used(pool)
    with pool.connection() as one, pool.connection() as other:
        pool.close()
    assert idle in (one, other)
    assert one.closed
    assert other.closed
    with pytest.raises(CollectionError, match="/my/photos: this collection was closed; open it again"):
        used(pool)


def test_idle_ones_can_be_closed_alone(pool: Pool[Connection]) -> None:
    first = used(pool)
    pool.close_idle()
    assert first.closed
    assert not used(pool).closed
