"""The light half of the house works where there is no torch: an environment from which it is hidden."""

import json
import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
HEAVY = {
    "networks",
    "guesses",
    "losses",
    "training",
    "tuning",
    "benchmarks",
    "publishing",
}  # may ask for torch when imported


def without_torch(program: str, *arguments: object) -> str:
    """What a program prints that cannot import torch."""
    command = [sys.executable, "-c", WITHOUT_TORCH + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_hidden():
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        without_torch("import torch")


def test_every_module_of_the_light_half_can_be_imported():
    told = without_torch(f"""
import importlib, json, pkgutil
import hyphash
asked = {{}}
for module in pkgutil.walk_packages(hyphash.__path__, "hyphash."):
    if module.name.split(".")[1] in {HEAVY!r} or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        asked[module.name] = str(error)
print(json.dumps(asked))
""")
    assert json.loads(told) == {}


def test_public_names_that_need_no_torch():
    told = without_torch("""
import hyphash
codes = hyphash.Codes.from_bits([[0, 1, 1], [1, 1, 1]])
distances, ids = hyphash.hamming.search(codes, codes, k=2)
print(distances.tolist(), ids.tolist(), hyphash.capacity(bits=8, classes=3))
""")
    assert told.strip() == "[[0, 1], [0, 1]] [[0, 1], [1, 0]] 8"


@pytest.mark.parametrize("command", [["--help"], ["search", "--help"], ["capacity", "--bits", "12", "--classes", "20"]])
def test_commands_that_need_no_torch(command):
    assert without_torch("from hyphash.cli import main; main()", *command)
