"""Shows the doctests in docstrings as code; Markdown would take `>>>` for a quotation."""

import re
from typing import Any

import griffe

BLOCK = re.compile(r"(?:^>>> .*\n?(?:^\S.*\n?)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every block that starts with `>>>`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = BLOCK.sub(lambda found: f"\n```pycon\n{found[0].strip()}\n```\n", obj.docstring.value)
