"""Read TREC's and MS MARCO's runs and judgments strictly, and write runs that every tool sorts in the same order.

``trec_eval`` ignores the rank column. It sorts by score, ties by document id, both descending, and versions up to 9.0.8
hold scores in 32 bits. Runs written here therefore have strictly decreasing scores, which stay distinct in 32 bits.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.files import bad_line, write_atomically
from osrerank.formats.lines import WORD, column_lines, invalid_id_reason, whole_number
from osrerank.formats.sources import SourceFile, file_errors, open_paths, record_error
from osrerank.formats.tables import DOCNO, LABEL, QID, SCORE, is_table, table_rows
from osrerank.types import Qrels, Run, ScoredDocument

logger = logging.getLogger(__name__)
Duplicates = Literal["refuse", "first"]
RunForm = Literal["trec", "msmarco"]
"""TREC's six columns, or the three columns of MS MARCO's submissions."""
_GRADES = range(-(1 << 31), 1 << 31)
"""The grades that programs for measures can hold, in 32 bits."""
_QUERY_ID = "a query id"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class RunLine(NamedTuple):
    """A line of a run.

    Attributes:
        file: the run's path.
        number: the number of the line, from 1.
        query_id: the id of the query.
        doc_id: the id of the document.
        score: the document's score; 1/rank in MS MARCO's form, which has no scores.
        rank: the document's rank, from 1; None in TREC's form, whose rank column is ignored.
        tag: the run's name; "" in MS MARCO's form.
    """

    file: str
    number: int
    query_id: str
    doc_id: str
    score: float
    rank: int | None
    tag: str

    def error(self, problem: str) -> FormatError:
        """Return the error for a problem in this line."""
        return bad_line(Path(self.file), self.number, problem)


def read_run(path: Path | str, *, duplicates: Duplicates = "refuse") -> Run:
    """Read a run: TREC's six columns or MS MARCO's three (``query_id doc_id rank``), spaces or tabs, plain or ``.gz``.

    The run may also be PyTerrier's table as CSV (``qid``, ``docno``, ``score``), or the candidates of
    ``ir_datasets:NAME``.

    Documents are sorted as by trec_eval: by score, then document id, both descending. A three-column run gets the
    scores 1/rank. As in trec_eval, text after the sixth column is ignored, and a line that starts with ``#`` is a
    comment.

    Args:
        path: the run file.
        duplicates: what to do if a query has a document twice: refuse the file, or keep the first line.

    Raises:
        FormatError: a line is malformed, a score is not finite, a document or rank is repeated, or the run has no
            lines.
    """
    path = Path(path)
    rankings: dict[str, dict[str, float]] = {}
    tag = ""
    for line in run_lines(path):
        documents = rankings.setdefault(line.query_id, {})
        if line.doc_id in documents:
            if duplicates == "refuse":
                raise line.error(f"query {line.query_id} has document {line.doc_id} twice; remove one")
            continue
        documents[line.doc_id] = line.score
        tag = tag or line.tag
    if not rankings:
        reason = f"{path}: the run is empty; expected lines such as `query_id Q0 doc_id rank score tag`"
        raise FormatError(reason, file=str(path))
    if not tag and any(len(set(documents.values())) != len(documents) for documents in rankings.values()):
        raise _repeated_rank(path)
    ordered = {query_id: trec_order(documents) for query_id, documents in rankings.items()}
    return Run(ordered, name=tag or path.stem, by_rank=not tag)


def run_lines(paths: Path | str | Sequence[str]) -> Iterator[RunLine]:
    """Yield the lines of a run, without blank lines and comments; a log line counts the comments.

    The first line of a file decides its form: TREC's six columns, or the three columns of MS MARCO's submissions.

    Args:
        paths: a file, or files, folders and archives.

    Raises:
        FormatError: a line is malformed, or has another form than the first line.
    """
    for source in open_paths(paths, part="scoreddocs"):
        is_trec: bool | None = None
        with file_errors(source):
            if is_table(source):
                yield from _run_rows(source)
                continue
            for number, fields in _records(source):
                is_trec = len(fields) > 3 if is_trec is None else is_trec
                yield _run_line(source, number, fields, is_trec=is_trec)


def read_qrels(paths: Path | str | Sequence[str]) -> Qrels:
    """Read judgments: ``query_id iteration doc_id relevance``, or BEIR's ``query-id corpus-id score`` under a heading.

    Columns are separated by spaces or tabs; files may be compressed, or archives. PyTerrier's table as CSV (``qid``,
    ``docno``, ``label``) and ``ir_datasets:NAME`` are also accepted. A judgment that is repeated with the same grade
    counts once, and a log line counts the repetitions.

    Args:
        paths: a file, or files, folders and archives.

    Raises:
        FormatError: a line is malformed, a document has two grades for a query, or there are no judgments.
        LoaderError: one of several paths does not exist.
    """
    judgments: dict[str, dict[str, int]] = {}
    for source in open_paths(paths, part="qrels"):
        repeated: list[int] = []
        with file_errors(source):
            for number, query_id, doc_id, relevance in _judgments(source):
                judged = judgments.setdefault(query_id, {})
                if (earlier := judged.get(doc_id, relevance)) != relevance:
                    reason = f"query {query_id} has document {doc_id} with grades {earlier} and {relevance}; remove one"
                    raise record_error(source, reason, line=number)
                if doc_id in judged:
                    repeated.append(number)
                judged[doc_id] = relevance
        if repeated:
            logger.warning(
                "%s: %d judgments come twice with the same grade, and count once; the first in line %d",
                source.name,
                len(repeated),
                repeated[0],
            )
    if not judgments:
        source_name = paths if isinstance(paths, str | Path) else ", ".join(paths)
        reason = f"{source_name}: no judgments; expected lines such as `query_id 0 doc_id relevance`"
        raise FormatError(reason, file=str(source_name))
    return Qrels(judgments)


def _judgments(source: SourceFile) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line, query id, document id, relevance)."""
    if is_table(source):
        for number, row in table_rows(source, (QID, DOCNO, LABEL)):
            _check_ids(source, number, row)
            yield number, row[QID], row[DOCNO], _grade(source, number, row[LABEL])
        return
    columns = 4
    for number, fields in _records(source):
        if number == 1 and fields[0] == "query-id":
            columns = 3
            continue
        if len(fields) != columns:
            expected = "`query_id 0 doc_id relevance`" if columns == 4 else "`query-id corpus-id score`"
            raise record_error(source, f"expected {expected}, found {len(fields)} columns", line=number)
        yield number, fields[0], fields[-2], _grade(source, number, fields[-1])


