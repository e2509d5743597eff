"""The first pass equals Anserini's on a complete collection: CACM, BM25 (0.9, 0.4), tags stripped, one field."""

from collections.abc import Iterator
from pathlib import Path

import ir_measures
import pytest
from ir_measures import AP, P, ScoredDoc
from opensearchpy import OpenSearch

from osrerank.formats.common_layout import judgments_of
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import load

pytestmark = pytest.mark.integration
DEPTH = 1000


@pytest.fixture(scope="module")
def first_pass(opensearch_url: str, shared: Path) -> Iterator[dict[str, list[ScoredDoc]]]:
    """Each topic's ranking by a plain match query: score descending, then document id, as Anserini breaks ties."""
    client = OpenSearch([opensearch_url])
    summary = load(client, "cacm", LOADERS["trec"], [str(shared / "cacm" / "cacm.tar.gz")])
    assert (summary.read, summary.indexed) == (3204, 3204)
    rankings = {}
    for query in read_queries(shared / "cacm" / "topics.cacm.txt"):
        body = {"query": {"match": {"text": query.text}}, "size": DEPTH, "_source": False}
        hits = client.search(index="cacm", body=body)["hits"]["hits"]
        found = [ScoredDoc(query.query_id, hit["_id"], hit["_score"]) for hit in hits]
        rankings[query.query_id] = sorted(found, key=lambda item: (-item.score, item.doc_id))
    yield rankings
    client.indices.delete(index="cacm")
    client.close()


def test_published_measures(first_pass: dict[str, list[ScoredDoc]], shared: Path) -> None:
    judgments = judgments_of(read_qrels(shared / "cacm" / "qrels.cacm.txt"))
    qrels = [ir_measures.Qrel(*judgment) for judgment in judgments]
    run = [
        ScoredDoc(query_id, found.doc_id, float(-place))
        for query_id, ranking in first_pass.items()
        for place, found in enumerate(ranking)
    ]
    measured = ir_measures.calc_aggregate([AP, P @ 30], qrels, run)
    print({str(measure): round(value, 5) for measure, value in measured.items()})  # noqa: T201 - shown by pytest -s
    assert measured[AP] == pytest.approx(0.3123, abs=0.0005)
    assert measured[P @ 30] == pytest.approx(0.1942, abs=0.00005)


@pytest.mark.slow
def test_same_top_30_and_scores_as_anserini(first_pass: dict[str, list[ScoredDoc]], shared: Path) -> None:
    shared_documents = total = 0
    ratios = []
    by_topic: dict[str, dict[str, float]] = {}
    for line in (shared / "cacm" / "cacm-bm25.run").read_text().splitlines():
        query_id, _, doc_id, _, score, _ = line.split()
        by_topic.setdefault(query_id, {})[doc_id] = float(score)
    for query_id, theirs in by_topic.items():
        ours = {found.doc_id: found.score for found in first_pass[query_id][:30]}
        shared_documents += len(ours.keys() & theirs.keys())
        total += len(theirs)
        ratios += [ours[doc_id] / theirs[doc_id] for doc_id in ours.keys() & theirs.keys()]
    print(f"overlap {shared_documents}/{total}, score ratio {min(ratios):.5f} to {max(ratios):.5f}")  # noqa: T201 - figures for the reader of the log
    assert shared_documents >= 0.99 * total
    assert min(ratios) == pytest.approx(1, abs=1e-3)
    assert max(ratios) == pytest.approx(1, abs=1e-3)
