"""Milvus as a cluster of processes, with two nodes that search: the same code as for a stand-alone server."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import drawing
import pytest
from hyphash.engines import Choice
from hyphash.engines.local import Local
from hyphash.engines.milvus import Milvus

ME = "0123456789abcdef"
BITS = 24
trained_like = partial(drawing.trained_like, bits=BITS)
photos_with = drawing.even_and_odd
pytestmark = pytest.mark.needs("etcd-server")  # the parts of a cluster meet through etcd


@pytest.fixture(scope="module")
def cluster(servers: ModuleType) -> Iterator[Any]:
    pytest.importorskip("confluent_kafka", reason="a cluster speaks through a broker; pip install confluent-kafka")
    cluster = servers.MilvusCluster()
    yield cluster
    cluster.stop()


def test_a_cluster_answers_as_local_does_and_outlives_a_node(cluster: Any, tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    local = Local.create(folders[0], "local", fingerprint=ME, bits=BITS)
    engine = Milvus.create(folders[1], cluster.url(shards=2, replicas=2, patience=90), fingerprint=ME, bits=BITS)
    codes, queries = trained_like(3_000), trained_like(4, seed=7)
    for start in range(0, 3_000, 1_000):
        some = photos_with(codes[start : start + 1_000], start=start)
        assert engine.upsert(some, fingerprint=ME) == local.upsert(some, fingerprint=ME)
    engine.settle()
    assert engine.remove(range(100, 200)) == local.remove(range(100, 200)) == 100

    def compared() -> None:
        for i, query in enumerate(queries[j] for j in range(4)):
            choice = [Choice(), Choice(carrying=("odd", "three")), Choice(excluded=(3, 9)), Choice(radius=3)][i]
            ours, theirs = (one.search(query, 20, choice=choice, fingerprint=ME) for one in (engine, local))
            assert ours.ids.tolist() == theirs.ids.tolist()
            assert ours.distances.tolist() == theirs.distances.tolist()
            assert ours.total == theirs.total

    compared()
    assert engine.labels() == local.labels()
    assert len(engine.server._do("asking", lambda c: c.describe_replica("hyphash_1"))) == 2
    cluster.kill("querynode")
    compared()
    assert engine.verify() == []
    engine.close()
    local.close()
