"""Read runs and judgments of TREC and MS MARCO, and write runs that all tools sort in the same order.

``trec_eval`` ignores the rank column. It sorts by score and breaks ties by document id, both descending. Versions up to
9.0.8 store scores in 32 bits. Runs written here therefore have scores that strictly decrease in 32 bits.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.files import line_error, write_atomically
from osrerank.formats.lines import WORD, explain_invalid_id, parse_whole_number, read_column_lines
from osrerank.formats.sources import SourceFile, file_errors, open_paths, record_error
from osrerank.formats.tables import DOCNO, LABEL, QID, SCORE, is_table, read_table_rows
from osrerank.types import Qrels, Run, ScoredDocument

logger = logging.getLogger(__name__)
Duplicates = Literal["refuse", "first"]
RunForm = Literal["trec", "msmarco"]
"""TREC's six columns, or MS MARCO's three: query id, document id and rank."""
_INT32 = range(-(1 << 31), 1 << 31)
"""The range of grades, because evaluation programs store them in 32 bits."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class RunLine(NamedTuple):
    """A line of a run.

    Attributes:
        file: the path of the run.
        number: the line's number, from 1.
        query_id: the query's id.
        doc_id: the document's id.
        score: the document's score, or 1 / rank in MS MARCO's form, which has no scores.
        rank: the document's rank, from 1, or None in TREC's form, whose rank column is ignored.
        tag: the name of the run, or "" in MS MARCO's form.
    """

    file: str
    number: int
    query_id: str
    doc_id: str
    score: float
    rank: int | None
    tag: str

    def error(self, reason: str) -> FormatError:
        """Return the error for this line."""
        return line_error(Path(self.file), self.number, reason)


def read_run(path: Path | str, *, duplicates: Duplicates = "refuse") -> Run:
    """Read a run, which can be compressed.

    A run has TREC's six columns or MS MARCO's three (``query_id doc_id rank``), separated by spaces or tabs. It can
    also be PyTerrier's table as CSV (``qid``, ``docno``, ``score``), or the candidates of ``ir_datasets:NAME``.

    Documents are sorted as by trec_eval: by score, then document id, both descending. In a three-column run, scores are
    1 / rank. As in trec_eval, text after the sixth column is ignored, and lines that start with ``#`` are comments.

    Args:
        path: the run file.
        duplicates: ``refuse`` raises an error if a query has a document twice. ``first`` keeps the first line.

    Raises:
        FormatError: a line is malformed, a score is not finite, a document or rank is repeated, or the run is empty.
    """
    path = Path(path)
    rankings: dict[str, dict[str, float]] = {}
    tag = ""
    for line in read_run_lines(path):
        documents = rankings.setdefault(line.query_id, {})
        if line.doc_id in documents:
            if duplicates == "refuse":
                raise line.error(f"query {line.query_id!r} has document {line.doc_id!r} twice; remove one")
            continue
        documents[line.doc_id] = line.score
        tag = tag or line.tag
    if not rankings:
        reason = f"{path} is empty; expected lines such as `query_id Q0 doc_id rank score tag`"
        raise FormatError(reason, file=str(path))
    has_ranks = not tag  # only MS MARCO's form has no tag
    if has_ranks and any(_has_equal_scores(documents) for documents in rankings.values()):
        raise _repeated_rank_error(path)
    sorted_rankings = {query_id: sort_as_trec_eval(documents) for query_id, documents in rankings.items()}
    return Run(sorted_rankings, name=tag or path.stem, by_rank=has_ranks)


def _has_equal_scores(documents: Mapping[str, float]) -> bool:
    return len(set(documents.values())) < len(documents)


def read_run_lines(paths: Path | str | Sequence[str]) -> Iterator[RunLine]:
    """Yield the lines of a run without blank lines and comments, and log the number of comments.

    All lines of a file must have the form of its first line, TREC's or MS MARCO's. ``paths`` is a file, or a list of
    files, folders and archives.

    Raises:
        FormatError: a line is malformed, or has another form than the first line.
    """
    for source in open_paths(paths, part="scoreddocs"):  # ir_datasets' name for a data set's candidates
        is_trec: bool | None = None
        with file_errors(source):
            if is_table(source):
                yield from _parse_table(source)
                continue
            for number, fields in _split_lines(source):
                if is_trec is None:
                    is_trec = len(fields) > 3
                yield _parse_run_line(source, number, fields, is_trec=is_trec)


