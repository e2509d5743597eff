"""The first pass equals Anserini's on a complete collection: CACM, BM25 (0.9, 0.4), tags stripped, one field."""

from pathlib import Path

import ir_measures
import pytest
from ir_measures import AP, P, ScoredDoc
from opensearchpy import OpenSearch

from osrerank.formats.common_layout import flatten_qrels
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import load

pytestmark = pytest.mark.integration


def test_bm25_on_cacm_has_its_published_measures(opensearch_url: str, shared: Path) -> None:
    """By a plain match query: score descending, then document id, as Anserini breaks ties."""
    run = []
    with OpenSearch([opensearch_url]) as client:
        summary = load(client, "cacm", LOADERS["trec"], [str(shared / "cacm" / "cacm.tar.gz")])
        assert (summary.read, summary.indexed) == (3204, 3204)
        for query in read_queries(shared / "cacm" / "topics.cacm.txt"):
            body = {"query": {"match": {"text": query.text}}, "size": 1000, "_source": False}
            hits = client.search(index="cacm", body=body)["hits"]["hits"]
            ranking = sorted(hits, key=lambda hit: (-hit["_score"], hit["_id"]))
            run += [ScoredDoc(query.query_id, hit["_id"], float(-index)) for index, hit in enumerate(ranking)]
        client.indices.delete(index="cacm")
    judgments = flatten_qrels(read_qrels(shared / "cacm" / "qrels.cacm.txt"))
    measured = ir_measures.calc_aggregate([AP, P @ 30], [ir_measures.Qrel(*judgment) for judgment in judgments], run)
    print({str(measure): round(value, 5) for measure, value in measured.items()})  # noqa: T201 - shown by pytest -s
    assert measured[AP] == pytest.approx(0.3123, abs=0.0005)
    assert measured[P @ 30] == pytest.approx(0.1942, abs=0.00005)
