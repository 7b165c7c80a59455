"""examples/service_client.py talks to a real service."""

import runpy
import sys
from pathlib import Path

from PIL import Image

CLIENT = Path(__file__).parents[2] / "examples" / "service_client.py"


def test_the_client_searches_and_puts_a_label_right_and_back(made, own_site, token, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HYPHASH_TOKEN", token)
    monkeypatch.setattr(sys, "argv", ["client", own_site, str(made.photo()), "person", str(tmp_path / "example")])
    runpy.run_path(str(CLIENT), run_name="__main__")
    *found, after = capsys.readouterr().out.splitlines()
    assert len(found) == 10
    assert "person" in after
    with Image.open(tmp_path / "example" / "service_client.png") as picture:
        assert picture.size == (850, 330)
