"""A wheel in an empty environment: the native kernel is there and agrees with its numpy twin, commands start.

    python smoke.py [RUN]

With a run whose network was exported (`hyphash export RUN`), scenes of the sample are drawn, indexed and served too,
and found by a label and by a photo.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

from hyphash import Codes, hamming

COMMAND = [sys.executable, "-m", "hyphash"]
TWIN = """
import numpy as np
from hyphash import Codes, hamming
codes = Codes.from_outputs(np.random.default_rng(0).normal(size=(300, 48)))
print(hamming.backend().name, *(int(part.sum()) for part in hamming.search(codes, codes, k=7)))
"""


def kernel() -> None:
    assert hamming.backend().name == "native", hamming.backend()
    codes = Codes.from_outputs(np.random.default_rng(0).normal(size=(300, 48)))
    environment = os.environ | {"HYPHASH_KERNEL": "numpy"}
    asked = subprocess.run([sys.executable, "-c", TWIN], env=environment, capture_output=True, text=True, check=True)
    found = [int(part.sum()) for part in hamming.search(codes, codes, k=7)]
    assert asked.stdout.split() == ["numpy", *map(str, found)], asked.stdout


def ask(address: str, photo: bytes | None = None) -> list[dict]:
    form = photo and b'--X\r\nContent-Disposition: form-data; name="photo"; filename="p"\r\n\r\n%b\r\n--X--\r\n' % photo
    with urlopen(Request(address, form, {"Content-Type": "multipart/form-data; boundary=X"}), timeout=30) as answer:
        return json.loads(answer.read())["matches"]


def serve(run: str, folder: Path) -> None:
    sample, collection = str(folder / "sample"), str(folder / "collection")
    for words in (
        ["data", "sample", sample, "--train", "60", "--queries", "4"],
        ["index", run, sample, "--part", "database", "--into", collection],
    ):
        subprocess.run([*COMMAND, *words], check=True)
    words = ["serve", collection, "--port", "0", "--seconds", "120"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True) as service:
        try:
            address = next(word for line in service.stdout for word in line.split() if word.startswith("http"))
            by_label = ask(f"{address.rstrip('/')}/api/search?label=dog&k=3")
            assert len(by_label) == 3, by_label
            assert "dog" in by_label[0]["labels"], by_label
            photo = next((folder / "sample" / "database").glob("*.jpg"))
            by_photo = ask(f"{address.rstrip('/')}/api/search?k=3", photo.read_bytes())
            assert by_photo[0]["distance"] == 0, by_photo
        finally:
            service.terminate()


kernel()
for command in ("--version", "--help", "doctor"):
    subprocess.run([*COMMAND, command], check=True)
if len(sys.argv) > 1:
    with tempfile.TemporaryDirectory() as made:
        serve(sys.argv[1], Path(made))
