"""Options that several commands take, declared once, and how their values are read."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hyphash.errors import ConfigError

CollectionFolder = Annotated[Path, Argument(metavar="COLLECTION", help="Folder made by `hyphash index`.")]
StoreAddress = Annotated[str, Option("--store", help="Of a new one: postgresql://host/photos. [default: its folder]")]
EngineAddress = Annotated[str, Option("--engine", help="local, faiss, milvus://host … [default: as fits the store]")]
DataPath = Annotated[str, Argument(help="A label file, a folder of photos, or a benchmark's folder.")]
RunFolder = Annotated[Path, Argument(help="Folder made by `hyphash train`.")]
Json = Annotated[bool, Option("--json", help="Print as JSON.")]
Markdown = Annotated[bool, Option("--markdown", help="Print as a Markdown table.")]
Cache = Annotated[Path | None, Option(help="Where features are kept. [default: ~/.cache/hyphash]")]
Device = Annotated[str, Option(help="cpu, cuda … [default: a GPU if there is one]", show_default=False)]
WeightsFiles = Annotated[list[str] | None, Option(help="FILE, none, BACKBONE=FILE; repeatable. [default: ImageNet's]")]
Dataset = Annotated[str | None, Option(help="Kind of the data, if it cannot be told. See `hyphash datasets`.")]
DataOption = Annotated[list[str] | None, Option(help="Option of the dataset, such as labels=24; repeatable.")]
SkipUnlabelled = Annotated[bool, Option("--skip-unlabelled", help="Leave out photos without labels.")]
SkipMissing = Annotated[bool, Option("--skip-missing", help="Leave out rows whose photo is not there.")]
MinCount = Annotated[int, Option(min=0, help="Drop labels that fewer photos carry.")]
LabelsFrom = Annotated[str, Option(help="Where labels come from: file, folders or keywords.")]


def options_from(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    """`key=value` pairs; values are TOML where they can be (numbers, true, lists), else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} takes key=value, such as {flag} beta=0.5, not {pair!r}")
        try:
            options[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = value
    return options


def weights_options(given: Sequence[str]) -> dict[str, Any]:
    """The settings that `--weights FILE` and `--weights BACKBONE=FILE` make."""
    own = dict(text.partition("=")[::2] for text in given if "=" in text and not Path(text).exists())
    common = [text for text in given if text.partition("=")[0] not in own]
    return ({"weights": common[-1]} if common else {}) | ({"weights_by_backbone": own} if own else {})


def data_options(pairs: Sequence[str] | None, **flags: object) -> dict[str, Any]:
    """Options of a dataset: those that have flags of their own, where they are set, and `--data-option key=value`."""
    return {key: value for key, value in flags.items() if value} | options_from(pairs or [], "--data-option")


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """
    >>> numbers("12, 48", "--bits")
    (12, 48)
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers with commas between, not {text!r}") from None
