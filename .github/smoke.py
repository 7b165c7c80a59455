"""A wheel in an empty environment: the native kernel is there and agrees with its numpy twin, commands start."""

import os
import subprocess
import sys

import numpy as np

from hyphash import Codes, hamming

outputs = np.random.default_rng(0).normal(size=(300, 48))
codes = Codes.from_outputs(outputs)
native = hamming.backend().name
found = hamming.search(codes, codes, k=7)
program = "import numpy as np; from hyphash import Codes, hamming; c = Codes.from_outputs(np.random.default_rng(0).normal(size=(300, 48))); print(hamming.backend().name, *(int(a.sum()) for a in hamming.search(c, c, k=7)))"  # noqa: E501
twin = subprocess.run(
    [sys.executable, "-c", program],
    env=os.environ | {"HYPHASH_KERNEL": "numpy"},
    capture_output=True,
    text=True,
    check=True,
).stdout.split()
assert native == "native", native
assert twin == ["numpy", *(str(int(part.sum())) for part in found)], twin
for command in ("--version", "--help", "doctor"):
    subprocess.run([sys.executable, "-m", "hyphash", command], check=True)
