"""Candidate files: reading, refusal with the line, joining of run, corpus and queries, and memory."""

import gzip
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.candidates import CandidatesByQuery, assemble_candidates, candidate_lists

LINE = {
    "query_id": "1",
    "query": "red fox",
    "candidates": [{"doc_id": "a", "text": "fox"}, {"doc_id": "b", "text": ""}],
}


def test_candidates_are_read_with_all_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    scored = {"doc_id": 7, "text": "dog", "title": "Dogs", "score": 2.5, "rank": 1}
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps({**LINE, 'query_id': '2', 'candidates': [scored]})}\n")
    first, second = candidate_lists(path)
    assert (first.query.query_id, first.query.text) == ("1", "red fox")
    assert first.documents == ({"id": "a", "text": "fox"}, {"id": "b", "text": ""})
    assert second.documents == ({"id": "7", "text": "dog", "title": "Dogs", "score": 2.5},)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": " "}, "query '1' has no text"),
        ({"candidates": [{"doc_id": "a", "text": "x"}] * 2}, "query '1' has document 'a' twice"),
        ({"candidates": [{"doc_id": "a"}]}, "document 'a' of query '1' has no text"),
        ({"candidates": [{"text": "x"}]}, "'doc_id' is missing; expected query_id, query and candidates with doc_id"),
        (
            {"candidates": None},
            "null stands where a list is expected; expected query_id, query and candidates with doc_id",
        ),
    ],
)
def test_bad_candidates_are_refused_with_their_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(json.dumps({**LINE, **changes}))
    with pytest.raises(FormatError, match=f"line 1: {message}"):
        list(candidate_lists(path))


def test_candidates_with_a_repeated_query_or_no_query_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{json.dumps(LINE)}\n")
    with pytest.raises(FormatError, match="line 2: query '1' appears again"):
        list(candidate_lists(path))
    path.write_text("")
    with pytest.raises(FormatError, match="no candidates"):
        list(candidate_lists(path))


def test_run_corpus_and_queries_are_joined(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 b 1 2.0 t\n1 Q0 a 2 1.0 t\n")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A", "title": "T"}\n{"_id": "b", "text": "B"}\n{"id": "c"}\n')
    (tmp_path / "queries").write_text("1\tone\n2\ttwo\n")
    (assembled,) = assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    assert assembled.query.text == "one"
    assert assembled.documents == (
        {"id": "b", "text": "B", "score": 2.0},
        {"id": "a", "text": "A", "title": "T", "score": 1.0},
    )
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n')
    with pytest.raises(EvaluationError, match=r"1 documents of .* are not in .*, such as 'b'"):
        assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n{"id": "b"}\n')
    with pytest.raises(FormatError, match="document 'b' has no text"):
        assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    (tmp_path / "queries").write_text("2\ttwo\n")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n{"id": "b", "text": "B"}\n')
    with pytest.raises(EvaluationError, match=r"1 queries of .* are not in .*, such as '1'"):
        assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    (tmp_path / "run").write_text("1 Q0 a 1 2.0 t\n")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "new \\ud800"}\n')
    (tmp_path / "queries").write_text("1\tone\n")
    (assembled,) = assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    assert assembled.documents == ({"id": "a", "text": "new \ud800", "score": 2.0},)


def test_a_corpus_with_a_document_of_the_run_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 a 1 2.0 t\n")
    (tmp_path / "queries").write_text("1\tone\n")
    lines_of_corpus = ['{"id": "b", "text": "B"}', '{"id": "b", "text": "B"}', '{"id": "a", "text": "old"}']
    (tmp_path / "corpus").write_text("\n".join([*lines_of_corpus, '{"_id": "a", "text": "new"}']))
    with pytest.raises(FormatError, match="line 4: document 'a' appears twice; remove one"):
        assemble_candidates(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")


def lines(count: int, size: int = 1) -> bytes:
    candidates = [{"doc_id": f"d{index}", "text": f"{index} " * 100} for index in range(size)]
    return b"".join(
        json.dumps({"query_id": f"q{number}", "query": f"query {number}", "candidates": candidates}).encode() + b"\n"
        for number in range(count)
    )


def test_candidates_that_change_while_they_are_read_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_bytes(lines(2))
    candidates_by_query = CandidatesByQuery(candidate_lists(path))
    path.write_bytes(lines(2).replace(b'"0 0', b'"1 0'))
    with pytest.raises(FormatError, match="the file of the candidates of query 'q0' has been changed"):
        candidates_by_query.get_documents("q0")
    candidates_by_query = CandidatesByQuery(candidate_lists(path))
    path.write_bytes(lines(1))
    with pytest.raises(FormatError, match="the file of the candidates of query 'q1' has been changed"):
        candidates_by_query.get_documents("q1")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_candidates_are_read_by_query_in_any_order(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_bytes(pack(lines(4)))
    candidates_by_query = CandidatesByQuery(candidate_lists(path))
    assert [query.query_id for query in candidates_by_query.queries] == ["q0", "q1", "q2", "q3"]
    expected = {candidate_list.query.query_id: candidate_list.documents for candidate_list in candidate_lists(path)}
    for query_id in ("q0", "q2", "q1", "q1", "q3"):
        assert candidates_by_query.get_documents(query_id) == expected[query_id]
    with pytest.raises(KeyError, match="q9"):
        candidates_by_query.get_documents("q9")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_candidates_may_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writing = threading.Thread(target=path.write_bytes, args=(lines(3),))
    writing.start()
    candidates_by_query = CandidatesByQuery(candidate_lists(path))
    writing.join()
    assert [candidates_by_query.get_documents(f"q{number}")[0]["id"] for number in (0, 2)] == ["d0", "d0"]


@pytest.mark.long
def test_memory_of_reading_candidates_does_not_grow_with_the_queries(tmp_path: Path) -> None:
    peaks = []
    for count in (20, 100):
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(lines(count, size=100))
        tracemalloc.start()
        candidates_by_query = CandidatesByQuery(candidate_lists(path))
        assert (
            sum(len(candidates_by_query.get_documents(query.query_id)) for query in candidates_by_query.queries)
            == count * 100
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 500_000  # their texts alone are 2.3 MB more
