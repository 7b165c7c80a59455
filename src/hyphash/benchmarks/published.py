"""What the paper prints: every figure of its tables, with its source. Nothing here was measured by us.

Source of all of it: Xu et al., HyP² Loss: Beyond Hypersphere Metric Space for Multi-label Image Retrieval,
ACM MM 2022. Its tables mark which figures its authors took over from other papers ("quoted") and which they
measured themselves with public models ("re-run"); figures of its own method are "own".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Origin = Literal["own", "re-run", "quoted"]

PAPER = "Xu et al., HyP² Loss, ACM MM 2022"


@dataclass(frozen=True)
class Row:
    """One row of a published table: a figure for every length of code."""

    values: tuple[float, ...]
    origin: Origin
    source: str = PAPER  # where the authors quoted it from, where they did

    def at(self, lengths: tuple[int, ...], bits: int) -> float | None:
        return self.values[lengths.index(bits)] if bits in lengths else None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as the paper uses it: its sizes, its share η of irrelevant pairs, and how it is measured."""

    name: str
    title: str
    photos: int
    classes: int
    database: int
    train: int
    queries: int
    eta: float
    top: int  # N of mAP@N
    bits: tuple[int, ...]
    beta: float  # of HyP²
    beta_from: str
    backbones: tuple[tuple[str, int | None], ...]  # with the side of the photos, where it is not the backbone's own


DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        dataset.name: dataset
        for dataset in (
            Dataset(
                name="flickr25k",
                title="Flickr-25k",
                photos=24_581,
                classes=38,
                database=19_581,
                train=4_000,
                queries=1_000,
                eta=0.286,
                top=1_000,
                bits=(12, 24, 36, 48),
                beta=1.0,
                beta_from="the paper's text",
                backbones=(("alexnet", None),),
            ),
            Dataset(
                name="nuswide",
                title="NUS-WIDE",
                photos=195_834,
                classes=21,
                database=183_234,
                train=10_500,
                queries=2_100,
                eta=0.242,
                top=5_000,
                bits=(12, 24, 36, 48),
                beta=0.5,
                beta_from="the default of the authors' code; the text does not say",
                backbones=(("alexnet", None),),
            ),
            Dataset(
                name="voc2007",
                title="VOC-2007",
                photos=9_963,
                classes=20,
                database=5_011,
                train=5_011,
                queries=4_952,
                eta=0.062,
                top=5_011,
                bits=(16, 32, 48, 64),
                beta=0.5,
                beta_from="the paper's text",
                backbones=(("inception_v3", 448), ("googlenet", None)),  # what the code runs, what the text names
            ),
            Dataset(
                name="voc2012",
                title="VOC-2012",
                photos=11_540,
                classes=20,
                database=5_717,
                train=5_717,
                queries=5_823,
                eta=0.055,
                top=5_717,
                bits=(16, 32, 48, 64),
                beta=0.5,
                beta_from="the paper's text",
                backbones=(("inception_v3", 448), ("googlenet", None)),
            ),
        )
    }
)

IDHN = "the paper of IDHN, IEEE TMM 2020"
OLAH_PAPER = "the paper of OLAH, IEEE TIP 2018"


def _quoted(source: str, *values: float) -> Row:
    return Row(values, "quoted", source)


def _rerun(*values: float) -> Row:
    return Row(values, "re-run")


def _own(*values: float) -> Row:
    return Row(values, "own")


# mAP by Hamming ranking, tables 3 and 4 of the paper, by dataset and method
MAP: Mapping[str, Mapping[str, Row]] = MappingProxyType(
    {
        "flickr25k": {
            "dlbhc": _quoted(IDHN, 0.724, 0.757, 0.757, 0.776),
            "dqn": _quoted(IDHN, 0.809, 0.823, 0.830, 0.827),
            "dhn": _rerun(0.817, 0.831, 0.829, 0.851),
            "hashnet": _quoted(IDHN, 0.791, 0.826, 0.841, 0.848),
            "dmssph": _quoted(IDHN, 0.780, 0.808, 0.810, 0.816),
            "idhn": _rerun(0.827, 0.823, 0.822, 0.828),
            "proxy-anchor": _rerun(0.796, 0.831, 0.834, 0.853),
            "csq": _rerun(0.795, 0.819, 0.849, 0.857),
            "orthohash": _rerun(0.837, 0.869, 0.877, 0.891),
            "dcilh": _rerun(0.852, 0.879, 0.884, 0.888),
            "hyp2": _own(0.845, 0.881, 0.893, 0.901),
        },
        "nuswide": {
            "dlbhc": _quoted(IDHN, 0.570, 0.616, 0.621, 0.635),
            "dqn": _quoted(IDHN, 0.711, 0.733, 0.745, 0.749),
            "dhn": _rerun(0.720, 0.742, 0.741, 0.749),
            "hashnet": _quoted(IDHN, 0.643, 0.694, 0.737, 0.750),
            "dmssph": _quoted(IDHN, 0.671, 0.699, 0.717, 0.727),
            "idhn": _rerun(0.772, 0.790, 0.795, 0.803),
            "proxy-anchor": _rerun(0.767, 0.802, 0.809, 0.815),
            "csq": _rerun(0.692, 0.754, 0.757, 0.769),
            "orthohash": _rerun(0.770, 0.802, 0.810, 0.825),
            "dcilh": _rerun(0.775, 0.793, 0.797, 0.804),
            "hyp2": _own(0.794, 0.822, 0.831, 0.843),
        },
        "voc2007": {
            "dhn": _rerun(0.735, 0.743, 0.737, 0.728),
            "ninh": _quoted(OLAH_PAPER, 0.746, 0.816, 0.840, 0.851),
            "dsh": _quoted(OLAH_PAPER, 0.763, 0.767, 0.769, 0.775),
            "iah": _quoted(OLAH_PAPER, 0.800, 0.862, 0.878, 0.883),
            "olah": _quoted(OLAH_PAPER, 0.849, 0.899, 0.906, 0.914),
            "idhn": _rerun(0.772, 0.801, 0.796, 0.772),
            "proxy-anchor": _rerun(0.752, 0.802, 0.836, 0.841),
            "orthohash": _rerun(0.831, 0.876, 0.902, 0.909),
            "hyp2": _own(0.862, 0.917, 0.932, 0.937),
        },
        "voc2012": {
            "dhn": _rerun(0.722, 0.721, 0.718, 0.701),
            "ninh": _quoted(OLAH_PAPER, 0.731, 0.788, 0.809, 0.822),
            "dsh": _quoted(OLAH_PAPER, 0.753, 0.766, 0.776, 0.782),
            "iah": _quoted(OLAH_PAPER, 0.794, 0.844, 0.862, 0.864),
            "olah": _quoted(OLAH_PAPER, 0.830, 0.887, 0.904, 0.908),
            "idhn": _rerun(0.785, 0.805, 0.797, 0.785),
            "proxy-anchor": _rerun(0.722, 0.795, 0.804, 0.823),
            "orthohash": _rerun(0.823, 0.885, 0.893, 0.900),
            "hyp2": _own(0.841, 0.903, 0.917, 0.925),
        },
    }
)

