"""The pages say what is true: their code runs or is marked, commands exist, and the site builds without a warning.

A block of `sh` or `python` is run, in the order of the page, in a folder with photos, runs and a collection
(tests/setup/labelled.py). `<!-- not run: why -->` before a block leaves it out; `<!-- given … -->` holds Python that
the block takes for granted. Of shell blocks, lines of other programs and those that serve for ever are not run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from labelled import place, prepared, run_command  # noqa: F401 (fixtures)

from hyphash.cli import app
from hyphash.config import Config

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (not run|given)\b:?(.*?)-->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENDLESS = {"serve", "watch"}


@dataclass(frozen=True)
class Block:
    """Code on a page."""

    language: str
    code: str
    given: str = ""
    not_run: str | None = None  # why

    def commands(self) -> list[list[str]]:
        """Its lines that call hyphash, by itself or with -m, in words; a `#` begins a remark."""
        text = self.code.replace("\\\n", " ")
        lines = [shlex.split(line, comments=True) for line in text.splitlines() if "hyphash " in line]
        calls = []
        for words in lines:
            first = next((i for i, word in enumerate(words) if "=" not in word), 0)  # after TOKEN=…
            at = words.index("-m") + 1 if "-m" in words else first
            calls += [words[at:]] if words[at : at + 1] == ["hyphash"] and words[at + 1 :] else []
        return calls


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for mark, remark, language, code in BLOCK.findall(text):
        kind = language or ("sh" if re.search("^hyphash ", code, re.MULTILINE) else "text")
        given, not_run = remark if mark == "given" else "", remark.strip() if mark == "not run" else None
        found.append(Block(kind, code, given, not_run))
    return found


def to_run(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("sh", "python") and block.not_run is None]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)])
def test_code_on_a_page_runs_from_top_to_bottom(page, place):
    names: dict[str, Any] = {}
    for block in to_run(page):
        if block.language == "python":
            exec(compile(block.given + block.code, page, "exec"), names)
        for words in block.commands() if block.language == "sh" else ():
            if words[1] in ("train", "index") and "--into" in words:  # the page makes what the folder has already
                shutil.rmtree(words[words.index("--into") + 1], ignore_errors=True)
            if words[1] not in ENDLESS:
                run_command(words)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_on_a_page_exist(page):
    root = typer.main.get_command(app)
    for block in blocks(page):
        for words in block.commands() if block.language == "sh" else ():
            command, rest = root, words[1:]
            while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
                assert rest[0] in command.commands, f"{page}: {shlex.join(words)}"
                command, rest = command.commands[rest[0]], rest[1:]
            known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
            asked = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)}
            assert asked <= known, f"{page}: {shlex.join(words)}"


def test_blocks_that_are_not_run_say_why():
    marked = [(page, block.not_run) for page in PAGES for block in blocks(page) if block.not_run is not None]
    assert [page for page, why in marked if len(why) < 4] == []
    assert sum(len(to_run(page)) for page in PAGES) >= 8


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation site, built as `make docs-site` does: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_strictly_and_has_every_page(site):
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / f"{path.stem}.html").is_file()
    assert {"commands.html", "config.html", "http.html", "python.html"} <= {
        p.name for p in (site / "reference").iterdir()
    }


@pytest.mark.slow
def test_nothing_on_the_site_comes_from_elsewhere(site):
    """Links may lead elsewhere; scripts, styles, fonts and pictures may not come from there."""
    for page in site.rglob("*.html"):
        if page.name != "report.html":
            tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8"))
            fetched = [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)]
            assert [tag for tag in fetched if 'rel="canonical"' not in tag] == [], page
    assert not any("googleapis" in path.read_text(encoding="utf-8") for path in site.rglob("*.css"))


@pytest.mark.slow
def test_references_name_every_command_setting_route_and_public_name(site):
    import hyphash
    from hyphash.service.app import create_app

    text = {
        name: (site / "reference" / f"{name}.html").read_text() for name in ("commands", "config", "http", "python")
    }
    commands = typer.main.get_command(app).commands
    assert all(f"hyphash {name}" in text["commands"] for name in commands)
    assert all(f"<code>{name}</code>" in text["config"] for name in Config.__dataclass_fields__)
    paths = {route.path for route in create_app.__globals__["search"].router.routes}
    assert all(path in text["http"] for path in paths)
    assert all(f"hyphash.{home}.{name}" in text["python"] for name, home in hyphash._HOMES.items() if home)
