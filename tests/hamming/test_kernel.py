"""The kernel: against its numpy twin, over many blocks and for the tables that it builds, and under sanitizers."""

import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from searching import ENGINES, LENGTHS, clustered, draw_codes, running

from hyphash import hamming
from hyphash.codes import Codes
from hyphash.hamming import _kernel, segments
from hyphash.hamming.segments import Tables

KERNEL = Path(hamming.__file__).parent / "kernel"
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
SECONDS = os.environ.get("HYPHASH_FUZZ_SECONDS", "4")


FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-pthread", f"-I{KERNEL}"]


@pytest.mark.parametrize("engine", ENGINES[1:])
@given(st.integers(0, 2**32), st.integers(1, 256), st.sampled_from([1, 3, 40]), st.sampled_from([1, 7, 900, 30_000]))
@settings(max_examples=12, deadline=None)
def test_kernel_equals_twin_over_many_blocks(engine, seed, bits, queries, k):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2_000, 30_000))
    database, wanted = draw_codes(rng, size, bits, 3_000), draw_codes(rng, queries, bits, 50)
    database.packed[: size // 2] = np.sort(database.packed[: size // 2], axis=0)  # not alike everywhere
    mask = None if rng.random() < 0.5 else rng.random(size) < rng.choice([0.001, 0.3, 0.99])
    with running("numpy"):
        expected = hamming.search(wanted, database, k, mask=mask)
        expected_within = hamming.within(wanted[:3], database, bits // 3, mask=mask)
    with running(engine, threads=int(rng.integers(1, 4))):
        found = hamming.search(wanted, database, k, mask=mask)
        found_within = hamming.within(wanted[:3], database, bits // 3, mask=mask)
    for ours, theirs in zip((found, *found_within), (expected, *expected_within), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])


def test_kernel_refuses_buffers_that_are_too_short():
    codes, short = np.zeros((2, 1), np.uint8), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="bytes expected"):
        _kernel.search(8, 1, 8, 2, codes, codes, None, None, short, np.zeros(4, np.int64))
    with pytest.raises(TypeError, match="arguments expected"):
        _kernel.search(8)  # type: ignore[call-arg]


def numpy_tables(codes: Codes, tables: int) -> tuple[int, Tables]:
    """The number of distinct codes, and their tables, made without the kernel."""
    order, is_new = sorted_codes(codes, tables)
    first_ids = order[is_new]
    distinct = codes.packed[first_ids]
    arrays = segments.empty_tables(codes.bits, tables, len(codes), len(distinct))
    arrays.ids[: len(codes)] = order
    arrays.ids[np.flatnonzero(is_new)[1:] - 1] |= segments.LAST
    arrays.ids[len(codes) - 1] |= segments.LAST
    arrays.rows[: codes.packed.size] = codes.packed.reshape(-1)
    kind = segments.entry_type(codes.bits, tables)
    if kind is None:
        fill_directory(arrays.directories, values_of(codes.packed, codes.bits, tables, 0), codes.bits)
        return len(distinct), arrays
    starts = arrays.starts[: tables * len(distinct)].reshape(tables, -1)
    entries = arrays.entries.view(kind)[: tables * (len(distinct) + segments.SPARE)].reshape(tables, -1)
    at = 0
    for table in range(tables):
        values = values_of(distinct, codes.bits, tables, table)
        told = first_ids if codes.bits > 64 else rests_of(distinct, codes.bits, tables, table)
        by_value = np.argsort(values, kind="stable")
        entries[table, : len(distinct)] = told[by_value]
        starts[table] = np.flatnonzero(is_new)[by_value]
        at += fill_directory(arrays.directories[at:], values, segments.substring(codes.bits, tables, table)[1])
    return len(distinct), arrays


def fill_directory(directory: NDArray[np.uint32], values: NDArray[np.uint64], width: int) -> int:
    """Where each value's entries start; the length of the directory."""
    directory[1 : (1 << width) + 1] = np.cumsum(np.bincount(values.astype(np.int64), minlength=1 << width))
    return (1 << width) + 1


def sorted_codes(codes: Codes, tables: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The order by (first substring, rest, id), and which codes in it are not equal to the one before."""
    first = values_of(codes.packed, codes.bits, tables, 0)
    if codes.bits > 64:
        order = np.lexsort((*codes.packed.T[::-1], first))
    else:
        order = np.lexsort((rests_of(codes.packed, codes.bits, tables, 0), first))
    ordered = codes.packed[order]
    return order, np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)][: len(codes)]


def words_of(packed: NDArray[np.uint8], start: int = 0) -> NDArray[np.uint64]:
    """Eight bytes of each code from byte `start` on, as one number."""
    padded = np.zeros((len(packed), 8), np.uint8)
    part = packed[:, start : start + 8]
    padded[:, : part.shape[1]] = part
    return padded.view(np.uint64)[:, 0]


def values_of(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    start, width = segments.substring(bits, tables, table)
    return words_of(packed, start // 8) >> np.uint64(start % 8) & np.uint64((1 << width) - 1)


def rests_of(packed: NDArray[np.uint8], bits: int, tables: int, table: int) -> NDArray[np.uint64]:
    """Codes of up to 64 bits without the bits of a table's substring."""
    start, width = segments.substring(bits, tables, table)
    words = words_of(packed)
    low = words & np.uint64((1 << start) - 1)
    return low if start + width >= 64 else low | words >> np.uint64(start + width) << np.uint64(start)


@pytest.mark.parametrize("bits", LENGTHS)
def test_kernel_and_numpy_build_the_same_tables(bits):
    codes = clustered(np.random.default_rng(bits), 700, bits)
    tables = segments.tables_for(bits, len(codes))
    distinct, ours = segments.build_tables(_kernel, codes, tables)
    expected_distinct, theirs = numpy_tables(codes, tables)
    assert distinct == expected_distinct == len(np.unique(codes.packed, axis=0))
    for name in segments.Tables._fields:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


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
