"""Registry: names for classes, filled by a decorator, by entry points, or by a file the user points at."""

import importlib
import importlib.util
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from hyphash.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Name → class. Modules of `package`, and one `also` above it, are imported when a name is first asked for.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes("square")
    ... class Square: ...
    >>> shapes["square"] is Square
    True
    """

    def __init__(self, noun: str, *, package: str = "", entry_points: str = "", also: str = "") -> None:
        self.noun, self.package, self.entry_points, self.also = noun, package, entry_points, also
        self._classes: dict[str, T] = {}
        self._complete, self._filling = False, threading.RLock()

    def __call__(self, name: str) -> Callable[[T], T]:
        def register(item: T) -> T:
            if (known := self._classes.setdefault(name, item)) is not item:
                raise ConfigError(f"two things want to be the {self.noun} {name!r}: {known} and {item}")
            return item

        return register

    def __getitem__(self, name: str) -> T:
        """The class called `name`. No file is run for it: runs, collections and records that people send name any."""
        if name not in self._classes and ".py:" in name:
            raise ConfigError(f"the {self.noun} {name!r} is code of your own; register it through an entry point")
        if name in self:
            return self._classes[name]
        hint, known = did_you_mean(name, self._classes, most=1), ", ".join(self.names()) or "none"
        raise ConfigError(f"no {self.noun} is called {name!r}; {hint + ' ' * bool(hint)}known: {known}")

    def load(self, name: str) -> T:
        """The class called `name`, or the one at `path/to/file.py:ClassName`, whose code runs: for what users name."""
        if ".py:" not in name or name in self._classes:
            return self[name]
        return cast(T, _from_file(name, self.noun))

    def at(self, address: str) -> T:
        """The class behind a URL such as `postgresql://host/photos`, by its scheme, or behind a name."""
        return self[address if ".py:" in address else address.partition("://")[0]]

    def __contains__(self, name: str) -> bool:
        if name not in self._classes:
            self._fill()
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        self._fill()
        return sorted(self._classes)

    def _fill(self) -> None:
        if self._complete:
            return
        with self._filling:  # the imports register through this very object, so it must stay usable meanwhile
            path = importlib.import_module(self.package).__path__ if self.package else ()
            inside = (f"{self.package}.{module.name}" for module in pkgutil.iter_modules(path))
            for name in (*inside, *([self.also] if self.also else [])):
                importlib.import_module(name)
            for point in entry_points(group=self.entry_points) if self.entry_points else ():
                if point.name not in self._classes:
                    self._classes[point.name] = self._from_plugin(point)
            self._complete = True

    def _from_plugin(self, point: EntryPoint) -> T:
        try:
            return cast(T, point.load())
        except Exception as error:  # another's code
            raise ConfigError(
                f"the {self.noun} {point.name!r} of an installed package ({point.value}) cannot be imported: "
                f"{error!r}; mend or uninstall that package"
            ) from error


def _from_file(name: str, noun: str) -> Any:
    """Import `path/to/file.py:ClassName`; the user named the file, so its code may run."""
    file, _, attribute = name.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{noun} {name!r}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"hyphash_user_{path.stem}_{abs(hash(path)):x}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get(spec.name)
    if module is None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickling of classes look their module up
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[spec.name]
            raise ConfigError(f"{noun} {name!r}: {path} cannot be imported: {error!r}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{noun} {name!r}: {path} defines no {attribute!r}")
    return getattr(module, attribute)
