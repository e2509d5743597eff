"""`osrerank advise` on planted cases: it helps, it hurts, and it cannot be known."""

import json
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.decision.advice.advise import Advice, advise, with_judgments
from osrerank.decision.advice.choose import WEIGHTS, order_of
from osrerank.decision.advice.orders import difference
from osrerank.decision.advice.report import report
from osrerank.decision.advice.tried import Wanted
from osrerank.decision.advice.words import as_json, headline, lines, recall_line
from osrerank.errors import ConfigError, EvaluationError
from osrerank.formats.candidates import read_candidates
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels
from tests.unit.decision.conftest import INDEX, Collection

WANTED = Wanted(sample=60, budget_s=10, depths=(5, 20))


@pytest.fixture(scope="module")
def advice(collection: Collection) -> Advice:
    """Of a model that knows what is relevant, nearly always."""
    relevant = {query.text: next(iter(collection.qrels.judgments[query.query_id])) for query in collection.queries}
    with connect(collection.url) as client:
        texts = {hit["_id"]: hit["_source"]["text"] for hit in client.search(index=INDEX, size=100)["hits"]["hits"]}

    def logit(query: str, text: str) -> float:
        noise = (zlib.crc32(f"{query} {text}".encode()) % 1000) / 1000
        return 2.0 * text.endswith(texts.get(relevant.get(query, ""), "?")) + 1.5 * noise

    with connect(collection.url, scorer=FunctionScorer(logit), rerank={"depth": 20, "blend": "replace"}) as client:
        return advise({"m": client}, INDEX, collection.queries, collection.qrels, WANTED)


