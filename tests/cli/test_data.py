"""`hyphash data`"""

import json

import pytest


def test_sample_is_drawn_once(run, tmp_path):
    made = run("data", "sample", tmp_path / "s", "--train", 4, "--queries", 2)
    assert made.code == 0
    assert made.out.startswith("drawn")
    again = run("data", "sample", tmp_path / "s", "--train", 4, "--queries", 2)
    assert again.out.startswith("already there")


def test_inspect_counts_what_is_there(run, sample):
    record = json.loads(run("data", "inspect", sample, "--json").out)
    assert record["parts"] == {"train": 60, "queries": 12, "database": 60}
    assert record["classes"] == 20
    assert record["unreadable"] == {}
    table = run("data", "inspect", sample, "--no-check").out
    assert "photos with several labels" in table
    assert "η" in table


def test_inspect_draws_the_labels_that_occur_together(run, sample, tmp_path):
    assert run("data", "inspect", sample, "--no-check", "--plot", tmp_path / "labels.png").code == 0
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_goes_on_past_what_cannot_be_used(run, tmp_path):
    from PIL import Image

    for red, name in enumerate("abc"):
        Image.new("RGB", (8, 8), (red, 0, 0)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    rows = ["image,labels", "a.png,x|y", "b.png,y", "c.png,x", "gone.png,x", "broken.jpg,y", "a.png,x|y"]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    ran = run("data", "inspect", tmp_path / "labels.csv")
    assert ran.code == 0
    assert "broken.jpg" in ran.err
    assert "label rows without a photo" in ran.out


@pytest.mark.parametrize("what", ["empty", "file"])
def test_inspect_refuses_what_is_no_dataset(run, tmp_path, what):
    path = tmp_path
    if what == "file":
        path = tmp_path / "notes.txt"
        path.write_text("hello")
    ran = run("data", "inspect", path)
    assert ran.code == 2
    assert str(path) in ran.err
