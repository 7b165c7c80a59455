"""The programs that tests need beside Python. `make test` runs this file before there is an environment.

On Debian, as root or with sudo, those that are missing are installed. Elsewhere one line says what to install; the
tests that need it are left out, and each of them says so (`needs` in tests/conftest.py).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {  # Debian's package → its program, by any of these names, or a file of it
    "chromium": ("chromium", "chromium-browser", "google-chrome"),  # the page is tested in a real browser
    "g++-aarch64-linux-gnu": ("aarch64-linux-gnu-g++",),  # the kernel's NEON path,
    "qemu-user": ("qemu-aarch64",),  # on an emulated ARM
    "clang-19": ("clang-19",),  # the kernel for Windows, as clang-cl compiles it,
    "libc++-19-dev": (
        "/usr/lib/llvm-19/include/c++/v1/vector",
    ),  # with a standard library that knows Microsoft's rules
    "mingw-w64-common": ("/usr/share/mingw-w64/include/stdlib.h",),  # and headers of Windows
    "etcd-server": ("etcd",),  # where a Milvus cluster keeps its books
    "openssl": ("openssl",),  # certificates
    "strace": ("strace",),  # what a program does to its files, to cut its power
    "postgresql": ("postgres",),  # PostgreSQL that speaks TLS
    "libimage-exiftool-perl": ("exiftool",),  # what other programs find in photos that tags were written into,
    "exiv2": ("exiv2",),  # and a second opinion
}
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


def program(package: str) -> str | None:
    """Where the program of a package is, or None."""
    found = [path for name in PROGRAMS[package] if (path := shutil.which(name, mode=os.F_OK))]
    if package == "postgresql":  # Debian keeps it off the PATH
        found += map(str, sorted(DEBIAN_POSTGRES.glob("*/bin/postgres"), reverse=True))
    return found[0] if found else None


def missing() -> list[str]:
    return [package for package in PROGRAMS if not program(package)]


def install(packages: list[str]) -> bool:
    """Whether apt-get was there and is done."""
    apt = shutil.which("apt-get")
    sudo = [] if os.geteuid() == 0 else [shutil.which("sudo") or ""]
    if not apt or sudo == [""]:
        return False
    if sudo and not sys.stdin.isatty():
        sudo += ["--non-interactive"]
    print("installing", *packages, flush=True)  # noqa: T201
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", apt, "-qq", "-o", "Dpkg::Use-Pty=0"]
    commands = ["update"], ["install", "-y", "--no-install-recommends", *packages]
    return all(subprocess.run([*sudo, *quiet, *words], check=False).returncode == 0 for words in commands)


def main() -> None:
    packages = missing()
    if packages and install(packages):
        packages = missing()
    if packages:
        print("install these to run every test; those that need them are left out:", *packages)  # noqa: T201


if __name__ == "__main__":
    main()
