"""The kernel under the compiler's sanitizers, on random problems."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import programs
import pytest

from hyphash import hamming

KERNEL = Path(hamming.__file__).parent / "kernel"
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
SECONDS = os.environ.get("HYPHASH_FUZZ_SECONDS", "4")


FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-pthread", f"-I{KERNEL}"]


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here to build the fuzzer with")
def test_fuzzer_finds_nothing_under_sanitizers(tmp_path):
    flags = [*FLAGS, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-mpopcnt")
    program = built(tmp_path, [COMPILER, *flags])
    assert "problems solved" in output([program, SECONDS])


@pytest.mark.slow
@pytest.mark.needs("g++-aarch64-linux-gnu", "qemu-user")
def test_fuzzer_finds_nothing_on_an_emulated_arm(tmp_path):
    program = built(tmp_path, [programs.program("g++-aarch64-linux-gnu"), *FLAGS, "-O2", "-static"])
    assert "problems solved" in output([programs.program("qemu-user"), program, SECONDS])


def built(folder, compiler):
    program = folder / "fuzz"
    output([*compiler, Path(__file__).with_name("fuzz.cpp"), "-o", program])
    return program


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
