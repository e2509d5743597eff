"""Scores, order and analysis of the embedded engine beside the real OpenSearch's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osrerank.cli.demo import Sample
from osrerank.embedded.analysis.analyzers import get_built_in
from osrerank.embedded.analysis.tokens import GAP
from osrerank.formats.sources import open_sources
from osrerank.formats.topics import read_queries
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import LoadOptions, load
from osrerank_loaders.load.mapping import IndexOptions
from tests.articles import fill
from tests.engine_library import DOCUMENTS, QUERIES, books_in
from tests.integration.conftest import Engines
from tests.rankings import ids

pytestmark = pytest.mark.integration
SAME_SCALE = pytest.mark.needs("BM25 without the factor k1 + 1")
"""Of the embedded engine's scores, which are those of OpenSearch 3."""

STRANGE = (
    (
        "Hello w\xf6rld's 12.5 a:b \u65e5\u672c\u8a9e \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 "
        "\u30ab\u30bf\u30ab\u30ca \u3072\u3089_x 1\ufe0f\u20e3 \U0001f600 \U0001f44d\U0001f3fd"
    ),
    (
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 foo_bar __ _a_ "
        "3,4;5 it's O'Neil\u2019s U.S.A. a.b.c. \xa92020 \xae \u2122 \u2603 \u2764\ufe0f"
    ),
    (
        "can't 1.2.3 1,000 1a2b a1.b 1.a a,b a;b x\xb7y a\xadb e\u0301te \uc548\ub155 \uff8a\uff9b\uff70 "
        "\uff11\uff12 \u05e6\u05d4\"\u05dc \u05d2'\u05d9\u05e8\u05e3 \u043c\u0438\u0440 3\u20325 \xbd x\xb2"
    ),
    (
        "\u1781\u17d2\u1798\u17c2\u179a \u0ea5\u0eb2\u0ea7 \u1019\u103c\u1014\u103a\u1019\u102c "
        "\u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662 "
        "ABC\u200bDEF a\ufeffb \u3005 \U00020bb7 * # 0"
    ),
    (
        "\u0130stanbul \u03a3\u0391\u03a3 possibly biology ably psychology doubly technologies is us it \xdf "
        "Stra\xdfe " + "x" * 600
    ),
    (
        "http://x.org/a?b=1 me@x.com #tag @you C++ C# .NET rock'n'roll '90s a::b 1:2 \u2019s dogs' the THE "
        "generalizations oscillators"
    ),
)


@pytest.fixture(scope="module")
def books(engines: Engines) -> Iterator[str]:
    """The documents in both engines."""
    with books_in(engines, "test-scores", "test-scores-*") as name:
        yield name


@SAME_SCALE
@pytest.mark.parametrize("name", QUERIES)
def test_scores_of_the_embedded_engine_are_lucenes(engines: Engines, books: str, name: str) -> None:
    body = {"query": QUERIES[name]}
    theirs, ours = (client.search(index=books, body=body) for client in engines)
    assert ids(ours) == ids(theirs)
    expected = [hit["_score"] for hit in theirs["hits"]["hits"]]
    assert [hit["_score"] for hit in ours["hits"]["hits"]] == pytest.approx(expected, abs=1e-4)
    assert ours["hits"]["max_score"] == pytest.approx(theirs["hits"]["max_score"], abs=1e-4)
    assert ours["hits"]["total"] == theirs["hits"]["total"]


def test_hits_with_equal_scores_keep_insertion_order(engines: Engines, books: str) -> None:
    for client in engines:
        client.indices.create(index="test-scores-ties", body={"settings": {"number_of_shards": 1}})
        for part in range(4):  # several segments
            fill(
                client, "test-scores-ties", {f"{(part * 25 + number) * 7 % 100}": {"t": "same"} for number in range(25)}
            )
    for start, size in ((0, 10), (30, 30), (95, 10), (0, 100)):
        body = {"query": {"match": {"t": "same"}}, "size": size, "from": start}
        theirs, ours = (ids(client.search(index="test-scores-ties", body=body)) for client in engines)
        assert ours == theirs


@pytest.mark.parametrize("analyzer", ["standard", "english"])
def test_both_engines_analyse_strange_texts_alike(engines: Engines, books: str, analyzer: str) -> None:
    """Terms, positions and offsets are Lucene's, and so is what kind of word each is."""
    properties = {"text": {"type": "text", "analyzer": analyzer}}
    for client in engines:
        client.indices.create(index=f"test-scores-{analyzer}", body={"mappings": {"properties": properties}})
    for text in STRANGE:
        analyze_body = {"field": "text", "text": text}
        theirs, ours = (
            client.indices.analyze(index=f"test-scores-{analyzer}", body=analyze_body) for client in engines
        )
        assert ours == theirs