def read_qrels(paths: Path | str | Sequence[str]) -> Qrels:
    """Read judgments, which can be compressed.

    The columns are TREC's ``query_id iteration doc_id relevance``, or BEIR's ``query-id corpus-id score`` with a header
    line, separated by spaces or tabs. PyTerrier's table as CSV (``qid``, ``docno``, ``label``) and ``ir_datasets:NAME``
    are also accepted. A judgment that is repeated with the same grade counts once, and is logged.

    Args:
        paths: a file, or a list of files, folders and archives.

    Raises:
        FormatError: a line is malformed, a document has two grades for a query, or there are no judgments.
        LoaderError: a path in a list does not exist.
    """
    judgments: dict[str, dict[str, int]] = {}
    for source in open_paths(paths, part="qrels"):
        repeated: list[int] = []
        with file_errors(source):
            for number, query_id, doc_id, grade in _parse_judgments(source):
                grades_by_id = judgments.setdefault(query_id, {})
                if doc_id in grades_by_id:
                    repeated.append(number)
                previous = grades_by_id.setdefault(doc_id, grade)
                if previous != grade:
                    grades = f"{previous} and {grade}"
                    reason = f"query {query_id!r} has document {doc_id!r} with the grades {grades}; remove one"
                    raise record_error(source, reason, line=number)
        if repeated:
            logger.warning(
                "%s repeats %d judgments with the same grade, which count once; the first is in line %d",
                source.name,
                len(repeated),
                repeated[0],
            )
    if not judgments:
        source_name = paths if isinstance(paths, str | Path) else ", ".join(paths)
        reason = f"{source_name} has no judgments; expected lines such as `query_id 0 doc_id relevance`"
        raise FormatError(reason, file=str(source_name))
    return Qrels(judgments)


def _parse_judgments(source: SourceFile) -> Iterator[tuple[int, str, str, int]]:
    """Yield the line number, query id, document id and grade of each judgment, such as ``(1, "q1", "d7", 2)``."""
    if is_table(source):
        for number, row in read_table_rows(source, (QID, DOCNO, LABEL)):
            _validate_ids(source, number, row)
            yield number, row[QID], row[DOCNO], _parse_grade(source, number, row[LABEL])
        return
    columns = 4
    for number, fields in _split_lines(source):
        if number == 1 and fields[0] == "query-id":
            columns = 3
            continue
        if len(fields) != columns:
            expected = "`query_id 0 doc_id relevance`" if columns == 4 else "`query-id corpus-id score`"
            raise record_error(source, f"expected {expected}, found {len(fields)} columns", line=number)
        yield number, fields[0], fields[-2], _parse_grade(source, number, fields[-1])


def _parse_grade(source: SourceFile, number: int, text: str) -> int:
    try:
        grade = parse_whole_number(text)
    except ValueError:
        raise record_error(source, f"the relevance is {text!r}; it must be a whole number", line=number) from None
    if grade not in _INT32:
        raise record_error(source, f"the relevance {text} does not fit in 32 bits, as trec_eval requires", line=number)
    return grade


def sort_as_trec_eval(
    scores: Mapping[str, float] | Iterable[ScoredDocument], *, single_precision: bool = False
) -> tuple[ScoredDocument, ...]:
    """Sort documents as trec_eval does: score, then document id, both descending.

    With ``single_precision``, scores are compared as 32-bit floats, as trec_eval up to 9.0.8 does.
    """

    def sort_key(document: ScoredDocument) -> tuple[float, str]:
        score = _round_to_float32(document.score) if single_precision else document.score
        return score, document.doc_id

    pairs = scores.items() if isinstance(scores, Mapping) else scores
    return tuple(sorted((ScoredDocument(doc_id, score) for doc_id, score in pairs), key=sort_key, reverse=True))


def write_run(path: Path | str, run: Run, *, form: RunForm = "trec") -> None:
    """Write a run atomically in the order of its rankings, gzipped if its name ends in ``.gz``.

    In TREC's form, scores are written as 32-bit floats with the fewest decimals. A score that is not below the previous
    score becomes the next lower float, so that all tools sort the run in the same order. MS MARCO's form has query id,
    document id and rank, separated by tabs.

    Raises:
        EvaluationError: a score does not fit in 32 bits, or an id or the tag is blank or contains white space.
    """
    write_rankings(path, run.name, run.rankings.items(), form=form)


def write_rankings(
    path: Path | str, name: str, rankings: Iterable[tuple[str, Sequence[ScoredDocument]]], *, form: RunForm = "trec"
) -> None:
    """Write a run as `write_run` does, from rankings that need not be in memory at the same time.

    A ranking is a query id and its documents in rank order. ``name`` is the run's tag.
    """
    lines = _format_trec(name, rankings) if form == "trec" else _format_msmarco(rankings)
    write_atomically(Path(path), lines)


def _format_trec(name: str, rankings: Iterable[tuple[str, Sequence[ScoredDocument]]]) -> Iterator[str]:
    _validate_word("the run's tag", name)
    for query_id, documents in rankings:
        _validate_query_id(query_id)
        scores = make_strictly_decreasing([document.score for document in documents])
        for rank, (document, score) in enumerate(zip(documents, scores, strict=True), start=1):
            _validate_word(f"query {query_id}: a document id", document.doc_id)
            yield f"{query_id} Q0 {document.doc_id} {rank} {score!s} {name}\n"


