"""Count the documents of an index that have stored vectors, in a sample if the index is large; nothing is encoded.

Written as generators of steps, so that the synchronous and the asynchronous client send the same requests.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from osrerank.options.rerank import Rerank
from osrerank.response import candidates_of
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.search.step import Computation
from osrerank.service import RerankService, no_vectors
from osrerank.types import Candidate, LongText
from osrerank.types.failed import Failed
from osrerank.types.values import is_blank
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.index import MODEL, side_index

if TYPE_CHECKING:
    from osrerank.search.searcher import Searcher

SAMPLE, SLICES = 1_000, 10
"""The most documents examined, and the number of slices of an embedded index from which they are drawn."""
AT_LEAST = 0.95
"""The share of an index's documents that must have vectors before the index counts as warm."""
EVERY: Mapping[str, Any] = {"match_all": {}}
AT_RANDOM = {"function_score": {"query": EVERY, "random_score": {"seed": 1, "field": "_seq_no"}}}

Looking = Generator[SideRequest | Computation, Any, Any]


class ModelText(NamedTuple):
    """A document's text as the model reads it, and the length of the whole text in characters."""

    text: str | LongText
    characters: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of an index's documents have vectors.

    Attributes:
        index: its name, an alias or a pattern.
        documents: the number of its documents.
        looked_at: the number of documents examined: all, or a sample.
        known: the number of examined documents that have vectors.
        lacking: the number of examined documents that have none; documents without text are in neither number.
        texts: the distinct texts of the documents that lack vectors.
        at_most: the number of vectors in the side indices, an upper bound for a sample; None without side indices.
    """

    index: str
    documents: int
    looked_at: int
    known: int
    lacking: int
    texts: Sequence[ModelText] = ()
    at_most: int | None = None

    @property
    def is_sample(self) -> bool:
        """Whether only some of the documents were examined."""
        return self.looked_at < self.documents

    @property
    def with_text(self) -> int:
        """The number of documents with text, estimated if only a sample was examined."""
        with_text = self.known + self.lacking
        return round(self.documents * with_text / self.looked_at) if self.is_sample else with_text

    @property
    def share(self) -> float:
        """The share of the documents with text that have vectors, in [0, 1]; 1 if no document has text."""
        with_text = self.known + self.lacking
        share = self.known / with_text if with_text else 1.0
        return share if self.at_most is None else min(share, self.at_most / max(1, self.with_text))

    @property
    def lacks(self) -> int:
        """The number of documents that lack vectors, estimated if only a sample was examined."""
        return round(self.with_text * (1 - self.share))

    def __str__(self) -> str:
        of = f"{self.with_text:,} documents"
        if not self.lacks:
            return f"all {f'of a sample of {self.looked_at:,} of ' if self.is_sample else ''}{of} have vectors"
        lack = f"{self.lacks:,} of {of} lack vectors"
        return f"about {lack}, by a sample of {self.looked_at:,}" if self.is_sample else lack


def coverage(searcher: "Searcher", index: str, most: int = SAMPLE) -> Looking:
    """Yield the steps that count an index's documents with and without vectors, and return its `Coverage`.

    Args:
        searcher: the searcher of the client that performs the steps.
        index: a name, an alias or a pattern.
        most: the most documents to examine.

    Raises:
        ConfigError: the model has no vectors, the first stage scores sentences, or the indices have different models.
        ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        Failed: there is no such index, or it cannot be read.
    """
    defaults = searcher.defaults.of(index)
    fields = yield from searcher.fields_of(defaults, index)
    documents = int((yield SideRequest("GET", path_of(index, "_count")))["count"])
    hits = yield from _sampled(index, fields, min(documents, most), documents, is_embedded=searcher.is_embedded)
    options, at_most = fields.written_into(defaults), None
    with searcher.serving(index) as service:
        texts, known = yield Computation(partial(_examined, service, options, fields, hits))
        vectors = service.vectors_of(options)
        if searcher.vectors is not None:
            lacking = {key: name for key, name, _ in texts if key not in known}
            found = yield from searcher.vectors.fetch(lacking, lambda: math.inf)
            known |= yield Computation(partial(_valid, vectors, found))
            if len(hits) < documents:
                at_most = yield from _counted(searcher, vectors, {hit["_index"] for hit in hits})
    left = [(key, text) for key, _, text in texts if key not in known]
    different = list(dict(left).values())
    return Coverage(index, documents, len(hits), len(texts) - len(left), len(left), different, at_most)


def is_warm(searcher: "Searcher", index: str, at_least: float) -> Looking:
    """Yield the steps that check whether an index's model is loaded and its documents have vectors; return the answer.

    Args:
        searcher: the searcher of the client that performs the steps.
        index: a name, an alias or a pattern.
        at_least: the share of the documents that must have vectors, in [0, 1].
    """
    options = searcher.defaults.of(index)
    with searcher.serving(index) as service:
        models = service.models_of(options)[0], service.first
    if any(model.is_encoder is None for model in models):
        return False  # a model is not loaded
    if not models[0].is_encoder or options.is_first_pass:
        return True
    found: Coverage = yield from coverage(searcher, index)
    return found.share >= at_least


def texts_of(
    service: RerankService, options: Rerank, fields: SearchFields, hits: Sequence[Mapping[str, Any]]
) -> list[tuple[Candidate, str | LongText | None]]:
    """Return each document as a candidate, with the text that the model reads of it; None for one without text.

    Args:
        service: holds the model.
        options: the options of the index's searches.
        fields: the fields that are read.
        hits: the documents.
    """
    own, text_of = fields.by_index(options.fields), service.vector_stage(options).text_of
    candidates = candidates_of(hits, fields.read, options.separator, own)
    return [(candidate, None if candidate.text is None else text_of(candidate)) for candidate in candidates]


def body_of(fields: SearchFields, size: int, query: Mapping[str, Any] = EVERY) -> dict[str, Any]:
    """Return the body of a search that fetches, with each document, the fields that the model reads."""
    fetched = [name for name in fields.read if name in fields.fetched]
    body = {"size": size, "query": dict(query), "_source": list(fields.read)}
    return body | ({"fields": fetched} if fetched else {})


def _sampled(index: str, fields: SearchFields, count: int, documents: int, *, is_embedded: bool) -> Looking:
    """Yield the requests for all documents, or for a sample of ``count`` if there are more; return the hits."""
    path, is_whole = path_of(index, "_search"), count == documents
    if not is_embedded:
        body = body_of(fields, count, EVERY if is_whole else AT_RANDOM)
        return (yield SideRequest("POST", path, body, {"search_pipeline": "_none"}))["hits"]["hits"]
    if is_whole:
        return (yield SideRequest("POST", path, body_of(fields, count)))["hits"]["hits"]
    newest = yield SideRequest("POST", path, {"size": 1, "sort": [{"_doc": "desc"}], "_source": False})
    last = newest["hits"]["hits"][0]["sort"][0]
    hits: dict[tuple[str, str], Any] = {}
    for number in range(SLICES):  # the embedded engine has no random order
        body = {**body_of(fields, count // SLICES), "sort": ["_doc"], "search_after": [last * number // SLICES - 1]}
        part = (yield SideRequest("POST", path, body))["hits"]["hits"]
        hits |= {(hit["_index"], hit["_id"]): hit for hit in part}
    return list(hits.values())


def _examined(
    service: RerankService, options: Rerank, fields: SearchFields, hits: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[bytes, str, ModelText]], set[bytes]]:
    """Return each document's record key, index and text, and the keys of the records that this machine has."""
    vectors = service.vectors_of(options)
    if vectors is None:
        raise no_vectors(service.model.model)
    readable = [
        (hit["_index"], ModelText(text, len(candidate.text or "")))
        for hit, (candidate, text) in zip(hits, texts_of(service, options, fields, hits), strict=True)
        if text is not None and not is_blank(candidate.text)
    ]
    keys = vectors.keys_of([text.text for _, text in readable])
    return [(key, index, text) for key, (index, text) in zip(keys, readable, strict=True)], set(vectors.known(keys))


def _valid(vectors: DocumentVectors | None, found: Mapping[bytes, bytes]) -> set[bytes]:
    """Store the valid records that came from side indices on this machine, and return their keys."""
    return set(vectors.received(found)) if vectors else set()


def _counted(searcher: "Searcher", vectors: DocumentVectors | None, names: set[str]) -> Looking:
    """Yield the request that counts the model's records in side indices; return the count, None if none can be read."""
    path, params = path_of([side_index(name) for name in sorted(names)], "_count"), {"ignore_unavailable": "true"}
    if vectors is None or searcher.is_embedded:
        return None
    try:
        answer = yield SideRequest("POST", path, {"query": {"term": {MODEL: vectors.label}}}, params)
    except Failed:  # the user may not read it
        return None
    return int(answer["count"]) if answer["_shards"]["total"] else None
