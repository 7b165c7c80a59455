"""Hasher = Encoder + class names + one anchor per class: photos → outputs → Codes, and scores of labels beside them.

It may have learned a quantiser, and a label layer, whose logits the network gives in the same pass as the outputs.

Importing this module imports neither torch nor onnxruntime nor a model; that happens when photos are encoded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hyphash.codes import MAX_BITS, Codes, is_fingerprint
from hyphash.config import from_table, read_toml, write_toml
from hyphash.encoder import (
    ONNX_FILE,
    Encoded,
    Encoder,
    LateEncoder,
    OnnxEncoder,
    Outputs,
    Progress,
    TorchEncoder,
    Weights,
    choose_device,
    digest,
    encode_rows,
    network_encoder,
)
from hyphash.errors import ConfigError, LabelError, MissingExtraError, PhotoError, RunError, WeightsError, did_you_mean
from hyphash.files import digest as file_digest
from hyphash.files import draft_of, make_folder, sync, write_atomically
from hyphash.hub import local_folder
from hyphash.labels import Calibration, Logits, sigmoid
from hyphash.machine import gpus
from hyphash.photos import PhotoFiles, PhotoSource, Pixels, Preprocessing, Problem, decoded

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from hyphash.networks import Backbone, Network
    from hyphash.quantizer import Quantizer

    Photos = Iterable[str | Path | Image] | PhotoSource  # paths, images, or a source of either

__all__ = ["Encoded", "Exported", "Hasher", "Outputs", "Progress", "Spec", "Tag", "choose_device", "read_spec", "unit"]

FORMAT = 1
SPEC_FILE = "hasher.toml"
WEIGHTS_FILE = "weights.safetensors"
CHECKSUMS_FILE = "checksums.sha256"  # of the others, as sha256sum writes them; where a hasher is not to change
AVERSION = 1 / 3  # what an unwanted label weighs beside a wanted one; see Hasher.label_outputs
CHECKED = 64  # photos on which an exported network is compared with its original


@dataclass(frozen=True, kw_only=True)
class Spec:
    """All that is needed, besides weights, to build a hasher again."""

    format: int = FORMAT
    backbone: str
    head: str = "default"
    on_map: bool = False  # whether the head looks at the feature map
    mirror: bool = False  # whether backbones look at a photo and at its mirror image
    bits: int
    hidden: int = 0
    dropout: float = 0.5
    classes: tuple[str, ...]
    guessed: tuple[str, ...] | None = None  # the last of them, if they were not learned: ImageNet's in everyday words
    preprocessing: Preprocessing
    fingerprint: str = ""

    @property
    def learned(self) -> int:
        """How many of its classes it learned, which come first."""
        return len(self.classes) - len(self.guessed or ())

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise ConfigError(f"bits must lie between 1 and {MAX_BITS}, not be {self.bits}")
        if not (0 <= self.hidden <= 65_536 and 0 <= self.dropout < 1):
            raise ConfigError(f"hidden = {self.hidden} and dropout = {self.dropout}; no head has these")
        if self.fingerprint and not is_fingerprint(self.fingerprint):
            raise ConfigError(f"a fingerprint has 16 hex digits, which {self.fingerprint[:80]!r} has not")
        if self.backbone.count("+") != len(self.preprocessing.beside):
            raise ConfigError(f"one preprocessing for each of {self.backbone}, not {len(self.preprocessing.parts)}")


@dataclass(frozen=True)
class Exported:
    """An ONNX network that was compared with its original."""

    file: Path
    photos: int  # that were compared
    difference: float  # of outputs, at most, as a share of the largest
    bits_changed: int  # outputs within rounding of zero that fell on the other side


@dataclass(frozen=True)
class Tag:
    """A label that suits a photo, with its probability, or without a label layer the cosine to the label's anchor."""

    label: str
    score: float
    carried: bool = False  # whether the photo probably carries it: the label's threshold is reached
    guessed: bool = False  # whether nobody taught it the label: see `hyphash.guesses`