# table 5: what each part of the loss is worth, mAP
ABLATION: Mapping[str, Mapping[str, Row]] = MappingProxyType(
    {
        "flickr25k": {
            "pair": _own(0.779, 0.832, 0.837, 0.847),
            "proxy": _own(0.787, 0.834, 0.856, 0.871),
            "proxy-pair": _own(0.817, 0.851, 0.857, 0.870),
            "hyp2-0.5": _own(0.838, 0.876, 0.893, 0.896),
            "hyp2-0.75": _own(0.842, 0.877, 0.891, 0.896),
            "hyp2-1": _own(0.845, 0.881, 0.893, 0.901),
            "hyp2-1.25": _own(0.841, 0.877, 0.891, 0.897),
        },
        "voc2007": {
            "pair": _own(0.732, 0.766, 0.777, 0.781),
            "proxy": _own(0.767, 0.820, 0.873, 0.887),
            "proxy-pair": _own(0.818, 0.843, 0.875, 0.881),
            "hyp2-0.5": _own(0.862, 0.917, 0.932, 0.937),
            "hyp2-0.75": _own(0.859, 0.915, 0.930, 0.935),
            "hyp2-1": _own(0.857, 0.912, 0.926, 0.934),
            "hyp2-1.25": _own(0.843, 0.909, 0.927, 0.935),
        },
    }
)

# table 6: d_intra (small is good) and d_inter (large is good)
SPREAD: Mapping[str, Mapping[str, Mapping[str, Row]]] = MappingProxyType(
    {
        "flickr25k": {
            "d_intra": {
                "pair": _own(3.043, 3.453, 4.320, 4.749),
                "proxy": _own(2.094, 2.695, 3.174, 3.763),
                "proxy-pair": _own(2.387, 2.792, 3.351, 3.734),
                "hyp2-1": _own(1.859, 2.395, 2.877, 3.237),
            },
            "d_inter": {
                "pair": _own(2.264, 2.868, 3.480, 4.152),
                "proxy": _own(2.564, 3.322, 4.144, 4.890),
                "proxy-pair": _own(2.402, 2.995, 3.524, 3.837),
                "hyp2-1": _own(3.633, 4.331, 4.560, 5.202),
            },
        }
    }
)

# table 1: cost of an epoch over M photos with C classes, B photos a batch, k proxies a class
COMPLEXITY: Mapping[str, str] = MappingProxyType(
    {
        "proxy-nca": "O(MC)",
        "proxy-anchor": "O(MC)",
        "orthohash": "O(MC)",
        "soft-triple": "O(MCk²)",
        "contrastive": "O(M²)",
        "hashnet": "O(M²)",
        "dhn": "O(M²)",
        "idhn": "O(M²)",
        "triplet-smart": "O(M²)",
        "triplet-semi-hard": "O(M³/B²)",
        "n-pair": "O(M³)",
        "lifted": "O(M³)",
        "hyp2": "O(MC + ηM²)",
    }
)

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "dlbhc": "DLBHC",
        "dqn": "DQN",
        "dhn": "DHN",
        "hashnet": "HashNet",
        "dmssph": "DMSSPH",
        "idhn": "IDHN",
        "proxy-anchor": "Proxy Anchor",
        "csq": "CSQ",
        "orthohash": "OrthoHash",
        "dcilh": "DCILH",
        "ninh": "NINH",
        "dsh": "DSH",
        "iah": "IAH",
        "olah": "OLAH",
        "hyp2": "HyP²",
        "pair": "pair",
        "proxy": "proxy",
        "proxy-pair": "proxy + pair",
        "hyp2-0.5": "HyP² β = 0.5",
        "hyp2-0.75": "HyP² β = 0.75",
        "hyp2-1": "HyP² β = 1",
        "hyp2-1.25": "HyP² β = 1.25",
        "proxy-nca": "Proxy-NCA",
        "soft-triple": "SoftTriple",
        "contrastive": "contrastive",
        "triplet-smart": "triplet, smart",
        "triplet-semi-hard": "triplet, semi-hard",
        "n-pair": "N-pair",
        "lifted": "lifted structure",
    }
)
