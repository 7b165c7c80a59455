"""Learning from what people said, as the page asks for it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from hyphash.config import write_toml
from hyphash.refining import Gain, Refinement, Stage, note

Get = Callable[..., Any]


def test_says_what_was_said_and_what_it_gained(writer: TestClient, own: Path, get: Get) -> None:
    before = get(writer, "/api/refine")
    assert before["said"] == before["since"] > 50
    assert (before["enough"], before["running"], before["last"]) == (True, False, None)
    gain = Gain(before=0.5, after=0.75, low=0.1, high=0.4, p=0.01)
    said = before["said"] - 3
    result = Refinement(
        moved=True, when="2026-01-01T00:00:00.000Z", said=said, photos=60, held_out=6, labels=4, search=gain,
        suggestions=gain,
    )  # fmt: skip
    write_toml(own / "refined.toml", result)
    writer.post("/api/photos/61/accept", json={"label": "cat"})
    after = get(writer, "/api/refine")
    assert (after["since"], after["enough"]) == (4, False)
    assert after["last"]["search"] == {"before": 0.5, "after": 0.75, "low": 0.1, "high": 0.4, "p": 0.01}


def test_begins_in_a_process_of_its_own_and_tells_how_it_ends(writer: TestClient, own: Path, get: Get) -> None:
    """This hasher runs on ONNX and cannot be trained further, which is said."""
    begun = writer.post("/api/refine")
    assert begun.status_code == 202, begun.text
    assert begun.json()["running"]
    again = writer.post("/api/refine")
    assert again.status_code == 409
    for _ in range(600):
        if not (now := get(writer, "/api/refine"))["running"]:
            break
        time.sleep(0.1)
    assert "runs on ONNX" in now["error"]
    assert now["last"] is None


def test_shows_work_that_others_do(writer: TestClient, own: Path, get: Get) -> None:
    note(own, Stage("photos", 64, 400, process=os.getpid()))
    now = get(writer, "/api/refine")
    assert (now["running"], now["what"], now["done"], now["total"]) == (True, "photos", 64, 400)


def test_needs_the_token(reader: TestClient) -> None:
    assert reader.post("/api/refine").status_code == 403
    assert reader.get("/api/refine").status_code == 200