@dataclass(eq=False, repr=False)
class Hasher:
    """Turns photos into codes.

    >>> hasher = Hasher.load("runs/demo")                # doctest: +SKIP
    >>> hasher.encode(["cat.jpg", "dog.jpg"])            # doctest: +SKIP
    Codes(2 × 48 bits)
    """

    spec: Spec
    encoder: Encoder
    _: KW_ONLY
    anchors: Outputs | None = None  # (classes, bits)
    quantizer: "Quantizer | None" = None
    calibration: Calibration | None = None  # of its label layer, where it has one: what the network's logits mean
    folder: Path | None = None  # that holds this very hasher, where it is not to change
    _places: tuple[Outputs | None, dict[str, Outputs]] = field(default=(None, {}), init=False)  # of labels, by anchors

    @classmethod
    def create(
        cls,
        *,
        classes: Sequence[str],
        bits: int = 48,
        backbone: str = "efficientnet_lite0",
        weights: str = "default",
        weights_by_backbone: Mapping[str, str] | None = None,
        size: int | None = None,
        device: str = "auto",
        built: "Backbone | None" = None,
        **settings: Any,
    ) -> "tuple[Hasher, list[str]]":
        """An untrained head over a backbone, which may be built already, and what to know about its weights.

        Several backbones stand side by side, as in "efficientnet_lite0+resnet50", each with weights of its own. `size`
        is of those that name none, as "resnet50@256" does. `settings` are others of a Spec, such as `hidden`.
        """
        from hyphash.networks import backbone_recipe, build_backbone, name_and_size, weights_by_name

        files = weights_by_name(backbone, weights, weights_by_backbone or {})
        recipes = {name: backbone_recipe(name).preprocessing for name in files}
        own = {name for name in recipes if name_and_size(name)[1]}
        sees = [sees if name in own or not size else replace(sees, size=size) for name, sees in recipes.items()]
        settings |= {"classes": tuple(classes), "preprocessing": Preprocessing.side_by_side(sees)}
        spec = Spec(backbone=backbone, bits=bits, **settings)
        made = [] if built else [build_backbone(name, file) for name, file in files.items()]
        network = _assemble(spec, [backbone for backbone, _ in made] or [cast("Backbone", built)])
        notes = [note for _, some in made for note in some]
        return cls(spec, TorchEncoder(network, spec.preprocessing, device=device)), notes

    @property
    def bits(self) -> int:
        return self.spec.bits

    @property
    def classes(self) -> tuple[str, ...]:
        return self.spec.classes

    @property
    def width(self) -> int:
        """How many outputs a photo has: one a bit, or the space of a product quantiser."""
        return self.bits if self.quantizer is None else self.quantizer.codewords[:, 0].size

    @property
    def network(self) -> "Network":
        return self.on_torch().network

    @property
    def device(self) -> "torch.device":
        return self.on_torch().device

    def on_torch(self) -> TorchEncoder:
        """What encodes, where that can be trained and taken apart; ConfigError where it runs on ONNX."""
        found = network_encoder(self.encoder)
        if not isinstance(found, TorchEncoder):
            raise ConfigError("this hasher runs on ONNX, which cannot be trained or taken apart; load its run on torch")
        return found

    @property
    def fingerprint(self) -> str:
        """A short name for these very weights and this preprocessing: codes of another one cannot be compared."""
        if not self.spec.fingerprint:
            _take_weights(self)
        return self.spec.fingerprint

    def encode(self, photos: "Photos") -> Codes:
        """Codes of photos; the first that cannot be read raises PhotoError."""
        return self.to_codes(self.outputs(photos))

    def outputs(self, photos: "Photos | Pixels") -> Outputs:
        """Real outputs of photos, or of pixels as its preprocessing gives them; one that cannot be read: PhotoError."""
        if isinstance(photos, np.ndarray):
            return rows_of_pixels(self, photos)[:, : self.width]
        source = as_source(photos)
        if isinstance(source, list):
            return self.outputs(np.array([self.encoder.preprocessing.pixels(image) for image in source]))
        encoded = self.encode_photos(source)
        if encoded.problems:
            raise PhotoError(encoded.problems[0].reason)
        return encoded.values

    def encode_photos(self, photos: PhotoSource, *, progress: Progress | None = None) -> Encoded:
        """Outputs (and logits, with a label layer) of all photos that can be read; others are reported, not fatal."""
        sees, batch, run = self.encoder.preprocessing, self.encoder.batch, partial(rows_of_pixels, self)
        values, rows, done = [run(np.empty(0, np.uint8))], [np.empty(0, np.int64)], 0
        problems: list[Problem] = []
        for some in encode_rows(photos, range(len(photos)), sees, run, batch=batch):
            values += [some.values] if len(some.rows) else []
            rows.append(some.rows)
            problems += some.problems
            done += len(some.rows) + len(some.problems)
            if progress:
                progress(done, len(photos))
        return apart(self, Encoded(np.concatenate(values), np.concatenate(rows), tuple(problems)))

    def packed_rows(self, pixels: Pixels) -> NDArray[np.uint8]:
        """All that a collection stores of decoded photos, in one pass: packed bits, then packed scores of labels.

        The first `bytes_for(bits)` bytes of a row are the code; `calibration.width` of scores follow, if there is one.
        """
        return packed(self, rows_of_pixels(self, pixels))

    def to_codes(self, outputs: Outputs) -> Codes:
        return self.quantizer.encode(outputs) if self.quantizer else Codes.from_outputs(outputs)

    def label_outputs(self, wanted: Sequence[str], unwanted: Sequence[str] = ()) -> Outputs:
        """The place of a set of labels, (bits,): the middle of their unit anchors (Theorem 2), off the unwanted.

        An unwanted label weighs a third: it often goes along with what is wanted, and at full weight drags that out
        too. Over 544 pairs of labels of Flickr-25k (48 bits, top 100; speed/quality.py) .68 of the photos have the
        wanted one without the unwanted at a third, .57 at full weight.
        """
        if not wanted and not unwanted:
            raise LabelError("name at least one label to search with")
        return middle(wanted, unwanted, self.label_place)

    def label_place(self, label: str) -> Outputs:
        """The place of one label, its unit anchor; all are remembered, as searches ask for them again and again."""
        if self.anchors is None or self._places[0] is not self.anchors:
            self._places = self.anchors, dict(zip(self.classes, _unit_anchors(self), strict=True))
        if (place := self._places[1].get(label)) is None:
            meant = did_you_mean(label, self.classes) or f"it knows {len(self.classes)} others"
            raise LabelError(f"this hasher never saw the label {label!r}; {meant}")
        return place

    def tags(self, outputs: Outputs, logits: Logits | None = None) -> list[list[Tag]]:
        """For each photo, all labels with their scores, best first: probabilities, where its logits are given."""
        if logits is None or self.calibration is None:
            scores, above = unit(outputs) @ _unit_anchors(self).T, np.full(len(self.classes), np.inf, np.float32)
        else:
            scores, above = sigmoid(logits), self.calibration.thresholds
        order, guessed = np.argsort(-scores, axis=1, kind="stable"), frozenset(self.spec.guessed or ())
        return [
            [Tag(self.classes[c], float(row[c]), bool(row[c] >= above[c]), self.classes[c] in guessed) for c in best]
            for row, best in zip(scores, order, strict=True)
        ]

    def save(self, folder: str | Path) -> None:
        """Write hasher.toml and weights.safetensors into `folder`, each in one step; network.onnx, if it runs on it."""
        from safetensors.numpy import save_file

        folder = Path(folder)
        make_folder(folder)
        weights = _take_weights(self)
        header = {"format": "hyphash", "fingerprint": self.fingerprint}
        write_atomically(folder / WEIGHTS_FILE, lambda draft: save_file(weights, draft, header))
        if not _learned(weights):
            none, same = np.empty(0, np.uint8), self.fingerprint  # it is copied, not compared
            network_encoder(self.encoder).export(folder / ONNX_FILE, none, fingerprint=same, width=self.width)
        write_toml(folder / SPEC_FILE, self.spec)

    def export(self, folder: str | Path, photos: "Photos | None" = None) -> Exported:
        """Write the network as ONNX into the folder of this hasher, or with all else it needs into a new one.

        It is compared with the original on `photos` (64 are enough), or on drawn ones, before it gets its name.
        """
        folder = Path(folder)
        if (folder / SPEC_FILE).is_file() and read_spec(folder).fingerprint != self.fingerprint:
            raise RunError(f"{folder}: holds another hasher; choose another folder")
        pixels = _pixels_to_check(photos, self.encoder.preprocessing)
        make_folder(folder)
        draft = draft_of(folder / ONNX_FILE)
        try:
            encoder, same = network_encoder(self.encoder), self.fingerprint
            difference, changed = encoder.export(draft, pixels, fingerprint=same, width=self.width)
            if (folder / SPEC_FILE).is_file():
                draft.replace(folder / ONNX_FILE)
                sync(folder)
            else:
                exported = OnnxEncoder(draft, self.encoder.preprocessing, fingerprint=self.fingerprint)
                replace(self, encoder=exported).save(folder)
        finally:
            draft.unlink(missing_ok=True)
        return Exported(folder / ONNX_FILE, len(pixels), difference, changed)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> "Hasher":
        """Read a hasher back. No code of the folder's is ever run.

        It runs on torch where that is installed, else, or for the device "onnx", on what `export` wrote. One that was
        published is fetched: `Hasher.load("hf://user/name")`.
        """
        late = _saved(local_folder(folder), lambda: device)
        return replace(late, encoder=network_encoder(late.encoder), folder=None)

    @classmethod
    def to_encode(cls, folder: str | Path, *, device: str = "auto", late: bool = False) -> "Hasher":
        """Read a hasher back to encode photos and no more, on what does it fastest where the device is left open.

        That is a GPU, or else what `export` wrote: on a CPU onnxruntime takes half as long as torch. With `late`, the
        network is loaded when the first photo must be encoded: label queries need none.
        """
        here = local_folder(folder)
        if not late:
            return cls.load(here, device=_fastest(here, device))
        return _saved(here, lambda: _fastest(here, device))


