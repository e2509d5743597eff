"""The command `osrerank advise`: whether reranking helps on an index, and the settings that it writes."""

import json
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.cli.advise import build_settings_table
from osrerank.cli.settings_file import write_index_settings
from osrerank.decision.advice.advise import IndexAdvice, advise, judged_queries
from osrerank.decision.advice.query_hits import settings_to_try
from osrerank.decision.advice.report import as_json, headline, html_page, lines
from osrerank.errors import ConfigError, EvaluationError
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels
from tests.letters import Letters
from tests.servers import ROOT
from tests.unit.decision.conftest import INDEX, Collection


def advice_of(collection: Collection, sign: float, **present: Any) -> IndexAdvice:
    """Of a model that knows what is relevant, nearly always, and puts it first (1) or last (-1)."""
    relevant = {query.text: next(iter(collection.qrels.judgments[query.query_id])) for query in collection.queries}
    with connect(collection.url) as client:
        texts = {hit["_id"]: hit["_source"]["text"] for hit in client.search(index=INDEX, size=100)["hits"]["hits"]}

    def logit(query: str, text: str) -> float:
        noise = (zlib.crc32(f"{query} {text}".encode()) % 1000) / 1000
        return sign * (2.0 * text.endswith(texts.get(relevant.get(query, ""), "?")) + 1.5 * noise)

    rerank: Any = {"depth": 20, "blend": "replace", **present}
    with connect(collection.url, scorer=FunctionScorer(logit), encoder=Letters(), rerank=rerank) as client:
        return advise(client, INDEX, collection.queries[:60], collection.qrels, depths=(5, 20))


@pytest.fixture(scope="module")
def advice(collection: Collection) -> IndexAdvice:
    return advice_of(collection, 1.0)


@pytest.mark.long
def test_advise_recommends_a_model_that_helps(advice: IndexAdvice) -> None:
    assert advice.verdict.outcome == "helps"
    assert advice.choice.low <= advice.choice.promised <= advice.choice.high
    assert headline(advice) == f"{INDEX}: reranking helps"
    assert lines(advice)


@pytest.mark.long
def test_advise_recommends_no_reranking_if_the_model_hurts(collection: Collection) -> None:
    found = advice_of(collection, -1.0)
    assert found.verdict.outcome == "hurts"
    assert headline(found) == f"{INDEX}: reranking hurts"
    assert found.recommended == found.best.options()
    assert found.values[found.best].mean() >= found.first_pass_values.mean()
    undecided = replace(found.choice, verdict=replace(found.choice.verdict, outcome="undecided"))
    assert replace(found, choice=undecided).recommended == {"pipeline": "none"}


@pytest.mark.long
def test_the_present_setting_stays_unless_another_is_better_by_the_interval(collection: Collection) -> None:
    stays = advice_of(collection, 1.0, blend="linear", blend_weight=1.0)
    assert stays.choice.verdict.low <= 0
    assert stays.recommended == {}
    better = advice_of(collection, 1.0, depth=1)
    assert better.choice.verdict.low > 0
    assert better.recommended["depth"] in (5, 20)
    assert better.recommended["passages"] == better.current.options()["passages"]  # or all vectors were void
    none = advice_of(collection, 1.0, pipeline="none")
    assert str(none.current) == "the first pass"
    assert none.recommended["pipeline"] == "auto"
    assert advice_of(collection, -1.0, pipeline="none").recommended == {}


@pytest.mark.long
def test_orders_computed_offline_equal_orders_of_searches(client: Client, collection: Collection) -> None:
    """Depth and blend are computed from one search, exactly as searches with these options order."""
    done: list[int] = []
    queries = collection.queries[:10]
    advice = advise(client, INDEX, queries, collection.qrels, depths=(5,), advance=lambda: done.append(1))
    assert len(done) == len(queries)
    for query_hits in advice.current_hits[:3]:
        for blend, weight in [("linear", 2.0), ("replace", 0.0), ("rrf", 0.0)]:
            setting = replace(advice.current, depth=5, blend=blend, weight=weight)
            hits = client.search(query_hits.query.text, index=INDEX, size=20, rerank=setting.options())["hits"]["hits"]
            assert query_hits.order(setting)[:20] == [hit["_id"] for hit in hits]


@pytest.mark.long
def test_advise_compares_vectors_a_cross_encoder_and_both(collection: Collection) -> None:
    found = advice_of(collection, 1.0, pipeline="vectors-mono", mono_depth=3, blend="linear", blend_weight=0.5)
    assert (found.current.pipeline, found.current.mono_depth, found.current.weight) == ("vectors-mono", 3, 0.5)
    pipelines = [pipeline.pipeline for pipeline in found.best_by_pipeline()]
    assert sorted(pipelines) == ["auto", "none", "vectors", "vectors-mono"]
    tried_settings = settings_to_try(replace(found.current, pipeline="auto"), vectors_blend=("replace", 0.0))
    tried = [one.pipeline for one in tried_settings]
    assert tried.index("vectors") < tried.index("vectors-mono"), "of equal means, the earlier one is recommended"
    advice_lines = lines(found)
    assert [line.split(":")[0].strip() for line in advice_lines[3:7]] == [
        "first pass",
        "vectors-mono",
        "mono",
        "vectors",
    ]
    times = {value.pipeline: found.took_ms(value) or 0.0 for value in found.values if value.depth == 20}
    assert 0.0 == times["none"] < times["auto"]
    assert {setting["pipeline"] for setting in as_json(found)["settings"] if setting["took_ms"]} == {*pipelines} - {
        "none"
    }


