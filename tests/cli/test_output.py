"""What commands print, and what Ctrl-C does to them."""

import pytest

from hyphash.cli.output import counting, print_found, print_problems, print_records
from hyphash.errors import StoppedError
from hyphash.photos import Problem


def test_a_table_shows_numbers_as_people_write_them_and_json_as_they_are(capsys):
    records = [{"name": "[bold]", "count": 12345, "share": 0.5, "options": {"beta": 1.0, "tanh": True}, "hidden": 1}]
    columns = {"name": "method", "count": "photos", "share": "share", "options": "options"}
    print_records(records, columns, as_json=False)
    table = capsys.readouterr().out
    assert all(text in table for text in ("method", "[bold]", "12,345", "0.5000", "beta=1.0, tanh=True"))
    assert "hidden" not in table
    print_records(records, columns, as_json=True)
    told = capsys.readouterr().out
    assert '"count": 12345' in told
    assert '"hidden": 1' in told
    print_found({"Ärger": 1}, ("label", "photos"), [("Ärger", 1)], as_json=True)
    assert "Ärger" in capsys.readouterr().out


def test_of_many_problems_the_first_are_shown(capsys):
    print_problems(())
    assert capsys.readouterr().err == ""
    print_problems(["torn"])
    assert capsys.readouterr().err == "1 photo left out:\n  torn\n"
    print_problems([Problem(f"{i}.jpg", f"{i}.jpg: torn") for i in range(12)])
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("12 photos left out:", "  0.jpg: torn", "  … and 2 more")
    assert len(lines) == 12


def interrupted(done=0, **options):
    with counting("photos", **options) as progress:
        if done:
            progress(done, 1000)
        raise KeyboardInterrupt


def test_work_that_is_kept_says_how_far_it_came(tmp_path):
    with pytest.raises(StoppedError, match="stopped before any photos were done; give the same command again"):
        interrupted(into=tmp_path)
    with pytest.raises(StoppedError, match="stopped after 7 of 1,000 photos, which are kept"):
        interrupted(7, into=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupted(7)


def test_progress_is_told_in_lines_where_nobody_looks_at_a_terminal(capsys, monkeypatch):
    with counting("photos") as progress:
        for done in (1, 1000, 2000):
            progress(done, 2000)
    assert capsys.readouterr().err == "2,000 of 2,000 photos\n"
    monkeypatch.setattr("hyphash.cli.output.EVERY", 0)
    with counting("photos") as progress:
        for done in (1000, 2000):
            progress(done, 2000)
    assert capsys.readouterr().err == "1,000 of 2,000 photos\n2,000 of 2,000 photos\n"