def rows_of_pixels(hasher: Hasher, pixels: Pixels) -> Outputs:
    """Outputs of decoded photos, followed by the calibrated logits of labels where the hasher has a label layer."""
    batch = hasher.encoder.batch
    found = [hasher.encoder.outputs(pixels[i : i + batch]) for i in range(0, len(pixels), batch)]
    if found:
        return np.concatenate(found)
    return np.empty((0, hasher.width + (len(hasher.classes) if hasher.calibration else 0)), np.float32)


def packed(hasher: Hasher, rows: Outputs) -> NDArray[np.uint8]:
    """What `Hasher.packed_rows` gives, of rows that the network gave."""
    codes = hasher.to_codes(rows[:, : hasher.width]).packed
    return np.hstack([codes, hasher.calibration.pack(rows[:, hasher.width :])]) if hasher.calibration else codes


def apart(hasher: Hasher, encoded: Encoded) -> Encoded:
    """Rows that a network gave, as outputs and logits."""
    outputs, logits = np.split(encoded.values, [hasher.width], axis=1)
    return replace(encoded, values=outputs, logits=logits if hasher.calibration else None)


def _take_weights(hasher: Hasher) -> Weights:
    """All that a hasher learned, by name. Its fingerprint is of them, or of its origin where an ONNX file has them."""
    weights = network_encoder(hasher.encoder).weights()
    if hasher.anchors is not None:
        weights["anchors"] = np.ascontiguousarray(hasher.anchors, np.float32)
    if hasher.quantizer is not None:
        weights["quantizer"] = np.ascontiguousarray(hasher.quantizer.codewords, np.float32)
    if hasher.calibration is not None:
        weights |= hasher.calibration.arrays()
    if _learned(weights):
        facts = (*hasher.spec.preprocessing.parts, hasher.bits, *(["mirror"] if hasher.spec.mirror else []))
        hasher.spec = replace(hasher.spec, fingerprint=digest(facts, weights)[:16])
    return weights


