"""rank_llm's candidate files."""

import json
from pathlib import Path

import pytest

from osrerank.errors import FormatError
from osrerank.formats.candidates import read_candidates

LINE = {
    "query": {"text": "red fox", "qid": 7},
    "candidates": [
        {"docid": "a", "score": 2.5, "doc": {"contents": "a fox"}},
        {"docid": "b", "score": 1.5, "doc": {"title": "Dogs", "segment": "a dog"}},
    ],
}
HIT = {"content": "a fox", "qid": 7, "docid": "a", "rank": 1, "score": 2.5}


def test_json_lines_of_rank_llm_are_read(tmp_path: Path) -> None:
    (tmp_path / "top100.jsonl").write_text(json.dumps(LINE) + "\n")
    (only,) = read_candidates(tmp_path / "top100.jsonl")
    assert (only.query.query_id, only.query.text) == ("7", "red fox")
    assert only.documents == (
        {"id": "a", "text": "a fox", "score": 2.5},
        {"id": "b", "text": "a dog", "title": "Dogs", "score": 1.5},
    )


def test_the_array_of_earlier_rank_llm_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps([{"query": "red fox", "hits": [HIT]}], indent=2))
    (only,) = read_candidates(tmp_path / "old.json")
    assert (only.query.query_id, only.documents) == ("7", ({"id": "a", "text": "a fox", "score": 2.5},))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            json.dumps({"query": {"text": "x"}, "candidates": []}),
            "line 1: 'qid' is missing; .*rank_llm's query, docid and doc",
        ),
        (
            json.dumps([{"query": "x", "hits": [{"docid": "a"}]}]),
            "entry 1: 'qid' is missing; expected rank_llm's query and hits",
        ),
        (
            json.dumps({"query": {"text": "x", "qid": "q"}, "candidates": [{"docid": "a", "doc": "a text"}]}),
            "line 1: .*rank_llm's query, docid and doc",
        ),
        (
            json.dumps([{"query": "x", "hits": ["a"]}]),
            "entry 1: a string stands where an object is expected; expected rank_llm's query and hits",
        ),
        ("[" * 100_000, "is not a JSON array"),
        ("[1, 2", "not a JSON array"),
        (
            json.dumps({**LINE, "candidates": [{"docid": "a", "doc": {"url": "u"}}]}),
            "document 'a' of query '7' has no text",
        ),
    ],
)
def test_a_malformed_rank_llm_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "candidates"
    path.write_text(content)
    with pytest.raises(FormatError, match=message):
        read_candidates(path)
