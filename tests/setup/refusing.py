"""What is told by servers that turn people away."""

import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from hyphash.errors import EngineError
from hyphash.stores import retry


def refused(attempt: Callable[[], Any], words: str) -> str:
    """All that is told when an attempt is turned down, which is not made again: that would not help."""
    with pytest.raises(EngineError, match=words) as told, mock.patch.object(retry.log, "warning") as again:
        attempt()
    assert not again.called
    return "".join(traceback.format_exception(told.value)) + repr(told.value)


def with_password(url: str, password: str) -> str:
    return url.replace("@", f":{quote(password, safe='')}@", 1)