def _saved(folder: Path, device: Callable[[], str]) -> Hasher:
    """A saved hasher, whose network is loaded on the device when the first photo comes."""
    from safetensors import SafetensorError, safe_open

    from hyphash.quantizer import Quantizer

    spec, path = read_spec(folder), folder / WEIGHTS_FILE
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            arrays = {name: file.get_tensor(name) for name in names if not _learned([name])}
            anchors, codewords = arrays.get("anchors"), arrays.get("quantizer")
            fingerprint = (file.metadata() or {}).get("fingerprint", spec.fingerprint)
        calibration = Calibration.from_arrays(arrays)
    except (OSError, TypeError, SafetensorError) as error:
        raise WeightsError(f"{path}: not weights that hyphash wrote ({error}); train or copy them again") from error
    if fingerprint != spec.fingerprint:  # a crash between the two files of a save
        raise WeightsError(
            f"{folder}: {WEIGHTS_FILE} and {SPEC_FILE} come from different runs or moments; "
            "copy both again, or finish the run with --resume"
        )
    for name, array in arrays.items():
        numbers = array.dtype.kind == "f" and np.abs(array).max(initial=0) < 1e15  # whose squares have a sum
        if array.ndim != {"anchors": 2, "quantizer": 3}.get(name, 1) or not numbers:
            raise WeightsError(f"{path}: {name} is {array.dtype} of shape {array.shape}, or has NaN; copy them again")
    quantizer = None if codewords is None else Quantizer(codewords, spec.bits)
    width = spec.bits if codewords is None else codewords[:, 0].size
    if anchors is not None and anchors.shape != (len(spec.classes), width):
        found = f"{len(anchors)} anchors for {len(spec.classes)} classes, of {anchors.shape[1]} outputs for {width}"
        raise WeightsError(f"{path}: does not fit {SPEC_FILE} ({found}); copy both again")
    if calibration is not None and len(calibration.priors) != len(spec.classes):
        raise WeightsError(f"{path}: a label layer of {len(calibration.priors)} for {len(spec.classes)} classes")
    late = LateEncoder(lambda: _load_encoder(folder, spec, device(), on_torch=_learned(names)), spec.preprocessing)
    return Hasher(spec, late, anchors=anchors, quantizer=quantizer, calibration=calibration, folder=folder)