def _format_msmarco(rankings: Iterable[tuple[str, Sequence[ScoredDocument]]]) -> Iterator[str]:
    for query_id, documents in rankings:
        _validate_query_id(query_id)
        for rank, document in enumerate(documents, start=1):
            _validate_word(f"query {query_id}: a document id", document.doc_id)
            yield f"{query_id}\t{document.doc_id}\t{rank}\n"


def make_strictly_decreasing(scores: Iterable[float]) -> list[np.float32]:
    """Return scores ``(n,)`` as 32-bit floats, each lowered if necessary to be below the previous one.

    Raises:
        EvaluationError: a score does not fit in 32 bits.
    """
    decreasing: list[np.float32] = []
    previous = np.float32(np.inf)
    with np.errstate(over="ignore"):  # scores below the minimum float become -inf, and raise an error below
        for score in scores:
            if math.isnan(score) or abs(score) > _FLOAT32_MAX:
                raise EvaluationError(f"the score {score} does not fit in 32 bits; rescale the scores")
            previous = min(np.float32(score), np.nextafter(previous, np.float32(-np.inf)))
            decreasing.append(previous)
    if decreasing and not np.isfinite(decreasing[-1]):
        raise EvaluationError("the scores cannot be made strictly decreasing in 32 bits; rescale the scores")
    return decreasing


def _split_lines(source: SourceFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and fields of each line, without blank lines and comments. Log the number of comments."""
    n_comments = 0
    for number, line in read_column_lines(source):
        if line.startswith("#"):
            n_comments += 1
        elif fields := WORD.findall(line):
            yield number, fields
    if n_comments:
        logger.warning("%s has %d lines that begin with '#', which are ignored as comments", source.name, n_comments)


def _parse_run_line(source: SourceFile, number: int, fields: list[str], *, is_trec: bool) -> RunLine:
    has_valid_length = len(fields) >= 6 if is_trec else len(fields) == 3
    if not has_valid_length:
        six_columns, three_columns = "`query_id Q0 doc_id rank score tag`", "`query_id doc_id rank`"
        form, other_form = (six_columns, three_columns) if is_trec else (three_columns, six_columns)
        reason = f"expected {form} or, in every line, {other_form}, found {len(fields)} columns"
        raise record_error(source, reason, line=number)
    if is_trec:
        query_id, _q0, doc_id, _rank, score, tag = fields[:6]
        return RunLine(source.name, number, query_id, doc_id, _parse_score(source, number, score), rank=None, tag=tag)
    query_id, doc_id, rank_text = fields
    try:
        rank = parse_whole_number(rank_text)
    except ValueError:
        raise record_error(
            source, f"the rank is {rank_text!r}; it must be a whole number from 1 on", line=number
        ) from None
    if rank < 1:
        raise record_error(source, f"the rank is {rank_text}; it must be a whole number from 1 on", line=number)
    return RunLine(source.name, number, query_id, doc_id, 1 / rank, rank, tag="")


def _parse_table(source: SourceFile) -> Iterator[RunLine]:
    """Yield the rows of a PyTerrier table. The run is named after the file."""
    tag = Path(source.name).stem
    for number, row in read_table_rows(source, (QID, DOCNO, SCORE)):
        _validate_ids(source, number, row)
        score = _parse_score(source, number, row[SCORE])
        yield RunLine(source.name, number, row[QID], row[DOCNO], score, rank=None, tag=tag)


def _validate_ids(source: SourceFile, number: int, row: Mapping[str, str]) -> None:
    reason = explain_invalid_id(row[QID], is_query=True) or explain_invalid_id(row[DOCNO])
    if reason:
        raise record_error(source, reason, line=number)


def _repeated_rank_error(path: Path) -> FormatError:
    """Read a run again to find the first repeated rank, and return the error that names its line."""
    ranks: set[tuple[str, int | None]] = set()
    for line in read_run_lines(path):
        if (line.query_id, line.rank) in ranks:
            return line.error(f"two documents of query {line.query_id} have the same rank; number them 1, 2, 3, ...")
        ranks.add((line.query_id, line.rank))
    return FormatError(f"{path} was changed while it was being read; start again", file=str(path))


def _parse_score(source: SourceFile, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = None
    if score is None or "_" in text or not text.isascii():  # Python reads 1_000 and other alphabets' digits as numbers
        raise record_error(source, f"the score is {text!r}; it must be a number", line=number)
    if not math.isfinite(score):
        raise record_error(source, f"the score is {text}; it must be a finite number", line=number)
    return score


def _round_to_float32(score: float) -> float:
    return math.copysign(math.inf, score) if abs(score) > _FLOAT32_MAX else float(np.float32(score))


def _validate_query_id(query_id: str) -> None:
    _validate_word("a query id", query_id)
    if query_id.startswith("#"):
        raise EvaluationError(f"a query id is {query_id!r}; it must not begin with '#', which marks comments")


def _validate_word(label: str, text: str) -> None:
    if not WORD.fullmatch(text):
        raise EvaluationError(f"{label} is {text!r}; it must be one word, because white space separates columns")
