"""Query sets and judgment lists of OpenSearch's Search Relevance plugin, and their files.

What is written is the body of ``PUT _plugins/_search_relevance/query_sets`` and ``.../judgments``
(``IMPORT_JUDGMENT``). What is read is such a body, a stored document, or the answer of a ``GET`` of either.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from osrerank.decision.use.clicks import folded
from osrerank.decision.use.judgments import JudgmentList
from osrerank.errors import FormatError
from osrerank.formats.common_layout import judgments_of, write_lines, write_qrels, write_queries
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.types import Query

QUERIES_FILE, QRELS_FILE = "queries.tsv", "qrels.txt"
"""As the comparison page saves what people judge there."""
LISTED = "list-"
"""Begins the ids of queries that come without one."""
MOST_NAME = 50


def query_set(queries: Iterable[Query], name: str) -> dict[str, Any]:
    """Return the body that makes a query set."""
    texts = [{"queryText": query.text} for query in queries]
    return {"name": name, "description": "written by osrerank", "sampling": "manual", "querySetQueries": texts}


def judgment_list(judged: JudgmentList, name: str) -> dict[str, Any]:
    """Return the body that imports a judgment list; ratings are texts, as the plugin writes them."""
    ratings = [
        {
            "query": query.text,
            "ratings": [
                {"docId": doc_id, "rating": f"{value:.4f}"} for doc_id, value in judged.ratings[query.query_id].items()
            ],
        }
        for query in judged.queries
    ]
    body = {"name": name, "description": "written by osrerank", "type": "IMPORT_JUDGMENT"}
    return {**body, "judgmentRatings": ratings}


def read_list(path: Path) -> JudgmentList:
    """Return the queries of a query set, or those of a judgment list with their ratings.

    Raises:
        FormatError: the file is neither; the message names the field.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not JSON: {error}", file=str(path)) from None
    documents = list(_documents(content))
    for document in documents:
        if "querySetQueries" in document or "judgmentRatings" in document:
            break
    else:
        reason = f"{path} has neither querySetQueries nor judgmentRatings: export a query set or a judgment list"
        raise FormatError(reason, file=str(path))
    if len(documents) > 1:
        raise FormatError(f"{path} has {len(documents)} lists: get one by its id", file=str(path))
    try:
        return _of_ratings(document["judgmentRatings"]) if "judgmentRatings" in document else _of_set(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{path} is no list of the plugin: {type(error).__name__}: {error}"
        raise FormatError(reason, file=str(path)) from None


def _documents(content: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the lists of a body, of a stored document, or of a search's answer."""
    if isinstance(content, Mapping):
        hits = content.get("hits")
        if isinstance(hits, Mapping):
            yield from (hit["_source"] for hit in hits.get("hits", []) if isinstance(hit, Mapping) and "_source" in hit)
        else:
            yield content.get("_source", content)


def _of_ratings(entries: Any) -> JudgmentList:
    queries: dict[str, Query] = {}
    ratings: dict[str, dict[str, float]] = {}
    for entry in entries:
        query = queries.setdefault(folded(entry["query"]), _listed(len(queries), entry["query"]))
        judged = {str(one["docId"]): _rating(one["rating"]) for one in entry["ratings"]}
        ratings.setdefault(query.query_id, {}).update(judged)
    return JudgmentList(tuple(queries.values()), ratings)


def _rating(given: Any) -> float:
    value = float(given)
    if not math.isfinite(value):
        raise ValueError(f"the rating {given!r} is not a finite number")
    return value


def _of_set(document: Mapping[str, Any]) -> JudgmentList:
    entries = document["querySetQueries"]
    texts = entries if isinstance(entries, Mapping) else [entry["queryText"] for entry in entries]
    return JudgmentList(tuple(_listed(place, text) for place, text in enumerate(texts)), {})


def _listed(place: int, text: str) -> Query:
    return Query(f"{LISTED}{place + 1}", " ".join(text.split()))


def read_folder(folder: Path) -> JudgmentList:
    """Return what a folder has: queries, and their judgments if there are any.

    Raises:
        FormatError, OSError: a file cannot be read.
    """
    queries = read_queries(folder / QUERIES_FILE)
    qrels = read_qrels(folder / QRELS_FILE).judgments if (folder / QRELS_FILE).exists() else {}
    ratings = {key: {doc_id: float(grade) for doc_id, grade in one.items()} for key, one in qrels.items()}
    judged = tuple(query for query in queries if query.query_id in ratings) if ratings else queries
    return JudgmentList(judged, {query.query_id: ratings.get(query.query_id, {}) for query in judged})


def write_folder(judged: JudgmentList, folder: Path) -> None:
    """Write the queries, and their judgments as grades if there are any.

    Raises:
        FormatError: a document's id cannot stand in a TREC file.
    """
    for doc_id in (doc_id for one in judged.ratings.values() for doc_id in one):
        if not doc_id or any(character.isspace() for character in doc_id):
            reason = f"the document id {doc_id!r} has white space and cannot stand in {QRELS_FILE}: index it by another"
            raise FormatError(reason, file=str(folder / QRELS_FILE))
    folder.mkdir(parents=True, exist_ok=True)
    write_queries(judged.queries, folder / QUERIES_FILE)
    if judged.ratings:
        write_qrels(judgments_of(judged.qrels()), folder / QRELS_FILE)


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a body."""
    write_lines([json.dumps(content, ensure_ascii=False, indent=2)], path)