def reversed_for_half(advice: Advice, qrels: Qrels) -> Qrels:
    """Give the first pass the labels that reranking had, in the half of the queries that gain most."""
    assert advice.before is not None
    gains = advice.values[advice.current] - advice.before
    judgments = {query_id: dict(of) for query_id, of in qrels.judgments.items()}
    for place in np.argsort(-gains)[: len(gains) // 2]:
        one = advice.tried[0].found[place]
        known = qrels.judgments[one.query.query_id]
        pairs = zip(one.first_pass(), order_of(one, advice.current), strict=True)
        judgments[one.query.query_id] = {first: known[other] for first, other in pairs if other in known}
    return Qrels(judgments)


def test_a_model_that_helps(advice: Advice) -> None:
    assert advice.verdict is not None
    assert advice.choice is not None
    assert (advice.verdict.outcome, advice.choice.verdict.outcome) == ("helps", "helps")
    assert advice.recommended["pipeline"] == "mono"
    assert advice.choice.low <= advice.choice.promised <= advice.choice.high
    assert headline(advice) == f"{INDEX}: reranking helps"
    assert 0 < len(lines(advice)) < 20


def test_what_the_first_pass_finds_is_told(advice: Advice) -> None:
    (recall,) = advice.recall
    assert (recall.source, recall.depth) == ("first pass", 100)
    assert 0.9 < recall.recall <= 1.0
    assert "the index has no vectors" in recall_line(advice)
    assert as_json(advice)["recall"][0]["recall"] == recall.recall


def test_labels_reversed_for_half_the_queries(advice: Advice, collection: Collection) -> None:
    found = with_judgments(advice, reversed_for_half(advice, collection.qrels), WEIGHTS)
    assert found.verdict is not None
    assert found.verdict.outcome == "hurts"
    assert headline(found) == f"{INDEX}: reranking hurts"
    assert found.recommended == {"pipeline": "none"} or found.choice.verdict.difference > 0


def test_offline_orders_are_those_of_a_search(client: Client, collection: Collection) -> None:
    """Depth and blend are computed from one search, exactly as searches with these options order."""
    wanted = replace(WANTED, depths=(5,), budget_s=1)
    advice = advise({"osrerank/mono": client}, INDEX, collection.queries[:3], None, wanted)
    tried = [("linear", 2.0), ("replace", 0.0), ("rrf", 0.0)]
    for one in advice.tried[0].found[:3]:
        for blend, weight in tried:
            asked = {"depth": 5, "blend": blend, "blend_weight": weight if blend == "linear" else None}
            hits = client.search(one.query.text, index=INDEX, size=20, rerank=asked)["hits"]["hits"]
            assert one.ranked(5, blend, weight)[:20] == [hit["_id"] for hit in hits]


def test_a_limit_that_nothing_keeps(advice: Advice, collection: Collection) -> None:
    slow = replace(advice, wanted=replace(advice.wanted, p95_ms=1e-6))
    found = with_judgments(slow, collection.qrels, WEIGHTS)
    assert found.choice is None
    assert found.recommended == {"pipeline": "none"}
    assert any("no setting is fast enough" in line for line in lines(found))


def test_unjudged_hits_are_pointed_out(advice: Advice) -> None:
    said = lines(replace(advice, judged=(0.9, 0.5)))
    assert any("judged are 90% of the first pass's ten first hits and 50% of the" in line for line in said)


def test_the_report_needs_no_other_file(advice: Advice, collection: Collection) -> None:
    page = report(advice, collection.qrels, "[rerank]\n")
    assert page.count("<svg") == 3
    assert "prefers-color-scheme: dark" in page
    assert not any(link in page for link in ("src=", "href=", "@import", "url("))
    json.dumps(as_json(advice))


def test_texts_are_escaped(advice: Advice, collection: Collection) -> None:
    found = advice.tried[0].found
    texts = [replace(one, texts=dict.fromkeys(one.texts, "<script>")) for one in found]
    named = replace(advice, index="<i>", tried=(replace(advice.tried[0], found=tuple(texts)),))
    assert "<script>" not in report(named, collection.qrels, "<b>")
    assert "<i>" not in report(named, collection.qrels, "<b>")


def test_orders_that_differ() -> None:
    same = difference([["a", "b", "c"]], [["a", "b", "c"]])
    assert same is not None
    assert (same.same_first, same.overlap, same.tau) == (1.0, 1.0, 1.0)
    other = difference([["a", "b", "c"]], [["c", "b", "a"]])
    assert other is not None
    assert (other.same_first, other.overlap, other.tau) == (0.0, 1.0, -1.0)
    assert difference([[]], [[]]) is None


@pytest.fixture
def command(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    files = ["--index", INDEX, "--queries", collection.queries_file, "--sample", "10", "--budget-s", "2"]

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--url", collection.url, "advise", *files, *arguments], catch_exceptions=False)

    return run


def test_the_command_writes_what_connect_reads(command: Callable[..., Result], collection: Collection) -> None:
    result = command("--qrels", collection.qrels_file, "--html", "advice.html")
    assert result.exit_code == 0, result.output
    assert f"{INDEX}: " in result.output
    content = tomllib.loads(Path("osrerank.toml").read_text("utf-8"))["index"][INDEX]["rerank"]
    with connect(collection.url) as client:
        options = client.defaults.of(INDEX)
    assert options.pipeline == content["pipeline"]
    assert options.query_fields == ("title", "text")
    assert Path("advice.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(ConfigError, match="exists; edit it"):
        command("--qrels", collection.qrels_file)


def test_force_keeps_the_other_indices(command: Callable[..., Result], collection: Collection) -> None:
    old = '[rerank]\ndepth = 10\n[index."other".rerank]\npassages = {aggregation = "maxp"}\n'
    Path("osrerank.toml").write_text(old)
    assert command("--qrels", collection.qrels_file, "--force").exit_code == 0
    content = tomllib.loads(Path("osrerank.toml").read_text("utf-8"))
    assert content["rerank"] == {"depth": 10}
    assert content["index"]["other"] == tomllib.loads(old)["index"]["other"]
    assert INDEX in content["index"]


def test_without_judgments(command: Callable[..., Result]) -> None:
    result = command("--pool", "pool.jsonl")
    assert "without judgments nobody knows" in result.output
    assert "reranking changes the order" in result.output
    assert not Path("osrerank.toml").exists()
    pool = read_candidates("pool.jsonl")
    assert len(pool) == 10


def test_queries_of_another_index(client: Client, collection: Collection) -> None:
    with pytest.raises(EvaluationError, match="no query has a relevant document"):
        advise({"m": client}, INDEX, collection.queries, Qrels({"other": {"d": 1}}), WANTED)
