"""Benchmarks as data: the paper's tables as transcribed, which runs benchmarks ask for, and which they share."""

import tomllib

import pytest

from hyphash import benchmarks
from hyphash.benchmarks import (
    ABLATION,
    BENCHMARKS,
    COMPLEXITY,
    DATASETS,
    MAP,
    SPREAD,
    TITLES,
    Method,
    benchmark,
)
from hyphash.config import Config, from_table
from hyphash.errors import ConfigError
from hyphash.losses import build, names


def test_the_paper_s_tables_and_figures_are_all_there():
    assert list(BENCHMARKS) == [
        *("flickr25k", "nuswide", "voc2007", "voc2012", "ablation", "spread", "complexity", "datasets"),
        *("convergence", "topn", "tsne", "gallery", "theorem"),
    ]
    assert all(b.about and b.needs and b.takes for b in BENCHMARKS.values())
    with pytest.raises(ConfigError, match="no benchmark is called 'flickr'; there are flickr25k"):
        benchmark("flickr")


def test_a_method_takes_the_dataset_s_beta_unless_its_name_has_one():
    assert Method.of("hyp2", DATASETS["voc2007"]).options == {"beta": 0.5}
    assert Method.of("hyp2-1.25", DATASETS["voc2007"]).options == {"beta": 1.25}
    assert Method.of("proxy-pair", DATASETS["voc2007"]).loss == "proxy-pair"
    assert Method.of("proxy", DATASETS["voc2007"]).seeds == (0, 1, 2)


TUNED = """
[fine-tune.hyp2]
study = "a study"
loss_options = { beta = 0.25 }
settings = { rate = 0.003, schedule = "cosine" }
"""


def test_every_tuned_setting_is_one():
    """Those that are here, and a made-up one."""
    for methods in (*benchmarks.TUNED.values(), *benchmarks.read_tuned(tomllib.loads(TUNED)).values()):
        for loss, tuned in methods.items():
            build(loss, bits=12, classes=5, **tuned.loss_options)
            from_table(Config, tuned.settings, loss)
            assert tuned.study
    with pytest.raises(ConfigError, match=r"tuned.toml: frozen.hyp2: unknown setting 'alpha'"):
        benchmarks.read_tuned({"frozen": {"hyp2": {"study": "x", "alpha": 3}}})


# ── what the paper prints, checked against what it prints beside it ──────────────────────────────────────

# the column "avg. Δ" of tables 3 and 4: the mean gain over the first row of the table
GAINS = {
    "flickr25k": {
        **{"dqn": 0.069, "dhn": 0.079, "hashnet": 0.073, "dmssph": 0.050, "idhn": 0.071, "proxy-anchor": 0.075},
        **{"csq": 0.077, "orthohash": 0.115, "dcilh": 0.122, "hyp2": 0.127},
    },
    "nuswide": {
        **{"dqn": 0.124, "dhn": 0.128, "hashnet": 0.095, "dmssph": 0.093, "idhn": 0.180, "proxy-anchor": 0.188},
        **{"csq": 0.132, "orthohash": 0.191, "dcilh": 0.182, "hyp2": 0.212},
    },
    "voc2007": {
        **{"ninh": 0.077, "dsh": 0.033, "iah": 0.120, "olah": 0.156, "idhn": 0.050, "proxy-anchor": 0.072},
        **{"orthohash": 0.144, "hyp2": 0.176},
    },
    "voc2012": {
        **{"ninh": 0.072, "dsh": 0.054, "iah": 0.126, "olah": 0.167, "idhn": 0.078, "proxy-anchor": 0.071},
        **{"orthohash": 0.160, "hyp2": 0.181},
    },
}


@pytest.mark.parametrize("dataset", MAP)
def test_rows_have_the_mean_gain_that_the_paper_prints(dataset):
    (_, first), *others = MAP[dataset].items()
    assert [key for key, _ in others] == list(GAINS[dataset])  # all of them, in the order of the paper
    assert list(first.values) == list(DATASETS[dataset].bits)
    for key, row in others:
        gain = sum(a - b for a, b in zip(row.values.values(), first.values.values(), strict=True)) / len(first.values)
        assert gain == pytest.approx(GAINS[dataset][key], abs=0.0012), key  # printed with three digits


@pytest.mark.parametrize(("dataset", "row"), [("flickr25k", "hyp2-1"), ("voc2007", "hyp2-0.5")])
def test_the_ablation_repeats_the_row_of_the_table(dataset, row):
    assert ABLATION[dataset][row].values == MAP[dataset]["hyp2"].values
    assert row == f"hyp2-{DATASETS[dataset].beta:g}"


def test_sizes_add_up():
    for dataset in DATASETS.values():
        parts = dataset.queries + dataset.database + (0 if dataset.train == dataset.database else dataset.train)
        assert parts == dataset.photos


def test_every_method_is_one_of_ours_and_has_a_title():
    keys = {key for rows in (*MAP.values(), *ABLATION.values()) for key in rows} | set(COMPLEXITY)
    assert keys <= set(TITLES)
    assert {key.partition("-")[0] if key.startswith("hyp2") else key for key in keys} <= set(names())
    assert SPREAD["flickr25k"]["d_intra"].keys() == SPREAD["flickr25k"]["d_inter"].keys()


def test_quoted_figures_name_their_source():
    rows = [row for table in MAP.values() for row in table.values()]
    assert {row.origin for row in rows} == {"own", "re-run", "quoted"}
    assert all("paper of" in row.source for row in rows if row.origin == "quoted")
    assert MAP["flickr25k"]["hyp2"].values[36] == 0.893
    assert MAP["flickr25k"]["hyp2"].values.keys() == {12, 24, 36, 48}