def _load_encoder(folder: Path, spec: Spec, device: str, *, on_torch: bool) -> Encoder:
    """The network of a saved hasher: on torch, where its folder has weights for that, or on what `export` wrote."""
    require_whole(folder)
    if device != "onnx" and on_torch:
        try:
            return TorchEncoder(_load_network(folder, spec), spec.preprocessing, device=device)
        except ImportError as error:
            if not (folder / ONNX_FILE).is_file() or device not in ("auto", "cpu"):
                raise MissingExtraError("encoding photos", "train") from error
    return OnnxEncoder(folder / ONNX_FILE, spec.preprocessing, fingerprint=spec.fingerprint)


def _load_network(folder: Path, spec: Spec) -> "Network":
    from hyphash.networks import GuessHead, LabelHead, backbone_names, backbone_recipe, read_weights

    path = folder / WEIGHTS_FILE
    network = _assemble(spec, [backbone_recipe(name).build() for name in backbone_names(spec.backbone)])
    tensors = read_weights(path)
    state = {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
    if "labels.first.weight" in state:
        hidden, features = state["labels.first.weight"].shape
        network.labels = LabelHead(features, hidden, spec.learned)
    if "guesses.members" in state:
        network.guesses = GuessHead(state["guesses.classifier.weight"].shape[1], *state["guesses.members"].shape)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise WeightsError(f"{path}: does not fit {spec.backbone} ({reason})") from error
    return network


def write_checksums(folder: Path) -> None:
    """Note what the files of a hasher are; of those that were noted before, what they were."""
    files = (folder / SPEC_FILE, folder / WEIGHTS_FILE, *folder.glob("*.onnx"))
    found = {path.name: file_digest(path) for path in files}
    lines = (f"{digest}  {name}\n" for name, digest in (found | _checksums(folder)).items())
    write_atomically(folder / CHECKSUMS_FILE, "".join(lines))


def require_whole(folder: Path) -> None:
    """Refuse a hasher whose files are not those that were noted; one of which nothing was noted may be anything."""
    for name, expected in _checksums(folder).items():
        path = folder / name
        if path.is_file() and file_digest(path) != expected:
            way = "write it again with `hyphash export`" if path.suffix == ".onnx" else "copy its run there again"
            raise WeightsError(f"{path}: damaged, not the hasher that was installed; {way}, or restore a backup")


def _checksums(folder: Path) -> dict[str, str]:
    former = folder / "weights.sha256"  # all that was noted before there was a list
    if former.is_file():
        return {WEIGHTS_FILE: former.read_text(errors="replace").strip()}
    if not (folder / CHECKSUMS_FILE).is_file():
        return {}
    lines = (folder / CHECKSUMS_FILE).read_text(errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _fastest(folder: Path, device: str) -> str:
    usable = device == "auto" and (folder / ONNX_FILE).is_file() and find_spec("onnxruntime")
    return "onnx" if usable and not gpus() else device


def _learned(weights: Iterable[str]) -> bool:
    """Whether weights, by their names, are those of a network on torch."""
    return any(name.startswith("network.") for name in weights)


def _pixels_to_check(photos: "Photos | None", preprocessing: Preprocessing) -> Pixels:
    """The first photos that can be read; without any, noise and stripes of colour."""
    if photos is None:
        noise = np.random.default_rng(0).integers(0, 256, (CHECKED // 4, *preprocessing.shape), np.uint8)
        return np.concatenate([noise, np.broadcast_to(noise[:, :1], noise.shape)])
    source = as_source(photos)
    if isinstance(source, list):
        found = [preprocessing.pixels(image) for image in source[:CHECKED]]
    else:
        seen = (pixels for _, pixels in decoded(source, preprocessing) if not isinstance(pixels, Problem))
        found = list(islice(seen, CHECKED))
    if not found:
        raise PhotoError("none of the photos can be read; give others to check the exported network with")
    return np.stack(found)


def read_spec(folder: Path) -> Spec:
    """The description of a saved hasher, without its weights."""
    path = Path(folder) / SPEC_FILE
    if not path.is_file():
        raise RunError(f"{folder}: holds no trained hasher (no {SPEC_FILE}); give a folder made by `hyphash train`")
    for other in path.parent.glob("*"):  # whoever reads a FIFO or a device waits for ever
        if other.exists() and not other.is_file() and not other.is_dir():
            raise RunError(f"{other}: neither a file nor a folder, as a run holds; delete it")
    table = read_toml(path)
    if (number := table.get("format")) != FORMAT:
        raise RunError(f"{path}: format {number}, this hyphash reads {FORMAT}; use the version that wrote it")
    return from_table(Spec, table, str(path))


def _assemble(spec: Spec, backbones: "Sequence[Backbone]") -> "Network":
    """The network of a hasher: its head over its backbones."""
    from hyphash.losses import heads
    from hyphash.networks import Network, SideBySide

    sizes = [sees.size for sees in spec.preprocessing.parts]
    backbone = SideBySide(backbones, sizes) if len(backbones) > 1 else backbones[0]
    if spec.on_map and spec.preprocessing.beside:
        raise ConfigError(
            f"this method looks at the feature map of one backbone, and {spec.backbone} are several; choose another "
            "--loss, or a single --backbone"
        )
    for part in backbone.parts:
        part.mirror = spec.mirror
    features = backbone.map_features if spec.on_map else backbone.features
    shape: dict[str, Any] = {"bits": spec.bits, "classes": spec.learned, "hidden": spec.hidden, "dropout": spec.dropout}
    return Network(backbone, heads[spec.head](features=features, **shape), on_map=spec.on_map)


def as_source(photos: "Photos") -> "PhotoSource | list[Image]":
    """Photos given as paths, as images or as a split."""
    if isinstance(photos, str | Path) or hasattr(photos, "getpixel"):
        raise ConfigError(f"give a list of photos, [{photos!r}], even if there is only one")
    if isinstance(photos, PhotoSource):
        return photos
    given = list(photos)
    if all(isinstance(photo, str | Path) for photo in given):
        return PhotoFiles(cast("list[str | Path]", given))
    if others := [photo for photo in given if not hasattr(photo, "getpixel")]:  # what a PIL image can do
        raise ConfigError(f"give all photos as paths or all as Pillow images, not {others[0]!r} among others")
    return cast("list[Image]", given)


def middle(wanted: Sequence[str], unwanted: Sequence[str], place: Callable[[str], Outputs]) -> Outputs:
    """Where a set of labels lies, given the place of each; see Hasher.label_outputs."""
    if both := sorted({*wanted} & {*unwanted}):
        raise LabelError(f"the label {both[0]!r} is wanted and unwanted at once; leave one out")
    return unit(np.add.reduce([*map(place, wanted), *(-AVERSION * place(label) for label in unwanted)]))


def _unit_anchors(hasher: Hasher) -> Outputs:
    if hasher.anchors is None:
        raise LabelError("this hasher knows no labels: its method was fitted without them; train one with labels")
    return unit(hasher.anchors)


def unit(vectors: NDArray[np.floating[Any]]) -> Outputs:
    """Rows (or one vector) scaled to length 1; zero stays zero."""
    norms = np.sqrt(np.add.reduce(vectors * vectors, axis=-1, keepdims=True))  # np.linalg.norm takes twice as long
    return cast(Outputs, (vectors / np.maximum(norms, 1e-12)).astype(np.float32))
