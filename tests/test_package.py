"""What pyproject.toml says about the package is so."""

import ast
import re
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = ROOT / "src" / "hyphash"
DATA = PROJECT["tool"]["setuptools"]["package-data"]["*"]
BUILT = {".py", ".pyi", ".cpp", ".hpp", ".so", ".pyd", ".pyc"}  # code, and what the kernel is built from
NAMES = {"pillow": "PIL", "tomli-w": "tomli_w"}  # package → module, where they differ


def files() -> list[Path]:
    return [path for path in SOURCES.rglob("*") if path.is_file() and path.suffix not in BUILT]


@pytest.mark.parametrize("pattern", DATA)
def test_every_pattern_of_package_data_matches_a_file(pattern):
    assert any(fnmatch(path.name, pattern) for path in files())


def test_every_file_that_is_no_code_goes_into_the_package():
    left_out = [path for path in files() if not any(fnmatch(path.name, pattern) for pattern in DATA)]
    assert left_out == []


def test_what_the_command_line_imports_is_declared():
    """Without an extra: the packages that modules of the command line import are dependencies of the package."""
    declared = {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}
    modules = {NAMES.get(name, name) for name in declared}
    asked = set()
    for path in (SOURCES / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                asked |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                asked.add(node.module.partition(".")[0])
    assert asked - set(sys.stdlib_module_names) - {"hyphash", "torch"} <= modules  # `doctor` looks for torch


def test_the_version_is_the_same_everywhere():
    import hyphash

    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)[1]
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    conda = re.search(r'set version = "(.+)"', recipe)[1]
    assert {PROJECT["project"]["version"], cited, conda} == {hyphash.__version__}


def test_the_recipe_of_conda_asks_for_the_same_packages():
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    run = re.search(r"^  run: \[(.+)\]$", recipe, re.MULTILINE)[1].split(", ")
    assert {line.replace(" ", "") for line in run} == {"python>=3.11", *PROJECT["project"]["dependencies"]}
