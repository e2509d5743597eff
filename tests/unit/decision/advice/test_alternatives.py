"""Other fields, models and a query of the caller's own, compared with the present setting."""

import json
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from osrerank.cli.advise import list_field_choices
from osrerank.decision.advice.advise import Alternatives, IndexAdvice, advise
from osrerank.decision.advice.report import as_json, html_page, lines
from osrerank.decision.advice.template import QueryTemplate
from osrerank.errors import ConfigError, EvaluationError
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels, Query
from tests.articles import fill
from tests.letters import Letters

INDEX = "packages"
TEMPLATE = QueryTemplate("mine.json", {"size": 3, "query": {"match": {"summary": "{{query}}"}}})
COUNT = 20
QUERIES = [Query(f"q{number}", f"parser name{number}") for number in range(COUNT)]
QRELS = Qrels({f"q{number}": {str(number): 1, f"gone{number}": 1} for number in range(COUNT)})


def by_name(query: str, text: str) -> float:
    """A model that knows names and is confused by long texts."""
    words = text.split()
    noise = zlib.crc32(f"{query} {text}".encode()) % 1000 / 1000 * len(words)
    return noise + 3.0 * (query.split()[1] in words)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = f"embedded:{tmp_path_factory.mktemp('packages')}"
    words = ["parser", "fast", "small", "json", "of", "the", "web", "pages"]
    documents = [
        {"title": f"name{number}", "summary": f"a parser {' '.join(words[: number % 7])} {words[number % 8]}"}
        for number in range(COUNT)
    ]
    with connect(place) as client:
        fill(client, INDEX, documents)
    return place


@pytest.fixture(scope="module")
def advice(url: str) -> Iterator[tuple[Any, IndexAdvice]]:
    present: Any = {"depth": 20, "blend": "replace", "query_fields": ["summary"], "fields": ["title", "summary"]}
    reversed_scorer = FunctionScorer(lambda query, text: -by_name(query, text))
    with (
        connect(url, scorer=FunctionScorer(by_name), encoder=Letters(), rerank=present) as client,
        connect(url, scorer=reversed_scorer, encoder=Letters(), model="osrerank/minilm-l6", rerank=present) as other,
    ):
        alternatives = Alternatives([("title",), ("summary",)], [other], TEMPLATE)
        yield client, advise(client, INDEX, QUERIES, QRELS, depths=(5,), alternatives=alternatives)


@pytest.mark.long
def test_each_alternative_is_compared_with_the_present_setting_on_held_out_queries(
    advice: tuple[Any, IndexAdvice],
) -> None:
    _client, found_advice = advice
    compared = {
        (setting.setting.fields, setting.setting.model, setting.setting.query): setting
        for setting in found_advice.best_by_hits
    }
    model = found_advice.current.model
    assert list(compared) == [
        ((), model, ""),
        (("title",), model, ""),
        (("summary",), model, ""),
        ((), "osrerank/minilm-l6", ""),
        ((), model, "mine.json"),
    ]
    assert compared[("title",), model, ""].promised == pytest.approx(0.6131, abs=1e-3)  # one of two is not there
    assert compared[("title",), model, ""].promised > compared[("summary",), model, ""].promised
    assert found_advice.best.fields == ("title",)
    assert found_advice.recommended["fields"] == ["title"]


@pytest.mark.long
def test_orders_of_alternatives_equal_orders_of_searches(advice: tuple[Any, IndexAdvice]) -> None:
    client, found_advice = advice
    for setting in (
        value for value in found_advice.values if value.fields and not value.is_first_pass and value.depth == 20
    ):
        for one in found_advice.find_hits(setting)[:2]:
            hits = client.search(one.query.text, index=INDEX, size=20, rerank=setting.options())["hits"]["hits"]
            assert one.order(setting) == [hit["_id"] for hit in hits], setting
    for setting in (value for value in found_advice.values if value.query and value.depth == 20):
        for one in found_advice.find_hits(setting)[:2]:
            rerank = {**setting.options(), "query": one.query.text}
            hits = client.search(index=INDEX, body=TEMPLATE.fill(one.query.text, 20), rerank=rerank)["hits"]["hits"]
            assert one.order(setting) == [hit["_id"] for hit in hits], setting


