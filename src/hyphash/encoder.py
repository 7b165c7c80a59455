"""Encoder: photos → outputs, its preprocessing included. On torch, on ONNX, or loaded when the first photo comes.

One that stands before another (loaded late, or batched by the service) holds it and has the same face; none inherits.
Importing this module imports neither torch nor onnxruntime.
"""

import copy
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import ConfigError, WeightsError, needs_extra
from hyphash.files import open_regular, write_atomically
from hyphash.photos import Chosen, PhotoSource, Pixels, Preprocessing, Problem, decoded
from hyphash.workers import Workers

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hyphash.networks import Network

ONNX_FILE = "network.onnx"
ORIGIN = "hyphash.fingerprint"  # of the hasher whose network an ONNX file is
ROUNDING = 1e-4  # of the largest output: by as much may the two runtimes differ
BATCH, GPU_BATCH = 64, 256
ELSEWHERE = re.compile(rb"[\0\x08]location")  # so a tensor of ONNX names its file: by this word, its length first

Outputs = NDArray[np.float32]
Weights = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]  # photos done, photos in all
Run = Callable[[Pixels], NDArray[Any]]  # outputs or features of photos
T = TypeVar("T")
F = TypeVar("F")


class Encoder(Protocol):
    """Decoded photos in, outputs out; where the network has a label layer, the logits of labels follow in each row."""

    @property
    def preprocessing(self) -> Preprocessing: ...  # how photos become its pixels
    @property
    def batch(self) -> int: ...  # photos that it takes at once
    def outputs(self, pixels: Pixels, /) -> Outputs: ...  # of a batch, at least one photo: (n, width)


class TorchEncoder:
    """A network on torch; what training works on."""

    def __init__(self, network: "Network", preprocessing: Preprocessing, *, device: str = "auto") -> None:
        self.network, self.preprocessing = network, preprocessing
        self.device = choose_device(device)
        network.to(self.device)
        self.batch = GPU_BATCH if self.device.type == "cuda" else BATCH
        self._digest: tuple[tuple[Any, ...], str] = (), ""

    def outputs(self, pixels: Pixels) -> Outputs:
        return run(self.network, [self.images(pixels)])

    @cached_property
    def parts(self) -> "tuple[TorchEncoder, ...]":
        """One for each backbone, for its features alone, where several stand side by side; else itself."""
        from hyphash.networks import Network

        if not self.preprocessing.beside:
            return (self,)
        networks = [Network(one, self.network.head, on_map=False) for one in self.network.backbone.parts]
        pairs = zip(networks, self.preprocessing.parts, strict=True)
        return tuple(TorchEncoder(network, sees, device=str(self.device)) for network, sees in pairs)

    @cached_property
    def feature_shape(self) -> tuple[int, ...]:
        """Of what the head sees of one photo; learned from a grey one."""
        return self.features(np.full((1, *self.preprocessing.shape), 128, np.uint8)).shape[1:]

    def features(self, pixels: Pixels) -> NDArray[np.float16]:
        """What the head sees of photos, no more than a batch of them."""
        return run(self.network, [self.images(pixels)], self.network.features).astype(np.float16)

    def images(self, pixels: Pixels) -> "torch.Tensor":
        """What the network takes, on its device."""
        import torch

        return to_images(torch.from_numpy(pixels), self.preprocessing, self.device)

    def weights(self) -> Weights:
        """All that it learned, by name; nothing where that is in an ONNX file."""
        state = self.network.state_dict()
        return {f"network.{name}": tensor.detach().cpu().contiguous().numpy() for name, tensor in state.items()}

    def backbone_digest(self) -> str:
        """A short name for the backbone's very weights and its preprocessing; hashed anew only when they change."""
        state = sorted(self.network.backbone.state_dict().items())
        mirror = ["mirror"] if self.network.backbone.parts[0].mirror else []
        facts = (self.preprocessing, self.network.on_map, *mirror)
        now = (*facts, *((tensor.data_ptr(), tensor._version) for _, tensor in state))
        if self._digest[0] != now:
            numbers = {name: tensor.cpu().numpy() for name, tensor in state}
            self._digest = now, digest(facts, numbers)[:12]
        return self._digest[1]

    def export(self, path: Path, pixels: Pixels, *, fingerprint: str, width: int) -> tuple[float, int]:
        """Write it as ONNX. How much the two differ on `pixels`: outputs as a share of the largest, and bits.

        The first `width` of a row are outputs; logits, which may follow, are compared among themselves.
        """
        original = TorchEncoder(copy.deepcopy(self.network), self.preprocessing, device="cpu")
        expected = original.outputs(pixels)
        write_onnx(original.network, path, shape=self.preprocessing.shape, fingerprint=fingerprint)
        found = OnnxEncoder(path, self.preprocessing, fingerprint=fingerprint).outputs(pixels)
        parts = [part for part in (slice(0, width), slice(width, None)) if expected[:, part].size]
        name = path.with_name(ONNX_FILE)
        difference = max(largest_difference(name, expected[:, part], found[:, part]) for part in parts)
        return difference, int(((expected > 0) != (found > 0))[:, :width].sum())


