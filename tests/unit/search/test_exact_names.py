"""Hits whose whole name is the query stay where the first pass has them, on the embedded engine."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osrerank import Client, connect
from osrerank.response import FIRST_PASS, squash
from osrerank.search.exact_names import STAGE, move_exact_names_up, split_words
from osrerank.testing import FunctionScorer
from osrerank.types import Candidate, Query, Ranking, StageScore
from tests.articles import fill
from tests.rankings import BY_LENGTH

TOOLS = {
    "gimp": {"name": "gimp", "summary": "gimp edits images"},
    "data": {"name": "gimp-data", "summary": "files that gimp, the image editor, reads when it starts on a machine"},
    "help": {"name": "gimp-help-en", "summary": "the manual of gimp in English, with pictures of all menus and tools"},
    "other": {"name": "krita", "summary": "one program for painting, unlike gimp in how it mixes colours of brushes"},
}
NAME = {"type": "keyword", "fields": {"text": {"type": "text"}}}
MAPPING = {"mappings": {"properties": {"name": NAME, "summary": {"type": "text"}}}}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client whose model prefers long texts."""
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=BY_LENGTH) as opened_client:
        opened_client.indices.create(index="tools", body=MAPPING)
        fill(opened_client, "tools", TOOLS)
        yield opened_client


def search_hits(client: Client, query: Any, **options: Any) -> list[dict[str, Any]]:
    response = client.search(query, index="tools", rerank={"blend": "replace"}, **options)
    assert response["rerank"]["applied"] is True
    hits: list[dict[str, Any]] = response["hits"]["hits"]
    return hits


@pytest.mark.parametrize("query", ["gimp", "GIMP", " Gimp ", "gimp!"])
def test_a_query_that_is_a_documents_whole_name_keeps_the_document_first(client: Client, query: str) -> None:
    first, *other_hits = search_hits(client, query)
    assert (first["_id"], first["_rerank"]["first_pass"]["exact_name"]) == ("gimp", True)
    assert first["_rerank"][STAGE]["rank"] == 1
    lengths = [len(hit["_source"]["name"]) + len(hit["_source"]["summary"]) for hit in other_hits]
    assert lengths == sorted(lengths, reverse=True)
    scores = [first["_score"], *(hit["_score"] for hit in other_hits)]
    assert scores == sorted(scores, reverse=True)


def test_a_query_in_clauses_is_compared_with_the_names_of_its_hits(client: Client) -> None:
    term = {"term": {"name": {"value": "gimp", "boost": 50}}}
    query = {"bool": {"must": {"match": {"summary": "gimp editor"}}, "should": term}}
    assert search_hits(client, query)[0]["_id"] != "gimp"  # the query's text is no name
    query = {"bool": {"should": [{"match": {"summary": "gimp"}}, term]}}
    assert search_hits(client, query)[0]["_id"] == "gimp"


def test_a_partial_name_moves_no_hit(client: Client) -> None:
    assert search_hits(client, "gimp editor")[0]["_id"] != "gimp"
    assert all("exact_name" not in hit["_rerank"]["first_pass"] for hit in search_hits(client, "gimp image"))


@pytest.mark.parametrize(("count", "is_marked"), [(3, True), (4, False)])
def test_a_name_shared_by_more_than_three_hits_moves_no_hit(client: Client, count: int, is_marked: bool) -> None:
    fill(client, "tools", {f"g{number}": {"name": "gimp", "summary": f"{number}"} for number in range(1, count)})
    marks = [hit["_id"] for hit in search_hits(client, "gimp") if "exact_name" in hit["_rerank"]["first_pass"]]
    assert len(marks) == (count if is_marked else 0)


def test_pages_with_exact_names_join(client: Client) -> None:
    expected_ids = [hit["_id"] for hit in search_hits(client, "gimp")]
    assert [
        hit["_id"] for offset in range(4) for hit in search_hits(client, "gimp", from_=offset, size=1)
    ] == expected_ids


