"""Studies of the small world of tests/setup/colours.py."""

from colours import cache, settings, splits  # noqa: F401 (fixtures)
