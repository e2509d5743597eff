"""Rerank texts without a search engine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self, Unpack

from osrerank._threads import DaemonThreads
from osrerank.errors import ConfigError
from osrerank.formats.frames import FIRST_RANK, by_query, is_frame, plain, rows_of, with_scores
from osrerank.formats.tables import DOCNO, QID, QUERY, TEXT
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.pipeline import applied
from osrerank.search.ranking import NOT_FOR_TEXTS, ranking_of, refuse_unused, reranked
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.thresholds.cut import at_least, probability_of
from osrerank.tracing.spans import carried
from osrerank.types import Candidate, Encoder, Scorer

DEFAULTS = Rerank(blend="replace", depth=10_000)
"""By default, all texts are ordered by the model alone, because they may come with scores of any kind, or none."""
AT_ONCE = 8
"""How many queries are ranked at the same time, so that their pairs share batches."""

Document = str | Mapping[str, Any]
"""A text, or a mapping with ``text`` and perhaps ``id``, ``doc_id`` or ``docno``, ``title`` and ``score``."""
IDS = ("id", "doc_id", "docno")
UNSCORED = 1.0
"""How far the score of a text that was not scored lies below that of the text above it, in a DataFrame."""


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text in the new order, with its score.

    Attributes:
        doc_id: the document's ``id``, ``doc_id`` or ``docno`` as given; if it has none, its index in ``documents``,
            from 0.
        score: the last stage's score, a logit if it is the only stage; None if the text was not scored.
        probability: the model's probability of relevance, in [0, 1]; None if the text was not scored.
        rank: rank in the new order, from 1.
        text: the text that the model read: title and text.
        truncated: whether the model read less than the whole text.
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
    """Ranks texts by a model, which is loaded on first use; safe to use from many threads.

    ```python
    from osrerank import Reranker

    with Reranker() as reranker:
        ranked = reranker.rank("what lowers blood pressure", ["Wings lift.", "Aspirin lowers blood pressure."])
    assert ranked[0].doc_id == 1
    ```

    Args:
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model; the settings' when None.
        vector_model: likewise, the bi-encoder of the stage ``vectors`` if ``model`` is a cross-encoder.
        duo_model: likewise, the model that compares pairs, for ``mono-duo`` and ``vectors-duo``.
        backend: ``auto``, ``onnx``, ``torch``, ``workers`` or ``http``; the settings' when None.
        redis_url: Redis for the score cache; the settings' when None.
        scorer: a scorer or an encoder of your own, used instead of a model; the caller closes it.
        encoder: likewise, instead of ``vector_model``.
        options: options of ``osrerank.Rerank``, such as ``deadline_ms``, ``passages`` and ``min_score``.

    Raises:
        ConfigError: an option or setting cannot be used, or an option has no effect without a search.
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
        refuse_unused(options, NOT_FOR_TEXTS)
        self._options = Rerank.of(options, DEFAULTS) or DEFAULTS
        models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
        settings = Settings.load(**models, backend=backend, redis_url=redis_url)
        self._service = RerankService(settings, scorer, encoder=encoder)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._service.settings.model

    def rank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Return the documents, best first; those that were not scored come last, in their old order.

        Args:
            query: the query's text.
            documents: the texts to rank; or a DataFrame with ``text`` and perhaps ``docno``, ``title`` and ``score``.
            top_k: how many to return; None for all.

        Raises:
            ConfigError: the query or a document has no text, ``documents`` is no list, or ``top_k`` is below 1.
            ValueError: the query's text is blank, or two documents have the same id.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k is {top_k}; it must be 1 or more, or None", setting="top_k", source="argument")
        texts = _documents(documents)
        if not isinstance(query, str):
            raise _refused("query", f"the query is {_kind(query)}; give a text")
        if not texts:
            return []
        ranking = reranked(self._service, self._options, ranking_of(query, texts, self._options.separator))
        given = {str(text["id"]): text["id"] for text in texts}
        kept: Sequence[Candidate] = ranking.candidates
        if applied(ranking.reports) and self._options.min_score is not None:
            kept, _ = at_least(kept, self._options.min_score, ranking.reports)
        return [_ranked(candidate, given[candidate.doc_id]) for candidate in kept[:top_k]]

    def rank_frame(self, frame: Any, *, top_k: int | None = None) -> Any:
        """Return a DataFrame of pandas with each query's documents in the new order.

        The frame has PyTerrier's columns: ``qid``, ``query``, ``docno`` and ``text``, perhaps ``title``, which is read
        too, and the first pass's ``score``. In the new frame, ``score`` is the model's, ``rank`` counts from 0, and all
        other columns stay. A text that was not scored gets a score below the text above it.

        Args:
            frame: the candidates of one or more queries.
            top_k: how many rows of each query to return; None for all.

        Raises:
            ConfigError: a column or value is missing, a query has a document or two texts twice; or as `rank`.
            ScoringError: as `rank`.
        """
        if not is_frame(frame):
            raise _refused("frame", f"the frame is {_kind(frame)}; give a DataFrame of pandas")
        groups = by_query(frame)
        queries = [_query_of(qid, rows) for qid, rows in groups.items()]
        texts = [[_of_row(*one) for one in rows] for rows in groups.values()]
        order: list[int] = []
        scores: list[float] = []
        ranks: list[int] = []
        for ranked in self.rank_many(queries, texts, top_k=top_k):
            order += [one.doc_id for one in ranked]
            scores += _falling(ranked)
            ranks += range(FIRST_RANK, FIRST_RANK + len(ranked))
        return with_scores(frame, order, scores, ranks)

    def rank_many(
        self, queries: Sequence[str], documents: Sequence[Sequence[Document]], *, top_k: int | None = None
    ) -> list[list[RankedText]]:
        """Rank each query's documents as `rank` does, several queries at a time.

        Raises:
            ValueError: the numbers of queries and of lists of documents differ; or as `rank`.
        """
        if len(queries) != len(documents):
            raise ValueError(f"there are {len(queries)} queries and {len(documents)} lists of documents")
        threads, rank = DaemonThreads(AT_ONCE, "osrerank-rank"), partial(self.rank, top_k=top_k)
        try:
            pairs = zip(queries, documents, strict=True)
            futures = [threads.submit(carried(rank), query, texts) for query, texts in pairs]
            return [future.result() for future in futures]
        finally:
            threads.close()

    async def arank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Rank documents as `rank` does, in a thread, so that the event loop stays free."""
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


def _documents(documents: Any) -> list[dict[str, Any]]:
    """Return documents as dictionaries with ``id``, ``text`` and what else they have.

    Raises:
        ConfigError: they are no list, or one has no text, or a title that is none.
        ValueError: two have the same id.
    """
    if is_frame(documents):
        if QID in documents.columns and documents[QID].nunique() > 1:
            raise _refused("documents", "documents is a DataFrame of several queries; use rank_frame")
        documents = [plain(row) for row in rows_of(documents, (TEXT,))]
    if isinstance(documents, str):
        raise TypeError("documents is one text; give a list of them")
    if not isinstance(documents, Sequence):
        raise _refused("documents", f"documents is {_kind(documents)}; give a list of texts or of {{'id', 'text'}}")
    texts = [_document(index, document) for index, document in enumerate(documents)]
    first: dict[str, int] = {}
    for index, text in enumerate(texts):
        if (before := first.setdefault(str(text["id"]), index)) != index:
            said = f"documents {before} and {index} have the same id {str(text['id'])!r}"
            raise ValueError(f"{said}; give each its own (a document without one has its index)")
    return texts


def _document(index: int, document: Any) -> dict[str, Any]:
    if isinstance(document, str):
        return {"id": index, TEXT: document}
    text = document.get(TEXT) if isinstance(document, Mapping) else None
    if not isinstance(text, str):
        raise _refused(f"documents[{index}].text", f"document {index} has no text")
    if not isinstance(title := document.get("title") or "", str):
        raise _refused(f"documents[{index}].title", f"the title of document {index} is {_kind(title)}; give a text")
    doc_id = next((document[name] for name in IDS if name in document), index)
    return {"id": doc_id, TEXT: text, "title": title, "score": document.get("score")}


def _query_of(query_id: Any, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return the text of a query of a DataFrame, whose rows all have it and no document twice."""
    queries = {row[QUERY] for _number, row in rows}
    if len(queries) > 1:
        raise _refused("frame", f"the DataFrame has {len(queries)} texts of query {query_id}; give it one")
    seen: set[Any] = set()
    for _number, row in rows:
        if row[DOCNO] in seen:
            raise _refused("frame", f"the DataFrame has document {row[DOCNO]} twice for query {query_id}; remove one")
        seen.add(row[DOCNO])
    return str(rows[0][1][QUERY])


def _of_row(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: row[name] for name in (TEXT, "title", "score") if name in row}
    return {"id": number, **kept}


def _falling(ranked: Sequence[RankedText]) -> list[float]:
    """Return the texts' scores, lowered where a text was not scored or a stage before gave it a higher one."""
    scores: list[float] = []
    for one in ranked:
        above = scores[-1] if scores else None
        if one.score is not None and (above is None or one.score <= above):
            scores.append(one.score)
        else:
            scores.append(0.0 if above is None else above - UNSCORED)
    return scores


def _kind(value: object) -> str:
    return "None" if value is None else f"of the type {type(value).__name__}"


def _refused(setting: str, reason: str) -> ConfigError:
    return ConfigError(reason, setting=setting, source="argument")


def _ranked(candidate: Candidate, doc_id: Any) -> RankedText:
    probability = probability_of(candidate)
    score = None if probability is None else candidate.score
    truncated = any(entry.cut for entry in candidate.trace)
    return RankedText(doc_id, score, probability, candidate.rank, candidate.text or "", truncated)