def test_a_multi_search_and_a_foreign_response_keep_exact_names(client: Client) -> None:
    expected_ids = [hit["_id"] for hit in search_hits(client, "gimp")]
    body = {"query": {"multi_match": {"query": "gimp", "fields": ["name.text", "summary"]}}}
    (response,) = client.msearch(body=[{"index": "tools"}, body], rerank={"blend": "replace"})["responses"]
    assert [hit["_id"] for hit in response["hits"]["hits"]] == expected_ids
    plain = client.search(index="tools", body=body)
    again = client.rerank_response(plain, "gimp", options={"blend": "replace"})
    assert again["hits"]["hits"][0]["_id"] == "gimp"


@pytest.mark.parametrize(("least", "is_there"), [(0.0, True), (0.5, False)])
def test_a_threshold_cuts_an_exact_name_by_the_models_probability(
    client: Client, tmp_path: Path, least: float, is_there: bool
) -> None:
    client.close()
    unlikely = FunctionScorer(lambda _query, text: len(text) - 60.0)
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=unlikely) as another:
        answer = another.search("gimp", index="tools", rerank={"blend": "replace", "min_score": least})
    assert (answer["hits"]["hits"][0]["_id"] == "gimp") is is_there
    assert answer["rerank"]["below_min_score"] == (0 if is_there else 1)


def test_after_the_deadline_an_exact_name_keeps_its_first_pass_rank(client: Client) -> None:
    answer = client.search("gimp", index="tools", rerank={"blend": "replace", "deadline_ms": 0.001})
    plain = client.search("gimp", index="tools", rerank=False)
    assert answer["rerank"]["applied"] is False
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == [hit["_id"] for hit in plain["hits"]["hits"]]


def test_both_teams_of_an_interleaved_search_keep_an_exact_name(client: Client) -> None:
    other_options = {"with": {"blend": "rrf"}, "key": "session"}
    answer = client.search("gimp", index="tools", rerank={"blend": "replace", "interleave": other_options})
    assert answer["rerank"]["interleave"]["applied"] is True
    assert answer["hits"]["hits"][0]["_id"] == "gimp"


def test_explanations_name_the_move_of_an_exact_name(client: Client) -> None:
    answer = client.search("gimp", index="tools", rerank={"blend": "replace", "explain": True})
    assert any(line.startswith("exact_name: rank 1") for line in answer["hits"]["hits"][0]["_rerank"]["explanation"])


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [("C++", "c++", True), ("C++", "C", False), ("R-cran_magick", "r cran magick", True), ("ﬁle", "FILE", True)],
)
def test_names_are_compared_without_case_and_unicode_form(one: str, other: str, is_same: bool) -> None:
    assert (split_words(one) == split_words(other)) is is_same


def test_whatever_the_order_marked_hits_keep_their_ranks_and_the_others_their_order() -> None:
    draw = random.Random(83)
    for _ in range(500):
        count = draw.randint(1, 12)
        reached = draw.randint(0, count)
        marks = set(draw.sample(range(count), min(count, draw.randint(0, 3))))
        order = [*draw.sample(range(reached), reached), *range(reached, count)]
        candidates = []
        for rank, number in enumerate(order, start=1):
            parts = {STAGE: True} if number in marks else {}
            trace = [StageScore(FIRST_PASS, count - number, number + 1, squash(count - number), parts)]
            if rank <= reached:
                trace.append(StageScore("mono", 1 / rank, rank, 1 / (rank + 1), level=1))
            candidates.append(Candidate(str(number), "x", trace[-1].score, rank, tuple(trace)))
        before = Ranking(Query("q", "x"), tuple(candidates))
        after = move_exact_names_up(before)
        assert {hit.doc_id for hit in after.candidates} == {str(number) for number in order}
        assert all(hit.rank <= hit.trace[0].rank for hit in after.candidates if int(hit.doc_id) in marks)
        unmarked_ids = [hit.doc_id for hit in before.candidates if int(hit.doc_id) not in marks]
        assert [hit.doc_id for hit in after.candidates if int(hit.doc_id) not in marks] == unmarked_ids
        scores = [hit.trace[-1].level + hit.trace[-1].unit for hit in after.candidates]
        assert scores == sorted(scores, reverse=True)
