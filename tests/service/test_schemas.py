"""What is read and written without FastAPI's and pydantic's help is what they would read and write."""

from pathlib import PurePath
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from hyphash.collection import Match, Ranking
from hyphash.service.schemas import MatchAnswer, SearchAnswer, SearchQuery, file_name, search_query

QUERIES = [
    "", "?", "label=dog", "label=dog&label=cat&k=3", "label=", "label=+dog+", "label=%00", "label=%ff", "label[]=dog",
    "label=Cafe%CC%81", "label=" + "x" * 201, "&".join(["label=a"] * 51), "k=", "k=0", "k=x", "k=5&k=7", "k=5.0",
    "like=0", "like=1.5", "like=1&like=3", "LIKE=1", "rank=x", "rank=asymmetric", "radius=-1", "radius=256",
    "place=" + "a" * 9000, "offset=100001", "foo=1", "foo=1&foo=2&k=x", "zz=1&k=x&aa=2", "zz=1&aa=2&unwanted=",
]  # fmt: skip


@pytest.fixture(scope="module")
def fastapi_reads() -> Any:
    """What FastAPI itself makes of a query: what is asked for, or the faults that it finds."""
    app = FastAPI()
    seen: list[Any] = []

    @app.get("/")
    async def search(query: Annotated[SearchQuery, Query()]) -> None:
        seen.append(query)

    @app.exception_handler(RequestValidationError)
    async def explain(_: Any, error: RequestValidationError) -> Any:
        from starlette.responses import Response

        seen.append([(fault["loc"], fault["msg"]) for fault in error.errors()])
        return Response(status_code=422)

    client = TestClient(app)

    def read(query: str) -> Any:
        client.get(f"/?{query}")
        return seen.pop()

    return read


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_read_as_fastapi_reads_it(query: str, fastapi_reads: Any) -> None:
    try:
        found: Any = search_query(query)
    except RequestValidationError as error:
        found = [(fault["loc"], fault["msg"]) for fault in error.errors()]
    assert found == fastapi_reads(query)


WORDS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=3).map(tuple)
SCORES = st.floats(-1e6, 1e6) | st.sampled_from([-0.0, 1e-5, 1.0, float("nan"), float("inf")])
MATCHES = st.builds(
    Match, st.integers(1, 2**53), st.text(st.characters(codec="utf-8")), st.integers(0, 256), SCORES, WORDS, WORDS
)


@given(st.lists(MATCHES, max_size=4), st.integers(0, 10**5), WORDS, st.none() | st.text("ab.-_"))
def test_an_answer_is_written_as_its_model_would_be(
    matches: list[Match], offset: int, asked: tuple[str, ...], place: str | None
) -> None:
    model = SearchAnswer(
        matches=[
            MatchAnswer(
                id=match.id, name=file_name(match.path), distance=match.distance, score=round(match.score, 4),
                labels=list(match.labels), shared=list(match.shared),
            )
            for match in matches
        ],
        offset=offset, total=offset + 9, asked=list(asked), place=place,
    )  # fmt: skip
    written = SearchAnswer.json_of(Ranking(tuple(matches), offset, offset + 9, asked), place)
    assert written == model.model_dump_json().encode()


@given(st.text(st.sampled_from("a./\\ é")))
def test_a_file_is_called_what_its_path_calls_it(path: str) -> None:
    assert file_name(path) == (PurePath(path).name or path)
