"""RM3 as published: Anserini's numbers on CACM, on OpenSearch; the embedded engine beside OpenSearch; the client."""

from pathlib import Path

import ir_measures
import pytest
from ir_measures import AP, P

from osrerank import connect
from osrerank.cli import main
from osrerank.testing import FunctionScorer
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import LoadOptions, load
from osrerank_loaders.load.mapping import IndexOptions
from tests.articles import fill

pytestmark = pytest.mark.integration

SCORER = FunctionScorer(lambda query, text: float(len(set(query.split()) & set(text.lower().split()))))


def test_a_search_widened_by_rm3_is_reranked(engine, engine_url, index_name):
    texts = [
        "salt raises blood pressure in the arteries",
        "arteries harden and the heart works harder",
        "salt raises the boiling point of water",
        "the heart pumps blood through arteries",
        *[f"nothing of that number {index}" for index in range(40)],
    ]
    engine.indices.create(
        index=index_name,
        body={
            "settings": {"number_of_shards": 1, "number_of_replicas": 0},
            "mappings": {"properties": {"text": {"type": "text", "analyzer": "english"}}},
        },
    )
    fill(engine, index_name, [{"text": text} for text in texts])
    with connect(engine_url, scorer=SCORER) as client:
        plain = client.search("blood pressure", index=index_name, rerank={"pipeline": "none", "query_fields": "text"})
        options = {"pipeline": "none", "rm3": True}
        wide = client.search("blood pressure", index=index_name, rerank=options)
        reranked = client.search("blood pressure", index=index_name, rerank={"rm3": True})
        nothing = client.search("zzzz", index=index_name, rerank=options)
    assert {hit["_id"] for hit in plain["hits"]["hits"]} == {"0", "3"}
    assert {hit["_id"] for hit in wide["hits"]["hits"]} == {"0", "1", "2", "3"}
    assert wide["rerank"]["reason_code"] == "not_asked"
    assert {hit["_id"] for hit in reranked["hits"]["hits"]} == {"0", "1", "2", "3"}
    assert reranked["rerank"]["applied"] is True
    assert nothing["hits"]["hits"] == []


def index_cacm(url: str, name: str, shared: Path, **constants: float) -> None:
    options = LoadOptions(index=IndexOptions(**constants))
    with connect(url) as client:
        load(client, name, LOADERS["trec"], [str(shared / "cacm" / "cacm.tar.gz")], options=options)


def run_of(url: str, name: str, output: Path, shared: Path, *options: str) -> dict:
    """Run CACM's topics by `osrerank run`, and return the measures of what it wrote."""
    topics = str(shared / "cacm" / "topics.cacm.txt")
    arguments = ["--url", url, "run", "--queries", topics, "--index", name, "-o", str(output), "--no-rerank", *options]
    main(arguments)
    qrels = ir_measures.read_trec_qrels(str(shared / "cacm" / "qrels.cacm.txt"))
    return ir_measures.calc_aggregate([AP, P @ 30], qrels, ir_measures.read_trec_run(str(output)))


@pytest.mark.slow
def test_rm3_on_cacm_has_its_published_measures(opensearch_url, shared, tmp_path):
    index_cacm(opensearch_url, "cacm-rm3", shared)
    try:
        measured = run_of(opensearch_url, "cacm-rm3", tmp_path / "rm3.run", shared, "--rm3")
    finally:
        connect(opensearch_url).indices.delete(index="cacm-rm3")
    print({str(measure): round(value, 5) for measure, value in measured.items()})  # noqa: T201 - shown by pytest -s
    assert measured[AP] == pytest.approx(0.3648, abs=0.001)
    assert measured[P @ 30] == pytest.approx(0.2224, abs=0.001)
