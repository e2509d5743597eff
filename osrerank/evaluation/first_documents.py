"""The first document of each run for some queries, to read beside each other.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, Table 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.errors import EvaluationError
from osrerank.formats.candidates import read_texts
from osrerank.types import Qrels, Query, Run


@dataclass(frozen=True, slots=True)
class FirstDocument:
    """What a run puts first for a query.

    Attributes:
        query_id: the query.
        query: its text.
        run: the run's name.
        doc_id: the document.
        relevance: of the document; None where it is not judged.
        text: of the document, its title in front.
    """

    query_id: str
    query: str
    run: str
    doc_id: str
    relevance: int | None
    text: str


def first_documents(queries: Sequence[Query], runs: Sequence[Run], qrels: Qrels, corpus: Path) -> list[FirstDocument]:
    """Return the first document of every run, query by query; a run without documents for a query is left out.

    Args:
        queries: those that are looked at.
        runs: in the order of the table.
        qrels: the judgments.
        corpus: JSON lines with ``id``, ``text`` and, where there is one, ``title``; read once.

    Raises:
        EvaluationError: no run answers any of the queries, or the corpus lacks a document.
        FormatError: the corpus is malformed.
    """
    found = [
        (query, run.name, ranking[0].doc_id)
        for query in queries
        for run in runs
        if (ranking := run.rankings.get(query.query_id))
    ]
    if not found:
        raise EvaluationError("no run answers any of these queries; check their ids")
    texts = read_texts(corpus, {doc_id for _query, _run, doc_id in found})
    judged = qrels.judgments
    return [
        FirstDocument(one.query_id, one.text, run, doc_id, judged.get(one.query_id, {}).get(doc_id), texts[doc_id])
        for one, run, doc_id in found
    ]
