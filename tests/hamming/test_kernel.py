"""The kernel under the compiler's sanitizers, on random problems."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from hyphash import hamming

KERNEL = Path(hamming.__file__).parent / "kernel"
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
SECONDS = os.environ.get("HYPHASH_FUZZ_SECONDS", "4")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here to build the fuzzer with")
def test_fuzzer_finds_nothing_under_sanitizers(tmp_path):
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-pthread"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{KERNEL}"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mpopcnt")
    program = tmp_path / "fuzz"
    source = Path(__file__).with_name("fuzz.cpp")
    built = subprocess.run([COMPILER, *flags, source, "-o", program], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program, SECONDS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "problems solved" in ran.stdout