@SAME_SCALE
@pytest.mark.slow
def test_both_engines_rank_a_whole_collection_alike(engines: Engines, books: str, shared: Path) -> None:
    """CACM: the same tokens in 99.9% of the texts, and the same first ten hits in the same order, but for ties."""
    archive, options = str(shared / "cacm" / "cacm.tar.gz"), LoadOptions(index=IndexOptions(k1=1.2, b=0.75))
    for engine in engines:
        load(engine, "test-scores-cacm", LOADERS["trec"], [archive], options=options)
    different = 0
    documents = [document.text for document in read_records(LOADERS["trec"], open_sources([archive]))]
    for text in documents:
        theirs = engines[0].indices.analyze(body={"analyzer": "english", "text": text})["tokens"]
        ours = [(term, index) for index, term in enumerate(get_built_in("english").terms(text)) if term != GAP]
        different += ours != [(token["token"], token["position"]) for token in theirs]
    assert different <= 0.001 * len(documents)
    for query in read_queries(shared / "cacm" / "topics.cacm.txt"):
        body = {"query": {"match": {"text": query.text}}, "_source": False, "size": 100}
        theirs, ours = (engine.search(index="test-scores-cacm", body=body)["hits"]["hits"] for engine in engines)
        scores = {hit["_id"]: hit["_score"] for hit in theirs}
        expected = pytest.approx([hit["_score"] for hit in theirs[:10]], abs=1e-4)
        assert [hit["_score"] for hit in ours[:10]] == expected
        assert [scores[hit["_id"]] for hit in ours[:10]] == expected


SPARSE = {
    **{key: {"a": source["body"]} for key, source in DOCUMENTS.items()},
    "long": {"a": "dog " * 5 + "pad " * 40, "c": "x"},
    "short": {"a": ["dog dog", "lazy dog"]},
    "other": {"b": "a dog"},
    "blank": {"a": "", "b": "dog dog"},
    **{f"none-{number}": {"b": "no dog here"} for number in range(40)},
}
OF_SPARSE = {
    "match": {"match": {"a": "dog lazy dog"}},
    "match of a rare field": {"match": {"c": "x"}},
    "term": {"term": {"a": {"value": "dog", "boost": 2}}},
    "phrase": {"match_phrase": {"a": "dog dog"}},
    "phrase of other words": {"match_phrase": {"a": "lazy dog"}},
    "multi_match": {"multi_match": {"query": "lazy dog", "fields": ["a", "b^2", "c"], "tie_breaker": 0.5}},
    "bool": {"bool": {"must": {"match": {"b": "dog"}}, "should": {"match_phrase": {"a": "lazy dog"}}}},
}


@pytest.fixture(scope="module")
def sparse_index(engines: Engines, books: str) -> str:
    """An index whose fields only some documents have, in several segments."""
    for client in engines:
        client.indices.create(index="test-scores-sparse", body={"settings": {"number_of_shards": 1}})
        keys = list(SPARSE)
        for part in (keys[:8], keys[8:20], keys[20:]):
            fill(client, "test-scores-sparse", {key: SPARSE[key] for key in part})
    return "test-scores-sparse"


@SAME_SCALE
@pytest.mark.parametrize("name", OF_SPARSE)
def test_a_field_that_some_documents_lack_scores_as_in_lucene(engines: Engines, sparse_index: str, name: str) -> None:
    body = {"query": OF_SPARSE[name], "size": 100}
    theirs, ours = (client.search(index=sparse_index, body=body)["hits"]["hits"] for client in engines)
    assert [hit["_id"] for hit in ours] == [hit["_id"] for hit in theirs]
    assert [hit["_score"] for hit in ours] == pytest.approx([hit["_score"] for hit in theirs], abs=1e-5)


def test_term_statistics_are_lucenes(engines: Engines, sparse_index: str) -> None:
    off = {"positions": False, "offsets": False, "payloads": False}
    term_requests = [
        {"_index": sparse_index, "_id": "short", "fields": ["a", "b", "nowhere"], "term_statistics": True, **off}
    ]
    term_requests += [{"_index": sparse_index, "_id": "nope", "fields": ["a"], **off}]
    theirs, ours = (client.mtermvectors(body={"docs": term_requests})["docs"] for client in engines)
    assert ours[0]["term_vectors"] == theirs[0]["term_vectors"]
    assert [token["found"] for token in ours] == [token["found"] for token in theirs] == [True, False]


def test_nearly_all_fragments_are_cut_as_in_opensearch(engines: Engines, books: str) -> None:
    """Of long passages; whole texts and short ones are marked alike (test_engine_contract.py)."""
    sample = Sample.load()
    texts = {str(index): {"text": document["text"]} for index, document in enumerate(sample.documents[:400])}
    properties = {"text": {"type": "text", "analyzer": "english"}}
    for client in engines:
        client.indices.create(index="test-scores-marked", body={"mappings": {"properties": properties}})
        fill(client, "test-scores-marked", texts)
    cut: list[list[Any]] = [[], []]
    for query in list(sample.queries.values())[:30]:
        body = {"query": {"match": {"text": query}}, "highlight": {"fields": {"text": {}}}}
        for client, engine_answer in zip(engines, cut, strict=True):
            hits = client.search(index="test-scores-marked", body=body)["hits"]["hits"]
            engine_answer += [hit["highlight"] for hit in sorted(hits, key=lambda hit: hit["_id"])]
    alike = sum(theirs == ours for theirs, ours in zip(*cut, strict=True))
    assert alike >= 0.9 * len(cut[0]) >= 0.9 * 200
