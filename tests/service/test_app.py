"""The service as a whole: health, metrics, logs, faults, its description. The routes have files of their own."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hyphash.service import ServedCollection, Settings, create_app
from hyphash.service.monitoring import JsonLines


def test_health_and_readiness(own: Path, get: Callable[..., Any]) -> None:
    served = ServedCollection.open(own, Settings())
    with TestClient(create_app(served), base_url="http://localhost", raise_server_exceptions=False) as client:
        assert get(client, "/health") == get(client, "/ready") == {"status": "ok"}
        served.collection.store.close()
        assert client.get("/ready").status_code == 500
        assert get(client, "/health") == {"status": "ok"}


def test_metrics_count_requests_by_route(reader: TestClient, made: Any) -> None:
    def value(name: str) -> float:
        lines = [line for line in reader.get("/metrics").text.splitlines() if line.startswith(name + " ")]
        return float(lines[0].split()[1]) if lines else 0.0

    route = 'hyphash_requests_total{method="GET",route="/api/photos/{id}",status="404"}'
    batches = "hyphash_batch_photos_sum"
    before, encoded = value(route), value(batches)
    for id in (4444, 5555):
        assert reader.get(f"/api/photos/{id}").status_code == 404
    reader.post("/api/search", files={"photo": made.photo().read_bytes()})
    assert value(route) == before + 2
    assert value(batches) == encoded + 1
    assert value("hyphash_photos") == 66
    reader.get("/api/invented/9999")
    assert "invented" not in reader.get("/metrics").text


def test_figures_and_schema_are_for_those_with_the_token(refused: TestClient) -> None:
    for path in ("/metrics", "/openapi.json"):
        assert refused.get(path).status_code == 200
        answer = refused.get(path, headers={"Authorization": "Bearer wrong"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/health", "/ready", "/"):
        assert refused.get(path, headers={"Authorization": ""}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/api/photos/1", "/api/photos/1/thumbnail", "/api/search?label=dog"])
def test_head_is_get_without_its_body(reader: TestClient, path: str) -> None:
    head, whole = reader.head(path), reader.get(path)
    assert (head.status_code, head.content) == (whole.status_code, b"") == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


def test_logs_are_lines_of_json(reader: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hyphash.service"):
        reader.get("/api/photos/4444%0a%22x", headers={"Authorization": "Bearer secret"})
        reader.get("/health")
    assert len(caplog.records) == 1  # the health of the service is not news
    line = JsonLines().format(caplog.records[0])
    assert "\n" not in line
    assert "secret" not in line
    facts = json.loads(line)
    assert facts["path"] == '/api/photos/4444\n"x'
    assert (facts["level"], facts["event"], facts["method"], facts["status"]) == ("info", "request", "GET", 422)
    assert facts["ms"] > 0


def test_faults_of_ours_are_admitted_without_their_details(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedCollection.open(own, Settings())
    monkeypatch.setattr(served.collection, "get", lambda _: 1 / 0)
    with TestClient(create_app(served), base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/api/photos/1")
        assert answer.status_code == 500
        assert "ZeroDivisionError" not in answer.text
        assert "fault" in answer.json()["error"]
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert 'route="/api/photos/{id}",status="500"' in client.get("/metrics").text


def test_nothing_is_described_that_loads_from_elsewhere(reader: TestClient) -> None:
    assert reader.get("/openapi.json").json()["info"]["title"] == "hyphash"
    assert reader.get("/docs").status_code == reader.get("/redoc").status_code == 404
