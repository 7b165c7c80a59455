"""`hyphash tune`"""

import json

import pytest

SMALL = (
    *("--backbone", "timm:test_resnet", "--set", "weights=none", "--set", "size=32", "--set", "hidden=16"),
    *("--bits", 12, "--folds", 2, "--device", "cpu", "--jobs", 1),
)


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('title = "Small"\n[[question]]\nname = "rates"\nsettings = { epochs = 1, rate = [0.1, 0.2] }\n')
    return file


def test_a_file_of_questions_is_answered_once(run, sample, questions, tmp_path):
    command = ("tune", sample, "--trials", questions, "--into", tmp_path / "study", "--cache", tmp_path / "c", *SMALL)
    ran = run(*command)
    assert ran.code == 0, ran.err
    lines = (tmp_path / "study" / "trials.jsonl").read_text()
    assert [json.loads(line)["settings"]["rate"] for line in lines.splitlines()] == [0.1, 0.2]
    page = (tmp_path / "study" / "report.html").read_text()
    assert "<h1>Small" in page
    assert "rates" in page
    assert run(*command).code == 0
    assert (tmp_path / "study" / "trials.jsonl").read_text() == lines


@pytest.mark.slow
def test_a_search_ends_with_a_config_that_trains(run, sample, tmp_path, monkeypatch):
    from hyphash.cli import tune as command
    from hyphash.tuning import search

    monkeypatch.setattr(search, "space_of", lambda _: {"rate": search.Range(0.01, 0.5), "epochs": (1, 2)})
    into = tmp_path / "study"

    class Clock:  # the time is up after three trials
        def monotonic(self):
            file = into / "trials.jsonl"
            return 1e9 if file.is_file() and len(file.read_text().splitlines()) >= 3 else 0.0

    monkeypatch.setattr(command, "time", Clock())
    ran = run("tune", sample, "--into", into, "--cache", tmp_path / "c", *SMALL, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert set(found) == {"config", "recipe", "found", "importance"}
    assert (into / "report.html").is_file()
    ran = run("train", sample, "--config", into / "config.toml", "--into", tmp_path / "run", "--cache", tmp_path / "c")
    assert ran.code == 0, ran.err


def test_a_file_that_asks_nothing_is_refused(run, sample, tmp_path):
    (tmp_path / "empty.toml").write_text('title = "nothing"\n')
    ran = run("tune", sample, "--trials", tmp_path / "empty.toml", "--cache", tmp_path / "c", *SMALL)
    assert ran.code == 2
    assert "asks nothing; write [[question]] tables" in ran.err
