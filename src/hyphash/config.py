"""Settings: frozen dataclasses ↔ TOML. Unknown keys and wrong types are errors, never ignored."""

import tomllib
from collections import ChainMap
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

from hyphash.errors import ConfigError, did_you_mean
from hyphash.files import open_regular, write_atomically

FORMAT = 3  # of a run's folder: config.toml, history.jsonl, problems.jsonl

TABLES = tomllib.loads((Path(__file__).parent / "settings.toml").read_text("utf-8"))
BEFORE: dict[str, Any] = TABLES["before"] | {"lengths": ()}  # what was done before a setting existed

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Config:
    """How a run is trained. What is None is chosen by the method, the mode and the backbone when a run starts."""

    data: str = ""  # a file or folder
    dataset: str | None = None  # its kind, when it cannot be told from the files
    data_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "hyp2-ap"
    loss_options: dict[str, Any] = field(default_factory=dict)
    tried: dict[str, Any] = field(default_factory=dict)  # by loss: validation mAP, where `loss = "auto"` chose it
    relevance: str = ""  # a table of how relevant classes are to each other, in place of labels that are shared
    bits: int = 48
    lengths: tuple[int, ...] = ()  # nested codes: the first so many outputs are codes too; `bits` is the longest
    backbone: str = "efficientnet_lite0"
    weights: str = "default"  # "default", "none", or a file
    weights_by_backbone: dict[str, str] = field(default_factory=dict)  # where several stand side by side, as in "a+b"
    size: int | None = None  # side of the photos that the network sees, in pixels
    mirror: bool = False  # whether it looks at each photo twice, as it is and mirrored, and takes the mean
    mode: Literal["auto", "frozen", "fine-tune"] = "auto"
    recipe: Literal["house", "published"] = "house"  # whose settings fill those left open: ours, or the authors' own
    views: int | None = None  # looks at a photo that a frozen head is trained on: 1 as it is, 2 its mirror image too …
    augment: Literal["flip", "crop"] = "flip"  # whole networks see photos mirrored, or also cropped and recoloured
    hidden: int | None = None  # width of the head's hidden layer, 0 for none
    dropout: float | None = None
    epochs: int | None = None
    batch: int | None = None
    batches: Literal["equal", "cut"] = "equal"  # all of nearly one size, or full ones and what is left over
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    rate: float | None = None  # learning rate of network and head
    loss_rate: float | None = None  # learning rate of the loss's own parameters, such as proxies
    backbone_rate: float | None = None  # share of `rate` that the backbone learns with
    body_rate: float | None = None  # share of that which its body learns with, where new layers stand after it
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    schedule: Literal["cosine", "step", "constant"] | None = None
    step_every: int | None = None  # epochs
    step_factor: float | None = None
    warm_up: float | None = None  # epochs in which all rates rise from 0
    head_first: float | None = None  # epochs in which the backbone stands still
    clip: float | None = None  # largest norm of a gradient, 0 for no limit
    label_layer: bool = True  # whether labels are learned beside the codes, which are the same with and without it
    validation: float = 0.1  # share of the training photos held out to watch progress
    evaluate_every: int = 5  # epochs
    keep: Literal["last", "best"] = "last"  # which epoch's weights the run offers; best is by validation
    top: int = 1000  # N of the validation mAP@N
    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool = False
    threads: int | None = None  # of torch on a CPU; another number adds in another order and gives other weights
    checkpoint_every: float = 60.0  # seconds
    log: Literal["tensorboard", "mlflow", "wandb"] = "tensorboard"  # what draws the figures of a run as it goes

    def __post_init__(self) -> None:
        if self.lengths:
            if min(self.lengths) < 1 or list(self.lengths) != sorted({*self.lengths}):
                raise ConfigError(f"lengths are numbers of bits, each above the one before, not {self.lengths}")
            object.__setattr__(self, "bits", self.lengths[-1])
        for name, (low, high) in TABLES["limits"].items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} must lie between {low:g} and {high:g}, not be {value}")

    def filled(self, *defaults: dict[str, Any]) -> "Config":
        """With every field that is None taken from the first of `defaults` that has it."""
        known = ChainMap(*defaults)
        return replace(self, **{name: value for name, value in known.items() if getattr(self, name, "") is None})


def from_table(cls: type[T], table: dict[str, Any], source: str) -> T:
    """A dataclass from a TOML table, every key and type checked."""
    hints = get_type_hints(cls)
    for key in table:
        if key not in hints:
            hint = did_you_mean(key, hints, most=1) or f"known are {', '.join(sorted(hints))}"
            raise ConfigError(f"{source}: unknown setting {key!r}; {hint}")
    values = {key: _checked(hints[key], value, f"{source}: {key}") for key, value in table.items()}
    try:
        return cls(**values)
    except (TypeError, ConfigError) as error:  # a setting that is missing, or out of its limits
        raise ConfigError(f"{source}: {error}") from error


def _checked(hint: Any, value: Any, where: str) -> Any:
    """The value as `hint` wants it: tables as dataclasses, lists as tuples, whole numbers as floats."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):  # T | None
        inner = next(option for option in args if option is not NoneType)
        return None if value is None else _checked(inner, value, where)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return from_table(hint, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = args if len(args) == len(value) and Ellipsis not in args else args[:1] * len(value)
        return tuple(_checked(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _checked(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is Literal and value not in args:
        raise ConfigError(f"{where} must be one of {', '.join(map(str, args))}, not {value!r}")
    kind = object if hint is Any or origin is Literal else origin or hint
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        raise ConfigError(f"{where} must be of type {kind.__name__}, not {value!r}")
    return value


def to_table(settings: Any) -> dict[str, Any]:
    """A dataclass, or what is in one, as a TOML table; what is None is left out, TOML has no word for it."""
    table = settings if isinstance(settings, dict) else asdict(settings)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in table.items() if v is not None}
    return {k: to_table(v) if isinstance(v, dict) else v for k, v in plain.items()}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with open_regular(Path(path)) as file:
            return tomllib.loads(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from error


def write_toml(path: Path, settings: Any, *, private: bool = False) -> None:
    write_atomically(path, tomli_w.dumps(to_table(settings)), private=private)


def write_config(path: Path, config: Config) -> None:
    """The settings of a run, and the number of the format that it and the files beside it have."""
    write_atomically(path, tomli_w.dumps({"format": FORMAT} | to_table(config)))


def require_named(config: Config, loss: str | None, source: Path) -> None:
    """Refuse a loss that is a file, unless it is the very `loss` that the user names: it is code, and may be sent."""
    if ".py:" in config.loss and config.loss != loss:
        raise ConfigError(f"{source}: its loss is the program {config.loss}; if you trust it: --loss {config.loss}")


def read_config(path: Path, **given: Any) -> Config:
    """The settings in a file, with those that are given in their place. A file of the user's may omit the format."""
    table = read_toml(path)
    if (number := table.pop("format", FORMAT)) not in range(1, FORMAT + 1):
        raise ConfigError(f"{path}: format {number}, this hyphash reads 1 to {FORMAT}; use the version that wrote it")
    # One of format 1 or 2 has no label layer, which changes nothing of the codes.
    before = (BEFORE if number == 1 else {}) | ({"label_layer": False} if number < 3 else {})
    return from_table(Config, before | table | given, str(path))
