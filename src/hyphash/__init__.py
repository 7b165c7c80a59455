"""hyphash: short binary codes for photos that carry several labels. Train, measure, index, search.

The public names are loaded when they are first used, so importing hyphash costs nothing and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hyphash import hamming as hamming
    from hyphash import losses as losses
    from hyphash.codes import Codes as Codes
    from hyphash.coding import capacity as capacity
    from hyphash.coding import codebook as codebook
    from hyphash.coding import margin as margin
    from hyphash.collection import Collection as Collection
    from hyphash.config import Config as Config
    from hyphash.datasets import load_dataset as load_dataset
    from hyphash.evaluation import Protocol as Protocol
    from hyphash.evaluation import average_precision as average_precision
    from hyphash.evaluation import evaluate as evaluate
    from hyphash.hasher import Hasher as Hasher
    from hyphash.training import fit as fit
    from hyphash.training import train as train

_HOMES = {  # name → module; none: it is one
    "Codes": "codes", "Collection": "collection", "Config": "config", "Hasher": "hasher", "hamming": "", "losses": "",
    "load_dataset": "datasets", **dict.fromkeys(("capacity", "codebook", "margin"), "coding"),
    **dict.fromkeys(("Protocol", "average_precision", "evaluate"), "evaluation"),
    **dict.fromkeys(("fit", "train"), "training"),
}  # fmt: skip
__all__ = sorted(_HOMES)  # noqa: PLE0605 (a list of strings all the same)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hyphash' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(f"hyphash.{home}"), name) if home else import_module(f"hyphash.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
