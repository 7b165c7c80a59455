"""Small drawn trees in the layouts of the benchmarks, and records of runs that were never made."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from hyphash.benchmarks import BENCHMARKS, DATASETS
from hyphash.benchmarks.runs import Choices, Point, Record, Results, RunCodes, plan
from hyphash.codes import Codes
from hyphash.config import to_table
from hyphash.evaluation import Rankings, evaluate_codes


def draw_photo(path, labels, rng):
    """Stripes in the colours of the labels: something to learn."""
    pixels = np.full((32, 32, 3), 128, np.uint8)
    for place, label in enumerate(np.flatnonzero(labels)[:4]):
        pixels[:, 8 * place : 8 * place + 8] = np.random.default_rng(int(label)).integers(0, 255, 3)
    Image.fromarray(pixels ^ rng.integers(0, 8, pixels.shape, np.uint8)).save(path)


def some_labels(n, classes, rng):
    labels = (rng.random((n, classes)) < 1.5 / classes).astype(np.uint8)
    labels[np.arange(n), rng.integers(0, classes, n)] = 1
    return labels


@pytest.fixture(scope="session")
def nuswide_tree(tmp_path_factory):
    """NUS-WIDE as lists: 24 photos to train, 8 queries, 30 in the database."""
    root, rng = tmp_path_factory.mktemp("nuswide"), np.random.default_rng(0)
    (root / "images").mkdir()
    for part, count in (("train", 24), ("test", 8), ("database", 30)):
        lines = []
        for i, labels in enumerate(some_labels(count, 21, rng)):
            name = f"images/{part}{i}.jpg"
            draw_photo(root / name, labels, rng)
            lines.append(f"{name} {' '.join(map(str, labels))}")
        (root / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="session")
def voc_tree(tmp_path_factory):
    """VOC-2007's devkit: 16 photos in trainval, 6 in test."""
    from hyphash.datasets.voc import CLASSES

    root, rng = tmp_path_factory.mktemp("voc"), np.random.default_rng(1)
    year = root / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (year / folder).mkdir(parents=True)
    labels = some_labels(22, 20, rng)
    for i, row in enumerate(labels):
        draw_photo(year / "JPEGImages" / f"{i:06}.jpg", row, rng)
        objects = "".join(f"<object><name>{CLASSES[c]}</name></object>" for c in np.flatnonzero(row))
        xml = f"<annotation><filename>{i:06}.jpg</filename>{objects}</annotation>"
        (year / "Annotations" / f"{i:06}.xml").write_text(xml)
    names = [f"{i:06}" for i in range(22)]
    (year / "ImageSets/Main/trainval.txt").write_text("\n".join(names[:16]))
    (year / "ImageSets/Main/test.txt").write_text("\n".join(names[16:]))
    return root


QUERIES, PHOTOS, CLASSES = 40, 120, 38


@pytest.fixture(scope="session")
def made_up():
    """A function that makes a record and codes for a run; better methods get codes nearer to their labels."""
    rng = np.random.default_rng(0)
    query_labels, database_labels = some_labels(QUERIES, CLASSES, rng), some_labels(PHOTOS, CLASSES, rng)
    known = {}

    def measured(bits, noise):
        if (bits, noise) not in known:
            places = np.random.default_rng(bits).normal(size=(CLASSES, bits))
            outputs = [
                (labels @ places + noise * rng.normal(size=(len(labels), bits))).astype(np.float32)
                for labels in (query_labels, database_labels)
            ]
            codes = [Codes.from_outputs(values) for values in outputs]
            report = evaluate_codes(Rankings(*codes, query_labels, database_labels, query_outputs=outputs[0]), top=50)
            known[bits, noise] = report, RunCodes(*codes, outputs[0])
        return known[bits, noise]

    def make(run, shift=0.0):
        noise = {"hyp2": 0.3, "orthohash": 0.6, "proxy": 0.8}.get(run.config.loss, 1.5)
        report, codes = measured(run.config.bits, noise)
        scores = [replace(s, mean_average_precision=s.mean_average_precision + shift) for s in report.scores]
        points = [Point(epoch, epoch / 2, 0.8 - 1 / epoch, 0.7 - 1 / epoch) for epoch in (2, 4, 6)]
        record = Record(
            hash=run.hash,
            config=to_table(run.config),
            weights=run.weights,
            report=replace(report, scores=tuple(scores)),
            versions={"torch": "0"},
            device="a made-up device",
            precision="float32",
            alongside=1,
            seconds={"training": 3.0, "evaluation": 1.0, "whole": 5.0},
            epoch=6,
            loss=0.5,
            photos=100,
            curve=tuple(points) if run.watch else (),
        )
        return record, codes

    make.labels = query_labels
    return make


@pytest.fixture
def filled(tmp_path, made_up):
    """A results folder with made-up records of all runs of a benchmark on Flickr-25k."""

    def fill(*names):
        results = Results(tmp_path / "results")
        for name in names:
            for number, planned in enumerate(plan(BENCHMARKS[name], DATASETS["flickr25k"], Choices(), {})):
                results.keep(*made_up(planned.run, shift=0.001 * (number % 3)))
        classes = [f"label {c}" for c in range(CLASSES)]
        packed = np.packbits(made_up.labels, axis=1)
        results.keep_facts("queries-flickr25k", {"classes": classes, "labels": [row.tobytes().hex() for row in packed]})
        return results

    return fill
