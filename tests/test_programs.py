"""What `make test` says about programs that are not there (tests/setup/programs.py)."""

import io
import subprocess
import sys

import programs
import pytest


def test_where_nothing_can_be_installed_one_line_says_what_to_install(tmp_path, monkeypatch):
    done = subprocess.run(
        [sys.executable, programs.__file__], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert line.split(": ")[1].split() == programs.missing()
    assert "chromium" in line
    assert done.stderr == ""


@pytest.mark.parametrize("root", [True, False])
def test_what_is_missing_is_installed_as_root_or_with_sudo(tmp_path, monkeypatch, root):
    """An apt-get that writes down how it was called, and a sudo that does as it is told."""
    written = {"apt-get": 'echo "$DEBIAN_FRONTEND $*" >> calls', "sudo": 'echo "sudo $1" >> calls; shift; exec "$@"'}
    for name, script in written.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody there to give a password
    assert programs.install(["one", "two"])
    quiet = "noninteractive -qq -o Dpkg::Use-Pty=0"
    apt = [f"{quiet} update", f"{quiet} install -y --no-install-recommends one two"]
    sudo = ["sudo --non-interactive"]
    assert (tmp_path / "calls").read_text().splitlines() == (apt if root else [*sudo, apt[0], *sudo, apt[1]])
