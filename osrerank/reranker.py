"""Rerank texts from any source, without a search engine."""

import asyncio
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from numbers import Integral
from typing import Any, Self, Unpack

from osrerank._threads import DaemonThreads
from osrerank.errors import ConfigError
from osrerank.formats.frames import (
    FIRST_RANK,
    drop_missing_values,
    group_by_query,
    is_frame,
    name_type,
    read_frame_rows,
    with_scores,
)
from osrerank.formats.tables import DOCNO, QID, QUERY, TEXT
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.pipeline import find_applied
from osrerank.search.rerank_only import (
    UNUSED_TEXT_OPTIONS,
    check_query,
    check_unused_options,
    make_ranking,
    rerank_ranking,
)
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.thresholds.cut import filter_by_probability, last_probability
from osrerank.tracing.spans import bind_trace
from osrerank.types import Candidate, Encoder, Scorer

DEFAULTS = Rerank(blend="replace", depth=10_000)
"""The default options: only the model's scores order the texts, without a blend of first-pass scores."""
MAX_CONCURRENT_QUERIES = 8
"""The maximum number of queries that are ranked at the same time. Their texts share the model's batches."""

Document = str | Mapping[str, Any]
"""A text, or a mapping with ``text`` and optionally ``id``, ``doc_id`` or ``docno``, ``title`` and ``score``."""
ID_FIELDS = ("id", "doc_id", "docno")
"""The keys that can hold a document's id. The first one in the document is used."""
UNSCORED_GAP = 1.0
"""In a DataFrame, how far the score of an unscored text lies below that of the text above it."""


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text in the new order, with its score.

    Attributes:
        doc_id: the document's ``id``, ``doc_id`` or ``docno``, or else its position in ``documents``, from 0.
        score: the last stage's score, which is a logit if there is only one stage. None if the text was not scored.
        probability: the model's probability of relevance, in [0, 1]. None if the text was not scored.
        rank: the rank in the new order, from 1.
        text: the title and text, as the model reads them.
        truncated: whether the text was longer than the model can read.
    """

    doc_id: Any
    score: float | None
    probability: float | None
    rank: int
    text: str
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return asdict(self)


class Reranker:
    """Ranks texts with a model, which is loaded on first use. Safe to use from many threads.

    ```python
    from osrerank import Reranker

    with Reranker() as reranker:
        ranked = reranker.rank("what lowers blood pressure", ["Wings lift.", "Aspirin lowers blood pressure."])
    assert ranked[0].doc_id == 1
    ```

    Arguments that are None get their values from the settings.

    Args:
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model.
        vector_model: the bi-encoder of the stage ``vectors`` if ``model`` is a cross-encoder: a directory, hub id or
            name, as for ``model``.
        duo_model: the model that compares pairs, for ``mono-duo`` and ``vectors-duo``, as for ``model``.
        backend: ``auto``, ``onnx``, ``torch``, ``workers`` or ``http``.
        redis_url: the Redis for the score cache.
        scorer: a scorer or encoder of your own instead of ``model``, which you close yourself.
        encoder: an encoder of your own instead of ``vector_model``, which you close yourself.
        options: options of ``osrerank.Rerank``, such as ``deadline_ms``, ``passages`` and ``min_score``.

    Raises:
        ConfigError: an option or setting is invalid, or an option has no effect without a search.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        vector_model: str | None = None,
        duo_model: str | None = None,
        backend: str | None = None,
        redis_url: str | None = None,
        scorer: Scorer | Encoder | None = None,
        encoder: Encoder | None = None,
        **options: Unpack[RerankOptions],
    ) -> None:
        check_unused_options(options, UNUSED_TEXT_OPTIONS)
        self._options = Rerank.of(options, DEFAULTS) or DEFAULTS
        models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
        settings = Settings.load(**models, backend=backend, redis_url=redis_url)
        self._service = RerankService(settings, scorer, encoder=encoder)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._service.settings.model

    def rank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Return the documents, best first. Unscored documents follow in their original order.

        Args:
            query: the query's text.
            documents: the documents, or a DataFrame with ``text`` and optionally ``docno``, ``title`` and ``score``.
            top_k: the number of documents to return. None returns all.

        Raises:
            ConfigError: the query or a document has no text, ``documents`` is not a list, or ``top_k`` is no whole
                number from 1 up.
            ValueError: the query's text is blank, or two documents have the same id.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        if not _is_count_or_none(top_k):
            raise _argument_error("top_k", f"top_k is {top_k!r}; it must be a whole number from 1 up, or None")
        rows = _parse_documents(documents)
        check_query(query)
        if not rows:
            return []
        ranking = rerank_ranking(self._service, self._options, make_ranking(query, rows, self._options.separator))
        original_ids = {str(row["id"]): row["id"] for row in rows}  # the ids of candidates are strings
        candidates: Sequence[Candidate] = ranking.candidates
        is_reranked = find_applied(ranking.reports)  # "partial" counts, too
        if is_reranked and self._options.min_score is not None:
            candidates, _n_removed = filter_by_probability(candidates, self._options.min_score, ranking.reports)
        return [_make_ranked_text(candidate, original_ids[candidate.doc_id]) for candidate in candidates[:top_k]]

    def rank_frame(self, frame: Any, *, top_k: int | None = None) -> Any:
        """Return a pandas DataFrame with each query's documents in the new order.

        The columns are PyTerrier's: ``qid``, ``query``, ``docno`` and ``text``, and optionally ``title``, which is also
        part of the model's input, and ``score``. In the new frame, ``score`` is the model's, ``rank`` counts from 0,
        and other columns are unchanged. An unscored text gets a lower score than the text above it.

        Args:
            frame: the candidates of one or more queries.
            top_k: the number of rows to return per query. None returns all.

        Raises:
            ConfigError: a column or value is missing, a document occurs twice for a query, or a query has two texts.
                See `rank` for all other errors.
        """
        if not is_frame(frame):
            raise _argument_error("frame", f"the frame is {_describe_type(frame)}; pass a DataFrame of pandas")
        rows_by_query = group_by_query(frame)
        queries = [_find_query_text(qid, rows) for qid, rows in rows_by_query.items()]
        documents = [[_make_document(number, row) for number, row in rows] for rows in rows_by_query.values()]
        row_numbers: list[int] = []
        scores: list[float] = []
        ranks: list[int] = []
        for texts in self.rank_many(queries, documents, top_k=top_k):
            row_numbers += [text.doc_id for text in texts]  # `_make_document` made the row's number the document's id
            scores += _make_scores_decrease(texts)
            ranks += range(FIRST_RANK, FIRST_RANK + len(texts))
        return with_scores(frame, row_numbers, scores, ranks)

    def rank_many(
        self, queries: Sequence[str], documents: Sequence[Sequence[Document]], *, top_k: int | None = None
    ) -> list[list[RankedText]]:
        """Rank each query's documents as `rank` does, several queries at a time.

        Raises:
            ConfigError: ``queries`` or ``documents`` is not a list.
            ValueError: the numbers of queries and document lists differ. See `rank` for all other errors.
        """
        for name, values in (("queries", queries), ("documents", documents)):
            if isinstance(values, str) or not isinstance(values, Sized):
                reason = f"{name} is {_describe_type(values)}; pass a list with one entry for each query"
                raise _argument_error(name, reason)
        if len(queries) != len(documents):
            raise ValueError(
                f"there are {len(queries)} queries and {len(documents)} lists of documents; pass one list for "
                "each query"
            )
        threads = DaemonThreads(MAX_CONCURRENT_QUERIES, "osrerank-rank")
        rank = partial(self.rank, top_k=top_k)
        try:
            futures = [
                threads.submit(bind_trace(rank), query, query_documents)
                for query, query_documents in zip(queries, documents, strict=True)
            ]
            return [future.result() for future in futures]
        finally:
            threads.close()

    async def arank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Rank documents as `rank` does, in a thread that does not block the event loop."""
        return await asyncio.to_thread(self.rank, query, documents, top_k=top_k)

    def warm_up(self) -> None:
        """Load the models now."""
        self._service.warm_up(self._options)

    def close(self) -> None:
        """Release the models and the connections to the cache."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _is_count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, Integral) and int(value) >= 1)


