import json
from pathlib import Path

import pytest

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.candidates import assemble, read_candidates

LINE = {
    "query_id": "1",
    "query": "red fox",
    "candidates": [{"doc_id": "a", "text": "fox"}, {"doc_id": "b", "text": ""}],
}


def test_candidates_are_read_with_what_they_have(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    scored = {"doc_id": 7, "text": "dog", "title": "Dogs", "score": 2.5, "rank": 1}
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps({**LINE, 'query_id': '2', 'candidates': [scored]})}\n")
    first, second = read_candidates(path)
    assert (first.query.query_id, first.query.text) == ("1", "red fox")
    assert first.documents == ({"id": "a", "text": "fox"}, {"id": "b", "text": ""})
    assert second.documents == ({"id": "7", "text": "dog", "title": "Dogs", "score": 2.5},)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": " "}, "query 1 has no text"),
        ({"candidates": [{"doc_id": "a", "text": "x"}] * 2}, "query 1 has a document twice"),
        ({"candidates": [{"doc_id": "a"}]}, "document a of query 1 has no text"),
        ({"candidates": [{"text": "x"}]}, "expected query_id, query and candidates with doc_id"),
        ({"candidates": None}, "expected query_id, query and candidates with doc_id"),
    ],
)
def test_bad_candidates_are_refused_with_their_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(json.dumps({**LINE, **changes}))
    with pytest.raises(FormatError, match=f"line 1: {message}"):
        read_candidates(path)


def test_repeated_query_and_empty_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{json.dumps(LINE)}\n")
    with pytest.raises(FormatError, match="line 2: query 1 appears twice"):
        read_candidates(path)
    path.write_text("")
    with pytest.raises(FormatError, match="no candidates"):
        read_candidates(path)


def test_run_corpus_and_queries_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 b 1 2.0 t\n1 Q0 a 2 1.0 t\n")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A", "title": "T"}\n{"_id": "b", "text": "B"}\n{"id": "c"}\n')
    (tmp_path / "queries").write_text("1\tone\n2\ttwo\n")
    (assembled,) = assemble(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    assert assembled.query.text == "one"
    assert assembled.documents == (
        {"id": "b", "text": "B", "score": 2.0},
        {"id": "a", "text": "A", "title": "T", "score": 1.0},
    )
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n')
    with pytest.raises(EvaluationError, match=r"lacks 1 documents of .*, b among them"):
        assemble(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n{"id": "b"}\n')
    with pytest.raises(FormatError, match="document b has no text"):
        assemble(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
    (tmp_path / "queries").write_text("2\ttwo\n")
    (tmp_path / "corpus").write_text('{"id": "a", "text": "A"}\n{"id": "b", "text": "B"}\n')
    with pytest.raises(EvaluationError, match=r"lacks 1 queries of .*, 1 among them"):
        assemble(tmp_path / "run", tmp_path / "corpus", tmp_path / "queries")
