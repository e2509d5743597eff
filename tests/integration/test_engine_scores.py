"""Scores, order and analysis of the embedded engine beside the real OpenSearch's."""

import json
import re
import sys
import tarfile
from pathlib import Path

import pytest

from osrerank.embedded.analysis.analyzers import built_in
from osrerank.embedded.analysis.tokens import GAP
from tests.engine_library import DOCUMENTS, QUERIES, fill, ids
from tests.integration.conftest import Engines

pytestmark = pytest.mark.integration

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
def books(engines: Engines) -> str:
    """The five documents in engines engines."""
    for client in engines:
        fill(client, "test-scores")
    return "test-scores"


@pytest.mark.parametrize("name", QUERIES)
def test_scores_are_lucenes(engines: Engines, books: str, name: str) -> None:
    body = {"query": QUERIES[name]}
    theirs, ours = (client.search(index=books, body=body) for client in engines)
    assert ids(ours) == ids(theirs)
    expected = [hit["_score"] for hit in theirs["hits"]["hits"]]
    assert [hit["_score"] for hit in ours["hits"]["hits"]] == pytest.approx(expected, abs=1e-4)
    assert ours["hits"]["max_score"] == pytest.approx(theirs["hits"]["max_score"], abs=1e-4)
    assert ours["hits"]["total"] == theirs["hits"]["total"]


def test_ties_keep_insertion_order(engines: Engines) -> None:
    for client in engines:
        client.indices.create(index="test-scores-ties", body={"settings": {"number_of_shards": 1}})
        for part in range(4):  # several segments
            lines = [
                line
                for one in range(25)
                for line in ({"index": {"_id": f"{(part * 25 + one) * 7 % 100}"}}, {"t": "same"})
            ]
            client.bulk(index="test-scores-ties", body=lines, refresh=True)
    bodies = [
        {"query": {"match": {"t": "same"}}, "size": size, "from": start}
        for start, size in ((0, 10), (30, 30), (95, 10))
    ]
    for body in [*bodies, {"size": 100}]:
        theirs, ours = (ids(client.search(index="test-scores-ties", body=body)) for client in engines)
        assert ours == theirs


@pytest.mark.parametrize("analyzer", ["standard", "english", "simple", "whitespace", "keyword", "stop"])
@pytest.mark.parametrize("text", STRANGE)
def test_analysis_of_strange_texts(engines: Engines, analyzer: str, text: str) -> None:
    theirs, ours = (
        [
            (one["token"], one["position"])
            for one in client.indices.analyze(body={"analyzer": analyzer, "text": text})["tokens"]
        ]
        for client in engines
    )
    assert ours == theirs


def cacm(folder: Path) -> list[dict[str, str]]:
    found = []
    with tarfile.open(folder / "cacm" / "cacm.tar.gz") as archive:
        for member in archive:
            if member.isfile():
                text = archive.extractfile(member).read().decode("latin-1")
                found.append({"id": Path(member.name).stem, "text": re.sub(r"</?(?:html|pre)>", "", text)})
    return sorted(found, key=lambda one: one["id"])


def jsonl(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [
        {"id": one["id"], "text": f"{one.get('title', '')} {one['text']}".strip()} for one in map(json.loads, lines)
    ]


def collection(name: str, shared: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return documents and queries."""
    if name == "cacm":
        topics = re.findall(r"</DOCNO>(.*?)</DOC>", (shared / "cacm" / "topics.cacm.txt").read_text(), re.DOTALL)
        return cacm(shared), [re.sub(r"<[^>]*>|\s+", " ", topic).strip() for topic in topics]
    queries = shared / name / ("test/queries.tsv" if name == "scifact" else "queries.tsv")
    return jsonl(shared / name), [line.split("\t")[1] for line in queries.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cacm", "msmarco-dl19", "scifact"])
def test_whole_collections(engines: Engines, shared: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same tokens in 99.9% of the texts, and at least nine of the ten first hits in common."""
    documents, queries = collection(name, shared)
    theirs, ours = engines
    step = 1 if name == "cacm" else 10
    different = 0
    for document in documents[::step]:
        answer = theirs.indices.analyze(body={"analyzer": "english", "text": document["text"]})["tokens"]
        terms = [(term, place) for place, term in enumerate(built_in("english").terms(document["text"])) if term != GAP]
        different += terms != [(one["token"], one["position"]) for one in answer]
    assert different <= 0.001 * len(documents[::step])

    index = f"test-scores-{name}"
    for client in engines:
        mappings = {"properties": {"text": {"type": "text", "analyzer": "english"}}}
        client.indices.create(index=index, body={"settings": {"number_of_shards": 1}, "mappings": mappings})
        for start in range(0, len(documents), 500):
            part = documents[start : start + 500]
            lines = [line for one in part for line in ({"index": {"_id": one["id"]}}, {"text": one["text"]})]
            assert not client.bulk(index=index, body=lines)["errors"]
        client.indices.refresh(index=index)
    overlaps, same, worst = [], 0, 0.0
    for query in queries:
        body = {"query": {"match": {"text": query}}, "_source": False}
        first, second = (client.search(index=index, body=body)["hits"]["hits"] for client in (theirs, ours))
        found = [{hit["_id"]: hit["_score"] for hit in hits} for hits in (first, second)]
        common = found[0].keys() & found[1].keys()
        overlaps.append(len(common) / max(1, len(found[0])))
        same += list(found[0]) == list(found[1])
        worst = max([worst, *(abs(found[0][key] - found[1][key]) for key in common)])
    mean = sum(overlaps) / len(overlaps)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{name}: {len(documents)} documents, {different} analysed differently, mean top-10 overlap {mean:.4f},"
            f" same order for {same} of {len(queries)} queries, greatest score difference {worst:.2e}\n"
        )
    assert mean >= 0.9


def test_figures_hold_in_part(engines: Engines, books: str) -> None:
    """Documents without a field count for its averages in neither engine's idf."""
    for client in engines:
        client.indices.create(index="test-scores-sparse", body={"settings": {"number_of_shards": 1}})
        lines = [line for key, source in DOCUMENTS.items() for line in ({"index": {"_id": key}}, {"a": source["body"]})]
        lines += [{"index": {"_id": "7"}}, {"b": "a dog"}, {"index": {"_id": "8"}}, {"a": "", "b": "dog dog"}]
        client.bulk(index="test-scores-sparse", body=lines, refresh=True)
    theirs, ours = (
        client.search(index="test-scores-sparse", body={"query": {"match": {"a": "dog lazy"}}}) for client in engines
    )
    assert ids(ours) == ids(theirs)
    expected = [hit["_score"] for hit in theirs["hits"]["hits"]]
    assert [hit["_score"] for hit in ours["hits"]["hits"]] == pytest.approx(expected, rel=0.15)