@pytest.mark.long
def test_the_report_shows_alternatives_in_one_table(advice: tuple[Any, IndexAdvice]) -> None:
    _client, found_advice = advice
    output = "\n".join(lines(found_advice))
    for part in (
        "as now: fields title, summary",
        "fields title:",
        "model osrerank/minilm-l6:",
        "your query mine.json:",
    ):
        assert part in output
    assert "; not reranked 0." in output
    assert len(json.loads(json.dumps(as_json(found_advice)))["compared"]) == 5
    assert "fields title" in html_page(found_advice, QRELS, "")


@pytest.mark.long
def test_judged_documents_that_the_index_lacks_are_counted(advice: tuple[Any, IndexAdvice]) -> None:
    _client, found_advice = advice
    assert found_advice.missing_counts == (20, 40)
    assert any(
        "20 of 40 documents judged relevant are not in the index packages" in line for line in lines(found_advice)
    )


@pytest.mark.long
def test_hits_that_are_the_querys_own_document_are_named_or_left_out(url: str) -> None:
    queries = [Query(str(number), f"parser name{number}") for number in range(COUNT)]
    qrels = Qrels({str(number): {str((number + 1) % COUNT): 1} for number in range(COUNT)})
    with connect(url, scorer=FunctionScorer(by_name), encoder=Letters(), rerank={"depth": 20}) as client:
        advice_by_depth = advise(client, INDEX, queries, qrels, depths=(5,))
        without = advise(client, INDEX, queries, qrels, depths=(5,), exclude_query_ids=True)
    assert advice_by_depth.n_queries_with_own_hit == COUNT
    assert any("exclude it with --exclude-query-ids" in line for line in lines(advice_by_depth))
    assert without.n_queries_with_own_hit == 0
    assert all(query_hits.query.query_id not in query_hits.order(without.best) for query_hits in without.current_hits)


def test_too_few_queries_are_refused_before_a_search(url: str) -> None:
    with connect(url) as client, pytest.raises(EvaluationError, match=r"^4 judged queries are too few for a test"):
        advise(client, INDEX, QUERIES[:4], QRELS)


def test_a_template_whose_searches_are_not_reranked_is_refused(url: str) -> None:
    sorted_body = QueryTemplate("sorted.json", {"query": {"match": {"title": "{{query}}"}}, "sort": ["_doc"]})
    with (
        connect(url, scorer=FunctionScorer(by_name), encoder=Letters()) as client,
        pytest.raises(ConfigError, match=r"searches with the template sorted\.json are not reranked: "),
    ):
        advise(client, INDEX, QUERIES, QRELS, alternatives=Alternatives(template=sorted_body))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"match": {"title": "{{query}}"}}', "is not a search body"),
        ('{"query": {"match_all": {}}}', "has no {{query}}; write it in place of the query's text"),
    ],
)
def test_a_malformed_template_is_refused_with_its_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        QueryTemplate.read(tmp_path / "mine.json")


def test_a_querys_quotes_stay_text_in_a_template() -> None:
    assert TEMPLATE.fill('a "b', 7) == {"size": 7, "from": 0, "query": {"match": {"summary": 'a "b'}}}


def test_by_default_each_field_alone_and_the_first_fields_together_are_compared() -> None:
    assert list_field_choices(("title", "summary", "text")) == [
        ("title",),
        ("summary",),
        ("text",),
        ("title", "summary"),
    ]
    assert list_field_choices(("text",)) == []


@pytest.mark.long
def test_advise_compares_named_alternatives_and_writes_fields_and_model(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("queries.tsv").write_text("".join(f"{query.query_id}\t{query.text}\n" for query in QUERIES))
    Path("qrels.txt").write_text("".join(f"q{number} 0 {number} 1\n" for number in range(COUNT)))
    Path("mine.json").write_text(json.dumps(TEMPLATE.body))
    Path("osrerank.toml").write_text('[rerank]\nblend = "replace"\nfields = ["summary"]\nquery_fields = ["summary"]\n')
    arguments = ["--index", INDEX, "--queries", "queries.tsv", "--qrels", "qrels.txt", "--force"]
    advise_arguments = ["--template", "mine.json", "--fields", "title", "--models", "osrerank/minilm-l6", "--quick"]
    outcome = CliRunner().invoke(cli, ["--url", url, "advise", *arguments, *advise_arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    for part in ("fields title:", "model osrerank/minilm-l6:", "your query mine.json:"):
        assert part in outcome.output
    written = tomllib.loads(Path("osrerank.toml").read_text("utf-8"))["index"][INDEX]
    assert written["rerank"]["fields"] == ["title"]
    assert f"osrerank vectors build --index {INDEX}" in outcome.output
