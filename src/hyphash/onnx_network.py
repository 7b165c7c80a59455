"""The network of a hasher as an ONNX file: written from torch once, run on onnxruntime without it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import MissingExtraError, WeightsError
from hyphash.files import write_atomically

if TYPE_CHECKING:
    from torch import nn

ONNX_FILE = "network.onnx"
ORIGIN = "hyphash.fingerprint"  # of the hasher whose network this is
ROUNDING = 1e-4  # of the largest output: by as much may the two runtimes differ


class OnnxNetwork:
    """Normalised photos (n, 3, size, size) → outputs (n, width)."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError("encoding photos", "serve") from error
        if not path.is_file():
            raise WeightsError(f"{path}: there is no such file; write it with: hyphash export {path.parent}")
        try:
            options = onnxruntime.SessionOptions()
            wish = os.environ.get("HYPHASH_THREADS", "")
            options.intra_op_num_threads = int(wish) if wish.isdigit() else 0  # 0: all cores
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for every kind of damage
            reason = " ".join(str(error).split())[:200]
            raise WeightsError(f"{path}: not a network ({reason}); write it again with `hyphash export`") from error
        self.path = path
        origin = self._session.get_modelmeta().custom_metadata_map.get(ORIGIN, "")
        if origin != fingerprint:
            raise WeightsError(
                f"{path}: the network of the hasher {origin or '?'}, not of {fingerprint}; "
                "write it again with `hyphash export`"
            )

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = self._session.run(["outputs"], {"images": images})[0]
        return outputs


def write_onnx(network: "nn.Module", path: Path, *, size: int, fingerprint: str) -> None:
    """Write a network that is on the CPU; how many photos come at once stays open."""
    try:
        import onnxscript  # noqa: F401 (torch needs it and says so only halfway)
        import torch
    except ImportError as error:
        raise MissingExtraError("writing ONNX", "train") from error
    program = torch.onnx.export(
        _first_only(network).eval(),
        (torch.zeros(2, 3, size, size),),
        input_names=["images"],
        output_names=["outputs"],
        dynamic_shapes=({0: torch.export.Dim("photos")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # only an export to a file gives none
    program.model.metadata_props[ORIGIN] = fingerprint
    write_atomically(path, lambda draft: program.save(draft, external_data=False))


def _first_only(network: "nn.Module") -> "nn.Module":
    """The outputs alone, where a head returns more beside them."""
    from torch import Tensor, nn

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Tensor) -> Any:
            result = self.network(images)
            return result[0] if isinstance(result, tuple) else result

    return Outputs()


def largest_difference(path: Path, original: NDArray[np.float32], exported: NDArray[np.float32]) -> float:
    """max |original − exported| / max |original|; an error if it is more than rounding.

    So bits can differ only where an output lies within rounding of zero.
    """
    difference = float(np.abs(original - exported).max() / max(np.abs(original).max(), 1e-12))
    if not difference <= ROUNDING:  # nor a NaN
        raise WeightsError(
            f"{path}: its outputs differ from the original's by {difference:.2g} of the largest, more than rounding; "
            "this network cannot be exported with the installed torch and onnxruntime"
        )
    return difference
