"""The kernel under the compiler's sanitizers, on random problems."""

import os
import platform
import shutil
import subprocess
import sysconfig
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


WINDOWS = """
#define MS_WINDOWS
#define MS_WIN64
#define HAVE_PY_SSIZE_T 1
typedef __int64 Py_ssize_t;
#define PY_SSIZE_T_MAX INT64_MAX
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_INT 4
#define SIZEOF_SHORT 2
#define SIZEOF_WCHAR_T 2
"""  # what the headers of Python ask, in the place of what is true of this machine


@pytest.mark.slow
@pytest.mark.needs("clang-19", "libc++-19-dev", "mingw-w64-common")
def test_kernel_compiles_for_windows_as_clang_cl_does_it(tmp_path):
    """No warning under /W4, in the ABI of MSVC; and nothing is asked of a library that its linker does not know."""
    headers = Path(sysconfig.get_path("include"))
    shutil.copytree(headers, tmp_path / "python", ignore=shutil.ignore_patterns("pyconfig.h"))
    (tmp_path / "python" / "pyconfig.h").write_text(WINDOWS)
    system = Path(programs.program("libc++-19-dev")).parent, Path(programs.program("mingw-w64-common")).parent
    # Headers of MinGW in the place of Microsoft's: they take every compiler for GCC, and libc++ has to know them.
    told = {"_LIBCPP_NO_VCRUNTIME": 1, "_UCRT": 1, "__MINGW32__": 1, "__MINGW64__": 1, "__GNUC__": 4}
    told |= {"__GNUC_MINOR__": 2, "__MINGW_IMPORT": "extern __declspec(dllimport)"}
    output([
        programs.program("clang-19"), "--driver-mode=cl", "--target=x86_64-pc-windows-msvc", "/c", "/std:c++17", "/O2",
        "/EHsc", "/W4", "/WX", "-mpopcnt", f"/clang:-isystem{system[0]}", "/imsvc", system[1], "/imsvc",
        tmp_path / "python", *(f"-D{name}={value}" for name, value in told.items()), KERNEL / "module.cpp",
        f"/Fo{tmp_path / 'module.obj'}",
    ])  # fmt: skip
    assert b"__cpu_model" not in (tmp_path / "module.obj").read_bytes()  # of compiler-rt, which link.exe does not see


def built(folder, compiler):
    program = folder / "fuzz"
    output([*compiler, Path(__file__).with_name("fuzz.cpp"), "-o", program])
    return program


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
