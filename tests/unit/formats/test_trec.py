"""TREC runs and judgments: reading, writing, ties, comments and refused lines."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.common_layout import Judgment, flatten_qrels
from osrerank.formats.trec import make_strictly_decreasing, read_qrels, read_run, sort_as_trec_eval, write_run
from osrerank.types import Run, ScoredDocument


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_runs_of_six_and_of_three_columns_are_read_by_scores_and_by_ranks(tmp_path: Path) -> None:
    run = read_run(written(tmp_path / "run", "q1\tQ0\ta\t1\t  2.5\ttag and more\nq1 Q0 b 2 1.5 tag\r\n\n# a comment\n"))
    assert run.rankings == {"q1": (ScoredDocument("a", 2.5), ScoredDocument("b", 1.5))}
    assert run.name == "tag"
    run = read_run(written(tmp_path / "run", "q Q0 a 1 1.0 t\nq Q0 b 2 1.0 t\nq Q0 c 3 7 t\n"))
    assert [document.doc_id for document in run.rankings["q"]] == ["c", "b", "a"]
    run = read_run(written(tmp_path / "ms.tsv", "q\tb\t2\nq\ta\t1\nr\ta\t1\n"))
    assert run.rankings["q"] == (ScoredDocument("a", 1.0), ScoredDocument("b", 0.5))
    assert run.name == "ms"
    run = read_run(written(tmp_path / "run", "q a 1\nq pad 2\nq pad 3\n"), duplicates="first")
    assert [document.doc_id for document in run.rankings["q"]] == ["a", "pad"]


def test_scores_in_32_bits_tie_when_read_and_strictly_decrease_when_written() -> None:
    documents = {"a": 1.0 + 1e-12, "b": 1.0}
    assert [doc_id for doc_id, _score in sort_as_trec_eval(documents)] == ["a", "b"]
    assert [doc_id for doc_id, _score in sort_as_trec_eval(documents, single_precision=True)] == ["b", "a"]
    scores = make_strictly_decreasing([2.0, 2.0, 2.0 - 1e-12, 5.0, -1.0])
    assert scores == [np.float32(2.0), *scores[1:]]
    assert all(later < earlier for earlier, later in pairwise(scores))
    assert scores[-1] == np.float32(-1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected lines"),
        ("# only a comment\n", "is empty; expected lines"),
        ("q Q0 a 1 0.5 t\nq Q0 b\t2 nan t\n", "line 2: the score is nan"),
        ("q Q0 a 1 high t\n", "line 1: the score is 'high'; it must be a number"),
        ("q Q0 a 1\n", "line 1: expected"),
        ("q Q0 a 1 0.5 t\n\nq Q0 a 2 0.4 t\n", "line 3: query 'q' has document 'a' twice"),
        ("q a one\n", "line 1: the rank is 'one'; it must be a whole number"),
        ("q a 0\n", "line 1: the rank is 0; it must be a whole number from 1 on"),
        ("q a 1\nr a 1\nq b 1\n", "line 3: two documents of query q have the same rank"),
        ("q Q0 a 1 1_0 t\n", "line 1: the score is '1_0'; it must be a number"),
        ("q a \u0661\n", "line 1: the rank is '\u0661'; it must be a whole number"),
        ("q Q0 a 1 0.5 t\nq Q0 b", "line 2: expected `query_id Q0 doc_id rank score tag`.*, found 3 columns"),
        ("# first\nq a 1\nq Q0 b 1 0.5 t\n", "line 3: expected `query_id doc_id rank`.*, found 6 columns"),
        (b"q Q0 a 1 0.5 t\nq Q0 caf\xe9 2 0.4 t\n", "line 2: not UTF-8"),
    ],
)
def test_bad_run_is_refused_with_file_and_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path / "bad.run", text)
    with pytest.raises(FormatError, match=message) as refusal:
        read_run(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no judgments"),
        ("q 0 a\n", "line 1: expected `query_id 0 doc_id relevance`, found 3 columns"),
        ("q 0 a 1.5\n", "line 1: the relevance is '1.5'; it must be a whole number"),
        ("q 0 a 1\nq 0 a 0\n", "line 2: query 'q' has document 'a' with the grades 1 and 0; remove one"),
        ("q 0 a 1\nq 0 b 4294967297\n", "line 2: the relevance 4294967297 does not fit in 32 bits"),
        ("q 0 a 1_0\n", "line 1: the relevance is '1_0'; it must be a whole number"),
    ],
)
def test_bad_judgments_are_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_qrels(written(tmp_path / "qrels", text))


@pytest.mark.parametrize(
    "text", ["q 0 a 1\nq 0 b 0\nq 0 a 1\n", "query-id\tcorpus-id\tscore\nq\ta\t1\nq\ta\t1\nq\tb\t0\n"]
)
def test_a_repeated_judgment_counts_once_and_is_logged(tmp_path, caplog, text):
    path = written(tmp_path / "qrels", text)
    assert read_qrels(path).judgments == {"q": {"a": 1, "b": 0}}
    warning = f"{path} repeats 1 judgments with the same grade, which count once; the first is in line 3"
    assert caplog.messages == [warning]


def test_comment_lines_are_counted_and_logged(tmp_path, caplog):
    read_qrels(written(tmp_path / "qrels", "# judged by hand\n#1 0 a 1\nq 0 a 1\n"))
    assert caplog.messages == [f"{tmp_path / 'qrels'} has 2 lines that begin with '#', which are ignored as comments"]
    with pytest.raises(EvaluationError, match="a query id is '#1'; it must not begin with '#'"):
        write_run(tmp_path / "run", Run({"#1": (ScoredDocument("a", 1.0),)}))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e39, -1e39])
def test_scores_beyond_32_bits_or_without_room_below_are_refused(score: float) -> None:
    with pytest.raises(EvaluationError, match="32 bits"):
        make_strictly_decreasing([score])
    with pytest.raises(EvaluationError, match="cannot be made strictly decreasing"):
        make_strictly_decreasing([-3.4028234663852886e38, 1.0])


def test_a_run_is_written_atomically_and_reproducibly(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_run(path, Run({"q": (ScoredDocument("a", 1.0),)}, name="first"))
    with pytest.raises(EvaluationError, match="one word"):
        write_run(path, Run({"q": (ScoredDocument("a", 1.0), ScoredDocument("two words", 0.5))}))
    assert path.read_text() == "q Q0 a 1 1.0 first\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    run = Run({"q": (ScoredDocument("a", 1.0),)})
    write_run(tmp_path / "a.gz", run)
    write_run(tmp_path / "b.gz", run)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert read_run(tmp_path / "a.gz") == run


def test_submissions_have_query_document_and_rank(tmp_path: Path) -> None:
    documents = (ScoredDocument("D7", 3.0), ScoredDocument("D9", 3.0), ScoredDocument("D1", -1.0))
    write_run(tmp_path / "run", Run({"2": documents, "1": documents[:1]}, name="mine"), form="msmarco")
    assert (tmp_path / "run").read_text() == "2\tD7\t1\n2\tD9\t2\n2\tD1\t3\n1\tD7\t1\n"
    again = read_run(tmp_path / "run")
    assert again.by_rank
    assert [candidate.doc_id for candidate in again.rankings["2"]] == ["D7", "D9", "D1"]
    with pytest.raises(EvaluationError, match="one word"):
        write_run(tmp_path / "run", Run({"q": (ScoredDocument("two words", 0.5),)}), form="msmarco")


@pytest.mark.parametrize("text", ["1\t0\tD1\t1\n1 Q0 D2 -2\n", "query-id\tcorpus-id\tscore\n1\tD1\t1\n1\tD2\t-2\n"])
def test_judgments_are_read_with_any_white_space_and_in_beirs_form(tmp_path: Path, text: str) -> None:
    qrels = flatten_qrels(read_qrels([str(written(tmp_path / "qrels", text))]))
    assert list(qrels) == [Judgment("1", "D1", 1), Judgment("1", "D2", -2)]
