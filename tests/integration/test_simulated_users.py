"""Users simulated over TREC DL 2019 and SciFact: what they see and click is written as UBI's documents into OpenSearch.

A document attracts users by its grade, and the rank r is looked at with the probability r ** -0.7. Pages are drafted
from BM25's order of twenty hits and the shipped model's. Prints the tables of docs/judgments.md (``pytest -s``).
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import helpers

from osrerank import Client, connect
from osrerank.decision.use.clicks import ShownPage
from osrerank.decision.use.interleaving import Preference, preferences
from osrerank.decision.use.judgments import Evidence, judge
from osrerank.decision.use.ubi import UbiSource, read_ubi
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.search.interleave import team_draft
from osrerank.search.ubi import index_body, record_of
from osrerank.search.ubi_query import UbiQuery
from tests.integration.test_judgments_from_use import click

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

DEPTH, SHOWN, QUERIES = 20, 10, 43
SESSIONS = (10, 30, 100, 300, 1_000)
"""Of a query, in all."""
INTERLEAVED = 10_000
Lists = Mapping[str, tuple[list[str], list[str]]]
"""Query -> BM25's order and the model's."""


@dataclass(frozen=True)
class Task:
    """A collection in an index, with what its documents attract: query -> document -> probability."""

    name: str
    client: Client
    lists: Lists
    attraction: Mapping[str, Mapping[str, float]]

    def source(self, part: str) -> UbiSource:
        return UbiSource(f"ubi_queries_{self.name}_{part}", f"ubi_events_{self.name}_{part}")


@pytest.fixture(scope="module", params=["dl19", "scifact"])
def task(request: pytest.FixtureRequest, opensearch_url: str, shared: Path) -> Iterator[Task]:
    name = str(request.param)
    corpus, judged = {
        "dl19": (shared / "msmarco-dl19", shared / "msmarco-dl19" / "qrels.full.txt"),
        "scifact": (shared / "scifact", shared / "scifact" / "test" / "qrels.txt"),
    }[name]
    with connect(opensearch_url) as client:
        _fill(client, name, corpus / "corpus.jsonl")
        grades = read_qrels(judged).judgments
        asked = read_queries(judged.parent / "queries.tsv")
        drawn = random.Random(1).sample(asked, min(QUERIES, len(asked)))
        lists = {query.text: _lists(client, name, query.text) for query in drawn}
        most = max(grade for query in drawn for grade in grades[query.query_id].values())
        attraction = {
            query.text: {
                doc_id: 0.05 + 0.75 * max(grades[query.query_id].get(doc_id, 0), 0) / most
                for doc_id in lists[query.text][0]
            }
            for query in drawn
        }
        yield Task(name, client, lists, attraction)
        client.indices.delete(index=f"{name},ubi_queries_{name}_*,ubi_events_{name}_*", ignore_unavailable=True)


def _fill(client: Client, index: str, corpus: Path) -> None:
    english = {"type": "text", "analyzer": "english"}
    client.indices.create(index=index, body={"mappings": {"properties": {"title": english, "text": english}}})
    with corpus.open(encoding="utf-8") as lines:
        documents = (json.loads(line) for line in lines)
        actions = (
            {"_index": index, "_id": one["id"], "title": one.get("title", ""), "text": one["text"]} for one in documents
        )
        helpers.bulk(client, actions, refresh=True)


def _lists(client: Client, index: str, query: str) -> tuple[list[str], list[str]]:
    """Return BM25's hits, and the same by the shipped model."""
    asked = ({"pipeline": "none"}, {"depth": DEPTH})
    found = [client.search(query, index=index, size=DEPTH, rerank=one)["hits"]["hits"] for one in asked]
    first, reranked = ([hit["_id"] for hit in hits] for hits in found)
    return first, reranked


def sessions_of(task: Task, part: str, lists: Lists, numbers: Sequence[int], seed: str) -> None:
    """Write one session of each number and query: what was shown and clicked."""
    source, rng = task.source(part), random.Random(seed)
    if not task.client.indices.exists(index=source.queries):
        task.client.indices.create(index=source.queries, body=index_body(is_embedded=False))
    helpers.bulk(task.client, _documents(task, source, lists, numbers, rng), chunk_size=5_000, request_timeout=120)
    task.client.indices.refresh(index=f"{source.queries},{source.events}", request_timeout=120)