@pytest.mark.long
def test_offline_orders_of_vectors_mono_equal_orders_of_searches(collection: Collection) -> None:
    scorer = FunctionScorer(lambda query, text: float(zlib.crc32(f"{query} {text}".encode()) % 100))
    with connect(collection.url, scorer=scorer, encoder=Letters(), rerank={"depth": 20}) as client:
        advice = advise(client, INDEX, collection.queries[:10], collection.qrels, depths=(5, 20))
        tried = [value for value in advice.values if value.pipeline in ("vectors", "vectors-mono")]
        assert {one.mono_depth for one in tried} == {0, 10}
        for one in advice.current_hits[:2]:
            for setting in tried:
                hits = client.search(one.query.text, index=INDEX, size=20, rerank=setting.options())["hits"]["hits"]
                assert one.order(setting)[:20] == [hit["_id"] for hit in hits], setting


def test_unjudged_hits_are_pointed_out_and_the_report_needs_no_other_file(advice, collection):
    advice_lines = lines(replace(advice, judged_fractions=(0.9, 0.5)))
    assert any("90% of the first pass's top ten hits are judged, and 50% of the" in line for line in advice_lines)
    page, values = html_page(advice, collection.qrels, "[rerank]\n"), json.loads(json.dumps(as_json(advice)))
    assert page.count('<div class="pair">') == len(values["gains"] + values["losses"]) > 0
    assert "prefers-color-scheme: dark" in page
    assert not any(link in page for link in ("src=", "href=", "@import", "url("))
    escaped_hits = tuple(
        replace(query_hits, texts=dict.fromkeys(query_hits.texts, "<script>")) for query_hits in advice.current_hits
    )
    page = html_page(replace(advice, index="<i>", current_hits=escaped_hits), collection.qrels, "<b>")
    assert not any(tag in page for tag in ("<script>", "<i>", "<b>"))


@pytest.fixture
def command(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    Path("queries.tsv").write_text("".join(f"{query.query_id}\t{query.text}\n" for query in collection.queries[:10]))
    files = ["--index", INDEX, "--queries", "queries.tsv", "--qrels", collection.qrels_file]

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--url", collection.url, "advise", *files, *arguments], catch_exceptions=False)

    return run


@pytest.mark.long
def test_advise_writes_no_settings_if_no_setting_is_better(command, collection):
    old = '[rerank]\ndepth = 10\n[index."other".rerank]\npassages = {aggregation = "maxp"}\n'
    Path("osrerank.toml").write_text(old)
    with pytest.raises(ConfigError, match="already exists: edit it"):
        command()
    result = command("--html", "advice.html", "--force")
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().endswith("osrerank.toml: nothing to change")
    assert Path("osrerank.toml").read_text("utf-8") == old
    assert Path("advice.html").read_text("utf-8").startswith("<!doctype html>")
    again = command("--force").stderr
    assert "lack vectors" not in again  # the first call's are kept


@pytest.mark.long
def test_advise_writes_the_better_setting(command, monkeypatch):
    monkeypatch.setenv("OSRERANK_MODEL", str(ROOT / "tests" / "data" / "tiny-bert-one-label"))
    monkeypatch.setenv("OSRERANK_BACKEND", "onnx")
    Path("osrerank.toml").write_text('[rerank]\nblend = "replace"\n')
    output = command("--force").output
    written = tomllib.loads(Path("osrerank.toml").read_text("utf-8"))["index"][INDEX]["rerank"]
    assert written["pipeline"] == "vectors"
    assert f"osrerank.toml: pipeline = vectors, depth = {written['depth']}, " in output


@pytest.mark.long
def test_a_setting_written_by_advise_keeps_all_other_options(tmp_path: Path, collection: Collection) -> None:
    file = tmp_path / "osrerank.toml"
    old = '[rerank]\ndepth = 10\n[index."other".rerank]\npassages = {aggregation = "maxp"}\n'
    file.write_text(f"{old}[index.{INDEX}.rerank]\ndeadline_ms = 300\ndepth = 1\n")
    advice = advice_of(collection, 1.0, depth=1)
    write_index_settings(file, "", INDEX, build_settings_table(advice))
    content = tomllib.loads(file.read_text("utf-8"))
    report = content["index"].pop(INDEX)["rerank"]
    assert content == tomllib.loads(old)
    assert report["deadline_ms"] == 300
    assert (report["depth"], report["query_fields"]) == (advice.recommended["depth"], ["title", "text"])


def test_advise_refuses_queries_of_another_index(collection: Collection) -> None:
    with pytest.raises(EvaluationError, match="no query has a document judged relevant"):
        judged_queries(collection.queries, Qrels({"other": {"d": 1}}))