def _parse_documents(documents: Any) -> list[dict[str, Any]]:
    """Convert documents to dicts such as ``{"id": 0, "text": "Wings lift."}``, some of which have a title and a score.

    Raises:
        ConfigError: ``documents`` is not a list, or a document has no text or a title that is not a text.
        ValueError: two documents have the same id.
    """
    if is_frame(documents):
        if QID in documents.columns and documents[QID].nunique() > 1:
            raise _argument_error("documents", "documents is a DataFrame of several queries; use rank_frame")
        documents = [drop_missing_values(row) for row in read_frame_rows(documents, (TEXT,))]
    if isinstance(documents, str):
        raise TypeError("documents is one text; pass a list of texts")
    if not isinstance(documents, Sequence):
        fix = "pass a list of texts or of {'id', 'text'}, or a DataFrame of pandas"
        raise _argument_error("documents", f"documents is {_describe_type(documents)}; {fix}")
    parsed = [_parse_document(index, document) for index, document in enumerate(documents)]
    indices: dict[str, int] = {}
    for index, document in enumerate(parsed):
        doc_id = str(document["id"])
        first_index = indices.setdefault(doc_id, index)
        if first_index != index:
            raise ValueError(
                f"documents {first_index} and {index} have the same id {doc_id!r}; give each document its own id (a "
                "document without an id gets its index as id)"
            )
    return parsed