class OnnxEncoder:
    """A network that `export` wrote, run by onnxruntime: without torch, and not to be trained further."""

    batch = BATCH

    def __init__(self, path: Path, preprocessing: Preprocessing, *, fingerprint: str) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # on import it would start to report to its makers
        with needs_extra("serve", "encoding photos"):
            import onnxruntime
        if not path.is_file():
            raise WeightsError(f"{path}: there is no such file; write it with: hyphash export {path.parent}")
        self.path, self.preprocessing = path, preprocessing
        with self._errors(), open_regular(path) as file:
            if ELSEWHERE.search(file.read()):  # it may be sent, and they may be any files of this machine
                raise ValueError("its values lie in other files")
            options = onnxruntime.SessionOptions()
            wish = os.environ.get("HYPHASH_THREADS", "")
            options.intra_op_num_threads = int(wish) if wish.isdigit() else 0  # 0: all cores
            chosen = {"providers": ["CPUExecutionProvider"], "enable_fallback": 0}  # else it prints, and fails again
            self._session = onnxruntime.InferenceSession(path, options, **chosen)
        origin = self._session.get_modelmeta().custom_metadata_map.get(ORIGIN, "")
        if origin != fingerprint:
            raise WeightsError(f"{path}: of the hasher {origin or '?'}, not of {fingerprint}; run `hyphash export`")

    def outputs(self, pixels: Pixels) -> Outputs:
        images = self.preprocessing.normalise(pixels)
        with self._errors():
            outputs: Outputs = self._session.run(["outputs"], {"images": images})[0]
            if outputs.shape[:1] != pixels.shape[:1] or outputs.ndim != 2:
                raise ValueError(f"outputs of shape {outputs.shape} for {len(pixels)} photos")
        return outputs

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """onnxruntime has a class of its own for every kind of damage."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise WeightsError(f"{self.path}: not a network ({reason}); write it again by `hyphash export`") from error

    def weights(self) -> Weights:
        return {}

    def export(self, path: Path, pixels: Pixels, *, fingerprint: str, width: int) -> tuple[float, int]:  # noqa: ARG002
        """It is what it would be compared with."""
        write_atomically(path, self.path.read_bytes())
        return 0.0, 0


class LateEncoder:
    """One that is loaded when the first photo must be encoded."""

    def __init__(self, load: Callable[[], Encoder], preprocessing: Preprocessing) -> None:
        self.preprocessing, self._load, self._lock = preprocessing, load, Lock()
        self._loaded: Encoder | None = None

    @property
    def whole(self) -> Encoder:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    @property
    def batch(self) -> int:
        return self._loaded.batch if self._loaded else BATCH

    def outputs(self, pixels: Pixels) -> Outputs:
        return self.whole.outputs(pixels)


def network_encoder(encoder: Encoder) -> TorchEncoder | OnnxEncoder:
    """The encoder with the network, behind all that stand before it."""
    while inner := getattr(encoder, "whole", None):
        encoder = inner
    return cast("TorchEncoder | OnnxEncoder", encoder)


@dataclass(frozen=True)
class Encoded:
    """What was made of the photos that could be read, outputs or features; `rows` says which ones those are."""

    values: NDArray[Any]
    rows: NDArray[np.int64]
    problems: tuple[Problem, ...]
    logits: Outputs | None = None  # of labels, beside outputs of a hasher with a label layer


def encode_rows(
    source: PhotoSource, rows: Sequence[int], sees: Preprocessing, run: Run, batch: int, workers: Workers | None = None
) -> Iterator[Encoded]:
    """What `run` makes of some photos of a source, batch by batch; those that cannot be read are no reason to stop."""
    stream = decoded(Chosen(source, rows), sees, workers=workers)
    for some in encode_stream(stream, run, batch=batch):
        values = np.array([value for _, _, value in some if value is not None])
        read = np.array([rows[i] for i, _, value in some if value is not None], np.int64)
        yield Encoded(values, read, tuple(found for _, found, _ in some if isinstance(found, Problem)))


def encode_stream(
    stream: Iterable[tuple[T, F]], run: Run, *, batch: int, most: int = 0
) -> Iterator[list[tuple[T, F, NDArray[Any] | None]]]:
    """The one loop that encodes: what was found of each photo, and what `run` makes of its pixels where it has some.

    They come together when there are `batch` photos to run, or `most` (0: as many) in all.
    """
    waiting: list[tuple[T, F, Pixels | None]] = []
    pixels: list[Pixels] = []

    def encoded() -> list[tuple[T, F, NDArray[Any] | None]]:
        values = iter(run(np.stack(pixels)) if pixels else ())
        return [(item, found, None if image is None else next(values)) for item, found, image in waiting]

    for item, found in stream:
        image = found if isinstance(found, np.ndarray) else getattr(found, "pixels", None)
        waiting.append((item, found, image))
        if image is not None:
            pixels.append(image)
        if len(pixels) >= batch or len(waiting) >= (most or batch):
            yield encoded()
            waiting, pixels = [], []
    if waiting:
        yield encoded()


def run(
    model: "nn.Module", batches: "Iterable[torch.Tensor]", forward: Callable[["torch.Tensor"], Any] | None = None
) -> Outputs:
    """Outputs of what a network, or a head, or `forward` of one takes; at least one batch of it."""
    import torch

    from hyphash.networks import first_of

    model.eval()
    with torch.inference_mode():
        return np.concatenate([first_of((forward or model)(values)).float().cpu().numpy() for values in batches])


def to_images(pixels: "torch.Tensor", preprocessing: Preprocessing, device: "torch.device") -> "torch.Tensor":
    """Bytes (n, size, size, 3) → the normalised (n, 3, size, size) that a network takes, on its device.

    For several backbones side by side (n, pixels, 3) → (n, 3, pixels).
    """
    mean, std = _mean_and_std(preprocessing, device)
    images = (pixels.to(device, non_blocking=True).float() - mean) / std
    return images.movedim(-1, 1)  # a view: channels-last in memory, which is what convolutions like best


@lru_cache(maxsize=16)
def _mean_and_std(preprocessing: Preprocessing, device: "torch.device") -> "tuple[torch.Tensor, torch.Tensor]":
    """On the device, and made once: to copy them for every batch would make the host wait each time."""
    import torch

    parts = preprocessing.parts
    pixels = torch.tensor([part.size**2 if preprocessing.beside else 1 for part in parts])
    means, deviations = torch.tensor([part.mean for part in parts]), torch.tensor([part.std for part in parts])
    mean, std = (values.mul(255).repeat_interleave(pixels, 0).to(device) for values in (means, deviations))
    return mean, std


def choose_device(name: str) -> "torch.device":
    """The device called `name`; "auto" takes a GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used here ({error}); try --device cpu") from error
    return device


