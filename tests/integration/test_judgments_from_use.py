"""Simulated users of the sample's documents, written as UBI's documents into each engine, and what is learnt of them.

Users are planted: a document attracts them by its place in a random order, and the rank r is looked at with the
probability r ** -0.7. Pages are drafted from BM25's order and another one, so that documents move.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opensearchpy import OpenSearch
from scipy.stats import kendalltau

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.decision.use.judgments import Evidence, judge
from osrerank.decision.use.ubi import UbiSource, read_ubi
from osrerank.search.interleave import team_draft
from osrerank.search.ubi import index_body, record_of
from osrerank.search.ubi_query import UbiQuery
from tests.articles import fill
from tests.servers import ROOT

pytestmark = pytest.mark.integration

SAMPLE = ROOT / "tests" / "data" / "squad-200" / "questions.json"
SEEN, QUERIES = 10, 8
INDEXES = "ubi_queries,ubi_events"


@pytest.fixture
def client(engine_url: str, engine: OpenSearch, index_name: str) -> Iterator[Client]:
    engine.indices.delete(index=INDEXES, ignore_unavailable=True)
    with connect(engine_url) as made:
        content = json.loads(SAMPLE.read_text("utf-8"))
        texts = list(dict.fromkeys(text for text in _texts(content) if len(text) > 200))[:60]
        fill(made, index_name, [{"text": text} for text in texts])
        is_embedded = engine_url.startswith("embedded:")
        made.indices.create(index="ubi_queries", body=index_body(is_embedded=is_embedded))
        yield made
    engine.indices.delete(index=INDEXES, ignore_unavailable=True)


def _texts(content: Any) -> Iterator[str]:
    """Yield every text within JSON."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)


def found(client: Client, index: str) -> dict[str, list[str]]:
    """Return query -> what BM25 finds, of queries that find enough."""
    lists = {}
    hits = client.search(index=index, body={"query": {"match_all": {}}, "size": 60})["hits"]["hits"]
    for hit in hits:
        query = " ".join(hit["_source"]["text"].split()[:6])
        ids = [one["_id"] for one in client.search(query, index=index, size=SEEN)["hits"]["hits"]]
        if len(ids) == SEEN and len(lists) < QUERIES:
            lists[query] = ids
    assert len(lists) == QUERIES
    return lists


def simulate(
    client: Client, lists: Mapping[str, Sequence[str]], planted: Any, sessions: int, *, best_first: bool = True
) -> None:
    """Write what so many users of each query were shown, and clicked; team B has the best first, or a random order."""
    rng = random.Random(sessions)
    lines: list[Any] = []
    for query, ids in lists.items():
        others = sorted(ids, key=lambda one: planted[query][one], reverse=True)
        others = others if best_first else random.Random(query).sample(ids, SEEN)
        for number in range(sessions):
            query_id, key = f"{sessions}-{query}-{number}"[-100:], f"{sessions}:{query}:{number}"
            picks = team_draft(ids, others, key)
            teams = "".join(one.team for one in picks)
            drawn = {"applied": True, "teams": teams, "name": "planted"}
            hits = {"hits": [{"_id": one.doc_id} for one in picks]}
            answer = {"hits": hits, "rerank": {"applied": True, "interleave": drawn}}
            ubi = UbiQuery(query_id, query, client_id=f"user {number}")
            lines += [{"index": {"_index": "ubi_queries"}}, record_of(ubi, answer, session=key)]
            for rank, pick in enumerate(picks, 1):
                if rng.random() < planted[query][pick.doc_id] * rank**-0.7:
                    lines += [{"index": {"_index": "ubi_events"}}, click(query_id, pick.doc_id, rank, number)]
    for start in range(0, len(lines), 10_000):
        assert not client.bulk(body=lines[start : start + 10_000], refresh=True)["errors"]


def click(query_id: str, doc_id: str, rank: int, number: int) -> dict[str, Any]:
    """Return an event of schema 1.3."""
    attributes = {"object": {"object_id": doc_id, "object_id_field": "_id"}, "position": {"ordinal": rank}}
    times = {"timestamp": "2026-01-02T03:04:05Z"}
    event = {"application": "shop", "action_name": "click", "query_id": query_id, "client_id": f"user {number}"}
    return {**event, **times, "session_id": f"s{number}", "message_type": "CLICK", "event_attributes": attributes}


def planted_of(lists: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    rng = random.Random(7)
    values = [0.05 + 0.09 * place for place in range(SEEN)]
    return {query: dict(zip(ids, rng.sample(values, SEEN), strict=True)) for query, ids in lists.items()}


def taus(client: Client, planted: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean Kendall tau with the planted order of each estimator, and of the plain click-through rate."""
    pages = read_ubi(client).pages
    sums: defaultdict[str, float] = defaultdict(float)
    for model in ("pbm", "coec"):
        judged = judge(pages, model, Evidence(1, 1, 0))
        for query in judged.queries:
            values, wanted = judged.ratings[query.query_id], planted[query.text]
            sums[model] += kendalltau([values[one] for one in wanted], list(wanted.values()))[0] / QUERIES
    for query, wanted in planted.items():
        mine = [page for page in pages if page.query == query]
        rates = [sum(one in page.clicked for page in mine) for one in wanted]
        sums["clicks"] += kendalltau(rates, list(wanted.values()))[0] / QUERIES
    return dict(sums)


def test_the_planted_order_is_recovered_the_better_the_more_sessions_there_are(
    client: Client, index_name: str, engine_url: str, tmp_path: Path
) -> None:
    lists = found(client, index_name)
    planted = planted_of(lists)
    simulate(client, lists, planted, 10)
    few = taus(client, planted)
    simulate(client, lists, planted, 90)
    many = taus(client, planted)
    assert few["pbm"] < many["pbm"] > 0.65
    assert few["coec"] < many["coec"] > 0.6
    assert len(read_ubi(client, UbiSource(since="2020-01-01T00:00:00Z")).pages) == 100 * QUERIES
    assert read_ubi(client, UbiSource(application="another")).pages == ()
    if engine_url.startswith("embedded:"):
        client.close()
    arguments = ["--json", "--url", engine_url]
    shown = CliRunner().invoke(cli, [*arguments, "judgments", "learn", "--output", str(tmp_path / "judged")]).output
    assert json.loads(shown) | {"by_rank": [], "moved": 0} == {
        "queries": QUERIES, "judgments": QUERIES * SEEN, "left_out_queries": 0, "left_out_documents": 0,
        "model": "pbm", "by_rank": [], "moved": 0, "pages": 100 * QUERIES, "unmatched": 0,
    }  # fmt: skip
    report = json.loads(CliRunner().invoke(cli, [*arguments, "interleave", "report"]).output)
    assert [(one["experiment"], one["winner"]) for one in report["experiments"]] == [("planted", "B")]


@pytest.mark.slow
@pytest.mark.parametrize("best_first", [True, False])
def test_kendalls_tau_by_the_number_of_sessions(client: Client, index_name: str, best_first: bool) -> None:
    lists = found(client, index_name)
    planted = planted_of(lists)
    rows, total = [], 0
    for more in (10, 20, 70, 200, 700):
        simulate(client, lists, planted, more, best_first=best_first)
        total += more
        rows.append(taus(client, planted))
        print(total, {name: f"{value:.2f}" for name, value in rows[-1].items()})  # noqa: T201 - for docs/judgments.md
    assert rows[0]["pbm"] < rows[2]["pbm"] < rows[4]["pbm"]
    assert rows[4]["pbm"] > max(0.85, rows[4]["clicks"], rows[4]["coec"])
