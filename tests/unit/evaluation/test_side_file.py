"""The side file of an interruptible run: resuming, failures, damage, and concurrent writers."""

import json
from pathlib import Path

import pytest

from osrerank.errors import EvaluationError
from osrerank.evaluation.batch import MAX_CONSECUTIVE_FAILURES, Failure, read_rankings, run_queries
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile, read_record_at, read_records, read_records_with_offsets
from osrerank.types import Query, ScoredDocument

QUERIES = [Query(f"q{number}", f"text {number}") for number in range(30)]
HEAD, STAGES = '{"osrerank_run": 1, "options": {}}\n', '"first_pass": {"score": 1}, "stages": {}'
OPTIONS = {"index": "passages", "rerank": {"fields": ("title", "text")}}


def answer(query: Query, started_s: float = 0.0) -> QueryRecord:
    candidate = {"doc_id": f"d{query.query_id}", "score": 1.5, "first_pass": {"score": 2.0, "rank": 1}, "stages": {}}
    return QueryRecord.from_parts(query.query_id, [candidate], [], True, None, started_s)


def without_timings(path: Path) -> list[dict[str, object]]:
    return [{**json.loads(line), "took_ms": 0} for line in path.read_text().splitlines()]


def test_a_run_killed_at_any_byte_and_resumed_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    whole_file, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    ids = [query.query_id for query in QUERIES]
    with SideFile(whole_file, OPTIONS) as checkpoint:
        assert run_queries(QUERIES, answer, checkpoint, workers=3) == []
        checkpoint.finish(ids)
    content = whole_file.read_bytes()
    for cut in (0, 5, content.index(b"\n") + 1, len(content) // 2, len(content) - 1, len(content)):
        torn.write_bytes(content[:cut])
        with SideFile(torn, OPTIONS) as checkpoint:
            done = len(checkpoint)
            asked = []
            run_queries(QUERIES, lambda query, at, asked=asked: asked.append(query) or answer(query, at), checkpoint)
            assert len(asked) == len(QUERIES) - done
            checkpoint.finish(ids)
        assert without_timings(torn) == without_timings(whole_file)
    assert [record.query_id for record in read_records(whole_file)] == ids


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    SideFile(path, OPTIONS).__exit__()
    with pytest.raises(EvaluationError, match=r"other options .index was 'passages', is 'other'"):
        SideFile(path, {**OPTIONS, "index": "other"})
    with SideFile(path, OPTIONS) as checkpoint:
        assert len(checkpoint) == 0
    with pytest.raises(EvaluationError, match="no query of this run has ended yet"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "line 1 is not JSON .*; pass the .jsonl file that"),
        ('{"hits": 1}\n', "was not written by this version"),
        (f'{HEAD}{{"query_id": "q"}}\n', r"run\.jsonl, line 2: 'candidates' is missing, so this is not a record"),
        (
            f'{HEAD}{{"query_id": "q", "candidates": [{{"doc_id": "d", "score": NaN, {STAGES}}}]}}\n',
            r"run\.jsonl, line 2: a score of document 'd' is not a finite number",
        ),
    ],
)
def test_damaged_side_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=message):
        list(read_records(path))
    with pytest.raises(EvaluationError, match=message):
        SideFile(path, {})


def test_failed_queries_are_listed_and_not_checkpointed(tmp_path: Path) -> None:
    def search(query: Query, started_s: float) -> QueryRecord:
        if query.query_id == "q3":
            raise ConnectionError("no\nanswer")
        record = answer(query, started_s)
        if query.query_id == "q5":
            return QueryRecord(
                "q5", {**record.fields, "applied": "partial", "reason": "1 candidates could not be scored"}
            )
        if query.query_id == "q7":
            return QueryRecord.from_parts("q7", [], [], False, "there are no hits", started_s)
        return record

    with SideFile(tmp_path / "run.jsonl", OPTIONS) as checkpoint:
        failures = run_queries(QUERIES, search, checkpoint, workers=2)
        assert failures == [
            Failure("q3", "ConnectionError: no answer"),
            Failure("q5", "1 candidates could not be scored", is_partial=True),
        ]
        rankings = dict(read_rankings(checkpoint, QUERIES))
    assert len(rankings) == 28
    assert rankings["q0"] == (ScoredDocument("dq0", 1.5),)
    assert rankings["q7"] == ()
    with SideFile(tmp_path / "first_pass.jsonl", OPTIONS) as checkpoint:  # where no reranking was asked for
        assert run_queries(QUERIES, search, checkpoint, require_reranked=False) == failures[:1]


def test_a_run_ends_when_no_query_gets_an_answer(tmp_path: Path) -> None:
    def search(query: Query, started_s: float) -> QueryRecord:
        raise ConnectionError("refused")

    with SideFile(tmp_path / "run.jsonl", OPTIONS) as checkpoint:
        failures = run_queries(QUERIES, search, checkpoint)
    assert len(failures) == len(QUERIES)
    reasons = [failure.reason for failure in failures]
    assert reasons.count("ConnectionError: refused") == MAX_CONSECUTIVE_FAILURES
    assert reasons[-1] == f"not tried after {MAX_CONSECUTIVE_FAILURES} consecutive failures"


def test_only_one_process_writes_a_side_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with SideFile(path, OPTIONS) as checkpoint:
        with pytest.raises(EvaluationError, match=r"another process is writing .*; wait until it ends"):
            SideFile(path, OPTIONS)
        checkpoint.append(answer(QUERIES[0]))
    with SideFile(path, OPTIONS) as checkpoint:
        assert len(checkpoint) == 1


def test_a_record_that_is_not_at_its_offset_any_more_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with SideFile(path, {}) as checkpoint:
        run_queries(QUERIES, answer, checkpoint)
    for offset, record in read_records_with_offsets(path):
        assert read_record_at(path, offset, record.query_id).query_id == record.query_id
        for moved, query_id in ((offset, "another"), (offset + 1, record.query_id)):
            with pytest.raises(EvaluationError, match="was changed while this command was reading it"):
                read_record_at(path, moved, query_id)
