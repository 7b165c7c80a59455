"""The native kernel. Everything else about the package stands in pyproject.toml.

The kernel is optional: without a C++17 compiler (GCC or Clang) hyphash uses numpy, and gives the same answers. On
Windows clang-cl compiles it, where that is found: Microsoft's own compiler has no vectors of any length.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

KERNEL = Path("src/hyphash/hamming/kernel")
FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-Wall", "-Wno-psabi"]
if sys.platform == "win32":
    FLAGS = ["/std:c++17", "/O2", "/EHsc", "/W3"]
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS.append("-mpopcnt")  # every x86-64 since 2008; faster instructions are found at run time


class BuildKernel(build_ext):
    """Takes clang-cl on Windows."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc" and (clang := shutil.which("clang-cl")):
            self.compiler.initialize()
            self.compiler.cc = clang
        super().build_extension(ext)


class BuildWithCommit(build_py):
    """Notes in the package from which commit it was built, where that is known: `hyphash --version` tells."""

    def run(self) -> None:
        super().run()
        asked = ["git", "rev-parse", "--short", "HEAD"]
        try:
            commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return
        if not self.editable_mode and Path(".git").exists():
            Path(self.build_lib, "hyphash", "commit.txt").write_text(commit, encoding="ascii")


setup(
    cmdclass={"build_ext": BuildKernel, "build_py": BuildWithCommit},
    ext_modules=[
        Extension(
            "hyphash.hamming._kernel",
            sources=[str(KERNEL / "module.cpp")],
            depends=sorted(str(path) for path in KERNEL.glob("*.hpp")),
            language="c++",
            extra_compile_args=FLAGS,
            py_limited_api=True,  # one wheel for Python 3.11 and later
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