def digest(facts: tuple[Any, ...], weights: Weights) -> str:
    """A name for facts and the very weights that belong to them."""
    result = hashlib.sha256(repr(facts).encode())
    for name, values in sorted(weights.items()):
        result.update(name.encode())
        result.update(values.tobytes())
    return result.hexdigest()


def write_onnx(network: "nn.Module", path: Path, *, shape: tuple[int, ...], fingerprint: str) -> None:
    """Write a network that is on the CPU and nobody else needs, for any number of photos of pixels of this shape."""
    with needs_extra("train", "writing ONNX"):
        import onnxscript  # noqa: F401 (torch needs it and says so only halfway)
        import torch
    from hyphash.networks import first_of

    network.register_forward_hook(lambda _network, _images, result: first_of(result))
    photos, dynamic = torch.zeros(2, 3, *shape[:-1]), {0: torch.export.Dim("photos")}
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["outputs"], "dynamic_shapes": (dynamic,)}
    program = torch.onnx.export(network.eval(), (photos,), **names, dynamo=True, verbose=False)
    assert program is not None  # only an export to a file gives none
    program.model.metadata_props[ORIGIN] = fingerprint
    write_atomically(path, lambda draft: program.save(draft, external_data=False))


def largest_difference(path: Path, original: Outputs, exported: Outputs) -> float:
    """max |original − exported| / max |original|; an error if it is more than rounding."""
    difference = float(np.abs(original - exported).max() / max(np.abs(original).max(), 1e-12))
    if not difference <= ROUNDING:  # nor a NaN
        raise WeightsError(
            f"{path}: its outputs differ from the original's by {difference:.2g} of the largest, more than rounding; "
            "this network cannot be exported with the installed torch and onnxruntime"
        )
    return difference
