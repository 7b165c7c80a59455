"""The door turns away uploads beyond its limit, and says when to come again."""

import asyncio
from typing import Any

from hyphash.service.middleware import Guard
from hyphash.service.settings import Settings


def upload_scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/api/search", "headers": [(b"host", b"localhost")]}


def test_too_many_uploads_at_once_are_told_to_come_again() -> None:
    release, statuses = asyncio.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"photo"
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"photo", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append((message["status"], dict(message["headers"]).get(b"retry-after")))

    async def main() -> None:
        guard = Guard(app, Settings(uploads=2))
        begun = [asyncio.create_task(guard(upload_scope(), receive, send)) for _ in range(2)]
        await asyncio.sleep(0)
        await guard(upload_scope(), receive, send)
        assert statuses == [(503, b"2")]
        release.set()
        await asyncio.gather(*begun)
        await guard(upload_scope(), receive, send)  # there is room again
        assert statuses[1:] == [(200, None)] * 3

    asyncio.run(main())


def test_slow_senders_take_no_place_of_others() -> None:
    statuses = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"photo", "more_body": False}

    async def slowly() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def main() -> None:
        guard = Guard(app, Settings(uploads=2))
        slow = [asyncio.create_task(guard(upload_scope(), slowly, send)) for _ in range(32)]
        await asyncio.sleep(0)
        await guard(upload_scope(), receive, send)
        assert statuses == [200]
        for task in slow:
            task.cancel()

    asyncio.run(main())


def test_bytes_that_are_here_are_limited_for_all_together() -> None:
    statuses = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("none is whole")

    def most_of_a_photo() -> Any:
        parts = [b"x" * 90_000]

        async def receive() -> Any:
            if not parts:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": parts.pop(), "more_body": True}

        return receive

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def main() -> None:
        guard = Guard(app, Settings(max_upload=100_000))
        senders = [asyncio.create_task(guard(upload_scope(), most_of_a_photo(), send)) for _ in range(20)]
        await asyncio.sleep(0.01)
        assert set(statuses) == {503}
        assert guard._bytes <= 8 * 100_000 + 2**16
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        assert guard._bytes == 0

    asyncio.run(main())


def test_body_comes_whole_however_it_was_cut() -> None:
    parts = [b"a" * 10, b"", b"b" * 5]
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(await receive())

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        raise AssertionError("nothing to say")

    asyncio.run(Guard(app, Settings())(upload_scope(), receive, send))
    assert seen == [{"type": "http.request", "body": b"a" * 10 + b"b" * 5, "more_body": False}]