def _grade(source: SourceFile, number: int, text: str) -> int:
    try:
        relevance = whole_number(text)
    except ValueError:
        raise record_error(source, f"the relevance {text!r} is not a whole number", line=number) from None
    if relevance not in _GRADES:
        raise record_error(
            source, f"the relevance {text} does not fit in 32 bits, as the measures need it", line=number
        )
    return relevance


def trec_order(
    scores: Mapping[str, float] | Iterable[ScoredDocument], *, single_precision: bool = False
) -> tuple[ScoredDocument, ...]:
    """Sort documents as trec_eval does: score, then document id, both descending.

    Args:
        scores: document id -> score, or scored documents.
        single_precision: compare the scores as 32-bit floats, as trec_eval up to 9.0.8 does.
    """
    pairs = scores.items() if isinstance(scores, Mapping) else scores
    documents = (ScoredDocument(doc_id, score) for doc_id, score in pairs)
    if single_precision:
        return tuple(sorted(documents, key=lambda document: (_float32(document.score), document.doc_id), reverse=True))
    return tuple(sorted(documents, key=lambda document: (document.score, document.doc_id), reverse=True))


def write_run(path: Path | str, run: Run, *, form: RunForm = "trec") -> None:
    """Write a run in the order of its rankings, atomically, and gzipped if its name ends in ``.gz``.

    TREC's form has scores, written as the shortest decimals of 32-bit floats. A score that is not below its predecessor
    becomes the next lower 32-bit float, so that every tool sorts the run in the same order. MS MARCO's form has only
    query id, document id and rank, separated by tabs.

    Raises:
        EvaluationError: a score does not fit in 32 bits, or an id or the tag is blank or contains white space.
    """
    write_rankings(path, run.name, run.rankings.items(), form=form)


def write_rankings(
    path: Path | str, name: str, rankings: Iterable[tuple[str, Sequence[ScoredDocument]]], *, form: RunForm = "trec"
) -> None:
    """Write a run as `write_run` does, from rankings that are read one after the other.

    Args:
        path: the run file.
        name: the run's tag.
        rankings: pairs of query id and documents in rank order.
        form: the form of the run, as for `write_run`.

    Raises:
        EvaluationError: as `write_run`.
    """
    write_atomically(Path(path), _run_lines(name, rankings) if form == "trec" else _submission_lines(rankings))


def _run_lines(name: str, rankings: Iterable[tuple[str, Sequence[ScoredDocument]]]) -> Iterator[str]:
    """Yield the lines of a run in TREC's form, with their line ends."""
    _check_token("the run's tag", name)
    for query_id, documents in rankings:
        _check_token(_QUERY_ID, query_id)
        scores = strictly_decreasing([document.score for document in documents])
        for rank, (document, score) in enumerate(zip(documents, scores, strict=True), start=1):
            _check_token(f"query {query_id}: a document id", document.doc_id)
            yield f"{query_id} Q0 {document.doc_id} {rank} {score!s} {name}\n"


