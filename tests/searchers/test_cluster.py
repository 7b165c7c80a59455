"""Milvus as a cluster of processes, with two nodes that search: the same code as for a stand-alone server."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import drawing
import pytest

from hyphash.searchers import Filter, Query
from hyphash.searchers.local import Local
from hyphash.searchers.milvus import Milvus
from hyphash.stores import store_for

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
    store = store_for("sqlite").create(tmp_path, "sqlite", fingerprint=ME, bits=BITS)
    local = Local(tmp_path, store)
    searcher = Milvus.create(tmp_path, cluster.url(shards=2, replicas=2, patience=90), store)
    codes, queries = trained_like(3_000), trained_like(4, seed=7)
    for start in range(0, 3_000, 1_000):
        store.upsert(photos_with(codes[start : start + 1_000], start=start), fingerprint=ME)
    searcher.tidy()
    store.remove(range(100, 200))

    def compared() -> None:
        for i, query in enumerate(queries[j] for j in range(4)):
            only = [Filter(), Filter(carrying=("odd", "three")), Filter(excluded=(3, 9)), Filter(radius=3)][i]
            ours, theirs = (one.search(Query(query, 20, only=only, fingerprint=ME)) for one in (searcher, local))
            assert ours.ids.tolist() == theirs.ids.tolist()
            assert ours.distances.tolist() == theirs.distances.tolist()
            assert ours.total == theirs.total

    compared()
    assert len(searcher.server._do("asking", "describe_replica", "hyphash_1")) == 2
    cluster.kill("querynode")
    compared()
    assert searcher.verify() == []
    searcher.close()
    store.close()
