"""A client of the search service: by labels, by a photo, and a label put right.

HYPHASH_TOKEN=a-long-secret hyphash serve my-collection
HYPHASH_TOKEN=a-long-secret python examples/service_client.py http://127.0.0.1:8000 cat.jpg dog example
"""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from PIL import Image

address, photo, label, into = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])


def ask(path: str, data: bytes | None = None, **headers: str) -> Any:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if token := os.environ.get("HYPHASH_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    with urlopen(Request(address + path, data, headers), timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if answer.headers["Content-Type"] == "application/json" else content


by_label = ask("/api/search?" + urlencode({"label": label, "k": 5}))
form = f'--X\r\nContent-Disposition: form-data; name="photo"; filename="{photo.name}"\r\n\r\n'.encode()
by_photo = ask(
    "/api/search?k=5", form + photo.read_bytes() + b"\r\n--X--\r\n", Content_Type="multipart/form-data; boundary=X"
)

sheet = Image.new("RGB", (5 * 170, 330), "white")
for row, found in enumerate((by_label, by_photo)):
    for column, match in enumerate(found["matches"]):
        print(match["id"], match["distance"], ", ".join(match["labels"]))
        small = Image.open(io.BytesIO(ask(f"/api/photos/{match['id']}/thumbnail")))
        sheet.paste(small.resize((160, 160)), (column * 170, row * 170))
into.mkdir(exist_ok=True)
sheet.save(into / "service_client.png")

if os.environ.get("HYPHASH_TOKEN"):  # refuse the label on the last photo, and take that back
    verdicts = [{"id": by_label["matches"][-1]["id"], "label": label, "said": "refuse"}]
    for _ in range(2):
        changed = ask(
            "/api/photos/verdicts", json.dumps({"verdicts": verdicts}).encode(), Content_Type="application/json"
        )
        verdicts = changed["undo"]
    print("as it was:", ", ".join(changed["photos"][0]["labels"]))