def _parse_document(index: int, document: Any) -> dict[str, Any]:
    """Convert a document to a dict, as `_parse_documents` does. ``index`` is its id if it has none."""
    if isinstance(document, str):
        return {"id": index, TEXT: document}
    text = document.get(TEXT) if isinstance(document, Mapping) else None
    if not isinstance(text, str):
        raise _argument_error(
            f"documents[{index}].text", f"documents[{index}] has no text; pass a text or {{'id', 'text'}}"
        )
    title = document.get("title") or ""
    if not isinstance(title, str):
        reason = f"the title of documents[{index}] is {_describe_type(title)}; pass a text"
        raise _argument_error(f"documents[{index}].title", reason)
    doc_id = next((document[name] for name in ID_FIELDS if name in document), index)
    return {"id": doc_id, TEXT: text, "title": title, "score": document.get("score")}


def _find_query_text(query_id: Any, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return the text of a query. Check that all its rows have this text, and that no document occurs twice.

    Args:
        query_id: the query's ``qid``.
        rows: the query's rows with their numbers in the DataFrame, such as ``(7, {"docno": "a", "query": "wings"})``.
    """
    queries = {row[QUERY] for _number, row in rows}
    if len(queries) > 1:
        raise _argument_error(
            "frame", f"the DataFrame has {len(queries)} different texts of query {query_id}; keep one text"
        )
    doc_ids: set[Any] = set()
    for _number, row in rows:
        if row[DOCNO] in doc_ids:
            reason = f"the DataFrame has document {row[DOCNO]} twice for query {query_id}; remove one"
            raise _argument_error("frame", reason)
        doc_ids.add(row[DOCNO])
    return str(queries.pop())


def _make_document(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a DataFrame's row. Its id is the number of the row."""
    columns = {name: row[name] for name in (TEXT, "title", "score") if name in row}
    return {"id": number, **columns}


def _make_scores_decrease(texts: Sequence[RankedText]) -> list[float]:
    """Return scores that never increase. A missing score, or one above its predecessor, is replaced by a lower one.

    The scores 2.5, None and 3.0 become 2.5, 1.5 and 0.5.
    """
    scores: list[float] = []
    for text in texts:
        previous = scores[-1] if scores else None
        if text.score is not None and (previous is None or text.score <= previous):
            scores.append(text.score)
        elif previous is None:
            scores.append(0.0)
        else:
            scores.append(previous - UNSCORED_GAP)
    return scores


def _describe_type(value: object) -> str:
    """Return the end of the sentence "the value is ...", such as "of the type int"."""
    return "None" if value is None else f"of the type {name_type(value)}"


def _argument_error(argument: str, reason: str) -> ConfigError:
    return ConfigError(reason, setting=argument, source="argument")


def _make_ranked_text(candidate: Candidate, doc_id: Any) -> RankedText:
    probability = last_probability(candidate)
    is_scored = probability is not None
    return RankedText(
        doc_id,
        score=candidate.score if is_scored else None,
        probability=probability,
        rank=candidate.rank,
        text=candidate.text or "",
        truncated=any(entry.cut for entry in candidate.trace),
    )