def _submission_lines(rankings: Iterable[tuple[str, Sequence[ScoredDocument]]]) -> Iterator[str]:
    for query_id, documents in rankings:
        _check_token(_QUERY_ID, query_id)
        for rank, document in enumerate(documents, start=1):
            _check_token(f"query {query_id}: a document id", document.doc_id)
            yield f"{query_id}\t{document.doc_id}\t{rank}\n"


def strictly_decreasing(scores: Iterable[float]) -> list[np.float32]:
    """Return scores ``(n,)`` as 32-bit floats; each is lowered, if necessary, to stay below its predecessor."""
    lowered: list[np.float32] = []
    ceiling = np.float32(np.inf)
    with np.errstate(over="ignore"):  # a score below the minimum float becomes -inf, which is refused at the end
        for score in scores:
            if not abs(score) <= _FLOAT32_MAX:
                raise EvaluationError(f"the score {score} does not fit in a run's 32 bits; rescale the scores")
            ceiling = min(np.float32(score), np.nextafter(ceiling, np.float32(-np.inf)))
            lowered.append(ceiling)
    if lowered and not np.isfinite(lowered[-1]):
        raise EvaluationError("the scores cannot be made strictly decreasing in 32 bits; rescale them")
    return lowered


def _records(source: SourceFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each line, without blank lines and comments; log the number of comments."""
    comments = 0
    for number, line in column_lines(source):
        if line.startswith("#"):
            comments += 1
        elif fields := WORD.findall(line):
            yield number, fields
    if comments:
        logger.warning("%s: %d lines begin with '#' and were left out as comments", source.name, comments)


def _run_line(source: SourceFile, number: int, fields: list[str], *, is_trec: bool) -> RunLine:
    if len(fields) < 6 if is_trec else len(fields) != 3:
        forms = ["`query_id Q0 doc_id rank score tag`", "`query_id doc_id rank`"]
        expected = " or, in every line, ".join(forms if is_trec else reversed(forms))
        raise record_error(source, f"expected {expected}, found {len(fields)} columns", line=number)
    if is_trec:
        query_id, _q0, doc_id, _rank, text, tag = fields[:6]
        return RunLine(source.name, number, query_id, doc_id, _score(source, number, text), None, tag)
    query_id, doc_id, text = fields
    try:
        rank = whole_number(text)
    except ValueError:
        raise record_error(source, f"the rank {text!r} is not a whole number", line=number) from None
    if rank < 1:
        raise record_error(source, f"rank {text} is below 1", line=number)
    return RunLine(source.name, number, query_id, doc_id, 1 / rank, rank, "")


def _run_rows(source: SourceFile) -> Iterator[RunLine]:
    """Yield the rows of a PyTerrier table; the run gets the file's name."""
    name = Path(source.name).stem
    for number, row in table_rows(source, (QID, DOCNO, SCORE)):
        _check_ids(source, number, row)
        yield RunLine(source.name, number, row[QID], row[DOCNO], _score(source, number, row[SCORE]), None, name)


def _check_ids(source: SourceFile, number: int, row: Mapping[str, str]) -> None:
    if problem := invalid_id_reason(row[QID], of_query=True) or invalid_id_reason(row[DOCNO]):
        raise record_error(source, problem, line=number)


def _repeated_rank(path: Path) -> FormatError:
    """Return the error for the first line of a three-column run with the rank of another document of its query."""
    ranks: set[tuple[str, int | None]] = set()
    for line in run_lines(path):
        if (line.query_id, line.rank) in ranks:
            return line.error(f"two documents of query {line.query_id} have the same rank; number them 1, 2, 3, ...")
        ranks.add((line.query_id, line.rank))
    return FormatError(f"{path} was changed while it was read; start again", file=str(path))


def _score(source: SourceFile, number: int, text: str) -> float:
    try:
        score = float(text if text.isascii() and "_" not in text else "")
    except ValueError:
        raise record_error(source, f"the score {text!r} is not a number", line=number) from None
    if not math.isfinite(score):
        raise record_error(source, f"the score is {text}; every score must be finite", line=number)
    return score


def _float32(score: float) -> float:
    return math.copysign(math.inf, score) if abs(score) > _FLOAT32_MAX else float(np.float32(score))


def _check_token(label: str, text: str) -> None:
    if not WORD.fullmatch(text):
        raise EvaluationError(f"{label} is {text!r}: a run separates by white space, so it must be one word")
    if label == _QUERY_ID and text.startswith("#"):
        raise EvaluationError(f"{label} is {text!r}: a line of a run that begins with '#' is a comment")
