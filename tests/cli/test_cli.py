"""The command line as a whole: help without torch, exit codes, errors in one line."""

import re
import subprocess
import sys

import pytest

from hyphash.cli import app

COMMANDS = (
    [], ["start"], ["refine"], ["watch"],
    ["train"], ["tune"], ["evaluate"], ["compare"], ["reproduce"], ["index"], ["search"], ["tag"], ["serve"],
    ["export"], ["publish"], ["encode"], ["plan"], ["reindex"], ["collection"], ["data"], ["data", "inspect"],
    ["data", "sample"], ["capacity"], ["losses"], ["backbones"], ["datasets"], ["doctor"],
)  # fmt: skip


def test_no_help_imports_torch_or_numpy():
    program = f"""
import sys
from typer.testing import CliRunner
from hyphash.cli import app
for command in {COMMANDS!r}:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, (command, result.output)
    assert "Usage" in result.output
heavy = sorted({{"torch", "torchvision", "timm", "numpy", "matplotlib"}} & set(sys.modules))
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_command_is_listed_above():
    groups = {name for group in app.registered_groups for name in [group.name]}
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert commands | groups <= {command[0] for command in COMMANDS if command}


def test_help_groups_the_commands_and_shows_defaults(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    told = run("--help").out
    places = [told.index(f"─ {panel} ─") for panel in ("Every day", "Research", "Care", "Scale")]
    assert places == sorted(places)
    assert "─ Commands ─" not in told
    for command, default in (("train", "48"), ("search", "a GPU if there is one"), ("serve", "127.0.0.1")):
        assert f"[default: {default}]" in run(command, "--help").out


def test_version(run):
    import hyphash

    assert re.fullmatch(
        rf"hyphash {re.escape(hyphash.__version__)}( \(commit [0-9a-f]{{7,}}\))?", run("--version").out.strip()
    )


def test_bad_input_is_one_line_and_exit_2(run, tmp_path):
    ran = run("train", tmp_path / "nowhere")
    assert ran.code == 2
    assert "nowhere" in ran.err
    assert "Traceback" not in ran.err


def test_usage_errors_exit_with_2_as_well(run):
    assert run("search").code == 2
    assert run("capacity", "--bits", "0", "--classes", "3").code == 2
    assert run("no-such-command").code == 2


def test_an_internal_failure_exits_with_1_and_shows_where(run, monkeypatch):
    monkeypatch.setattr("hyphash.coding.capacity", lambda **_: 1 / 0)
    ran = run("capacity", "--bits", "4", "--classes", "3")
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.err
    assert "report" in ran.err


def test_a_command_without_its_packages_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    def needs_torch(**_: object) -> int:
        import torch

        return torch.get_num_threads()

    monkeypatch.setattr("hyphash.coding.capacity", needs_torch)
    ran = run("capacity", "--bits", "4", "--classes", "3")
    assert ran.code == 2
    assert "pip install 'hyphash[train]'" in ran.err


def test_an_interrupt_exits_with_130(run, monkeypatch):
    def interrupt(**_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hyphash.coding.capacity", interrupt)
    ran = run("capacity", "--bits", "4", "--classes", "3")
    assert ran.code == 130
    assert ran.err == "hyphash: stopped\n"


@pytest.mark.parametrize("name", ["Codes", "Collection", "Hasher", "average_precision", "capacity", "codebook"])
def test_public_names_are_there_and_documented(name):
    import hyphash

    assert name in dir(hyphash)
    assert getattr(hyphash, name).__doc__


def test_importing_hyphash_imports_nothing_heavy():
    program = "import sys, hyphash; assert not {'torch', 'numpy'} & set(sys.modules); hyphash.margin(classes=9, bits=8)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_unknown_public_name_is_an_attribute_error():
    import hyphash

    with pytest.raises(AttributeError, match="Hashr"):
        _ = hyphash.Hashr