def _documents(
    task: Task, source: UbiSource, lists: Lists, numbers: Sequence[int], rng: random.Random
) -> Iterator[dict[str, Any]]:
    for place, (query, (own, other)) in enumerate(lists.items()):
        for number in numbers:
            key = f"{place}-{number}"
            picks = team_draft(own, other, f"{task.name} {key}")[:SHOWN]
            drawn = {"applied": True, "teams": "".join(one.team for one in picks), "name": "planted"}
            hits = {"hits": [{"_id": one.doc_id} for one in picks]}
            answer = {"hits": hits, "rerank": {"applied": True, "interleave": drawn}}
            yield {
                "_index": source.queries,
                **record_of(UbiQuery(key, query, client_id=f"user {number}"), answer, session=key),
            }
            for rank, pick in enumerate(picks, 1):
                if rng.random() < task.attraction[query][pick.doc_id] * rank**-0.7:
                    yield {"_index": source.events, **click(key, pick.doc_id, rank, number)}


def tau(values: Mapping[str, float], planted: Mapping[str, float]) -> float:
    """Return Kendall's tau over the pairs of documents that do not attract alike."""
    pairs = [pair for pair in combinations(values, 2) if planted[pair[0]] != planted[pair[1]]]
    signs = [(values[a] > values[b]) - (values[a] < values[b]) for a, b in pairs]
    return sum(sign if planted[a] > planted[b] else -sign for sign, (a, b) in zip(signs, pairs, strict=True)) / len(
        pairs
    )


def taus(task: Task, pages: Sequence[ShownPage]) -> dict[str, float]:
    """Return the mean tau of each estimator, and of the number of clicks, over queries whose documents differ."""
    values: dict[str, dict[str, Mapping[str, float]]] = {"clicks": _clicks(pages)}
    for model in ("pbm", "coec"):
        judged = judge(pages, model, Evidence(1, 1, 0))
        values[model] = {query.text: judged.ratings[query.query_id] for query in judged.queries}
    means = {}
    for name, by_query in values.items():
        found = [tau(one, task.attraction[query]) for query, one in by_query.items() if _differ(task, query, one)]
        means[name] = sum(found) / len(found)
    return means


def _differ(task: Task, query: str, doc_ids: Iterable[str]) -> bool:
    return len({task.attraction[query][one] for one in doc_ids}) > 1


def _clicks(pages: Sequence[ShownPage]) -> dict[str, Mapping[str, float]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for page in pages:
        counts[page.query].update({one: int(one in page.clicked) for one in page.doc_ids})
    return dict(counts)


def test_the_planted_relevance_is_recovered(task: Task) -> None:
    rows, done = [], 0
    for count in SESSIONS:
        sessions_of(task, "judgments", task.lists, range(done, count), f"judgments {count}")
        done = count
        rows.append(taus(task, read_ubi(task.client, task.source("judgments")).pages))
        print(task.name, count, {name: f"{value:.2f}" for name, value in rows[-1].items()})  # noqa: T201 - a table
    assert rows[0]["pbm"] < rows[-1]["pbm"] > 0.9
    assert rows[0]["coec"] < rows[-1]["coec"] > 0.8


def drawn(task: Task, part: str, lists: Lists) -> Preference:
    """Return the preference of ten thousand sessions over the two rankings of each query."""
    each = -(-INTERLEAVED // len(lists))
    sessions_of(task, part, lists, range(each), part)
    (found,) = preferences(read_ubi(task.client, task.source(part)).pages[:INTERLEAVED])
    share = f"B {found.share_b:.3f} [{found.low:.3f}, {found.high:.3f}]"
    print(task.name, part, f"{found.sessions} sessions, {share}, winner {found.winner or 'none'}")  # noqa: T201
    return found


def test_the_planted_winner_is_found_as_either_team(task: Task) -> None:
    """The model's order has more expected clicks on its first ten than BM25's, so it is the planted winner."""
    expected = [
        sum(task.attraction[query][one] * rank**-0.7 for rank, one in enumerate(lists[team][:SHOWN], 1))
        for team in (0, 1)
        for query, lists in task.lists.items()
    ]
    half = len(task.lists)
    assert sum(expected[half:]) > sum(expected[:half])
    assert drawn(task, "winner-b", task.lists).winner == "B"
    assert drawn(task, "winner-a", {query: (b, a) for query, (a, b) in task.lists.items()}).winner == "A"


def test_equal_rankings_have_no_winner(task: Task) -> None:
    same = drawn(task, "same", {query: (b, b) for query, (_a, b) in task.lists.items()})
    assert same.winner == ""
    assert abs(same.share_b - 0.5) < 0.02
