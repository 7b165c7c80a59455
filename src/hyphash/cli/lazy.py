"""The package as commands see it, each module loaded when it is first used: `hyphash --help` never imports torch."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["lazy"]

if TYPE_CHECKING:
    import hyphash as lazy
    import hyphash.benchmarks.reproduction  # and what these import
    import hyphash.datasets.sample
    import hyphash.datasets.statistics
    import hyphash.encoding
    import hyphash.planning
    import hyphash.publishing
    import hyphash.service
    import hyphash.tuning.search  # noqa: F401
else:

    class _Lazy:
        """A module that need not be there yet; what is asked of it is a name in it, or a module inside of it."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            found = getattr(import_module(self._name), name, self)
            return _Lazy(f"{self._name}.{name}") if found is self or isinstance(found, ModuleType) else found

    lazy = _Lazy("hyphash")
