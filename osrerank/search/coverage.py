"""Count the documents of an index that have vectors, in a sample of the index; nothing is encoded.

Written as generators of steps, so that the synchronous and the asynchronous client send the same requests.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opensearchpy import TransportError

from osrerank.options.rerank import Rerank
from osrerank.response import parse
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.search.step import Scoring
from osrerank.service import RerankService, no_vectors
from osrerank.types import Candidate, LongText, Query
from osrerank.types.values import is_blank
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.index import MODEL, side_index
from osrerank.vectors.records import FetchedVectors

if TYPE_CHECKING:
    from osrerank.search.searcher import Searcher

SAMPLE, SLICES = 1_000, 10
"""How many documents are examined, and from how many parts of an index of the embedded engine they come."""
AT_LEAST = 0.95
"""Share of its documents that must have vectors for an index to be called warm."""
EVERY: Mapping[str, Any] = {"match_all": {}}
AT_RANDOM = {"function_score": {"query": EVERY, "random_score": {"seed": 1, "field": "_seq_no"}}}

Looking = Generator[SideRequest | Scoring, Any, Any]


class Text(NamedTuple):
    """A document's text as the model reads it, and how long it is in characters."""

    text: str | LongText
    characters: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of an index's documents have vectors.

    Attributes:
        index: its name, an alias or a pattern.
        documents: how many it has.
        looked_at: how many of the documents were examined: all, or a sample.
        known: how many of the examined documents have vectors.
        lacking: how many of them have none; documents without text count as neither.
        texts: the distinct texts of the lacking documents.
        at_most: of a sample, how many vectors the side indices have in all; None without side indices.
    """

    index: str
    documents: int
    looked_at: int
    known: int
    lacking: int
    texts: Sequence[Text] = ()
    at_most: int | None = None

    @property
    def is_sample(self) -> bool:
        """Whether only some of the documents were examined."""
        return self.looked_at < self.documents

    @property
    def with_text(self) -> int:
        """How many documents have text; estimated from a sample."""
        there = self.known + self.lacking
        return round(self.documents * there / self.looked_at) if self.is_sample else there

    @property
    def share(self) -> float:
        """Share of the documents with text that have vectors; 1 if there are none."""
        there = self.known + self.lacking
        share = self.known / there if there else 1.0
        return share if self.at_most is None else min(share, self.at_most / max(1, self.with_text))

    @property
    def lacks(self) -> int:
        """How many documents lack vectors; estimated from a sample."""
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
        searcher: of the client that performs the steps.
        index: a name, an alias or a pattern.
        most: how many documents to examine.

    Raises:
        ConfigError: the model has no vectors, the first stage scores sentences, or the indices have different models.
        ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        TransportError: there is no such index, or it cannot be read.
    """
    defaults = searcher.defaults.of(index)
    fields = yield from searcher.fields_of(defaults, index)
    documents = int((yield SideRequest("GET", path_of(index, "_count")))["count"])
    hits = yield from _sampled(index, fields, min(documents, most), documents, is_embedded=searcher.is_embedded)
    options, at_most = fields.written_into(defaults), None
    with searcher.serving(index) as service:
        texts, known = yield Scoring(partial(_looked_at, service, options, fields, hits))
        vectors = service.vectors_of(options)
        if searcher.vectors is not None:
            lacking = {key: name for key, name, _ in texts if key not in known}
            found = yield from searcher.vectors.brought(lacking, lambda: math.inf)
            known |= yield Scoring(partial(_valid, vectors, found))
            if len(hits) < documents:
                at_most = yield from _counted(searcher, vectors, {hit["_index"] for hit in hits})
    left = [(key, text) for key, _, text in texts if key not in known]
    different = list(dict(left).values())
    return Coverage(index, documents, len(hits), len(texts) - len(left), len(left), different, at_most)


def is_warm(searcher: "Searcher", index: str, at_least: float) -> Looking:
    """Yield the steps that find out whether searches of an index are fast from the first one on; return the answer."""
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
    service: RerankService, options: Rerank, fields: Fields, hits: Sequence[Mapping[str, Any]]
) -> list[tuple[Candidate, str | LongText | None]]:
    """Return documents as candidates, each with its text as the model reads it; None without text.

    Args:
        service: has the model.
        options: of the index's searches.
        fields: which are read.
        hits: the documents.
    """
    own, text_of = fields.by_index(options.fields), service.text_of(options)
    ranking = parse(hits, Query("build", "build"), fields.read, options.separator, own)
    return [(one, None if one.text is None else text_of(one)) for one in ranking.candidates]


def body_of(fields: Fields, size: int, query: Mapping[str, Any] = EVERY) -> dict[str, Any]:
    """Return the body of a search for documents with the fields that the model reads."""
    fetched = [name for name in fields.read if name in fields.fetched]
    body = {"size": size, "query": dict(query), "_source": list(fields.read)}
    return body | ({"fields": fetched} if fetched else {})


def _sampled(index: str, fields: Fields, count: int, documents: int, *, is_embedded: bool) -> Looking:
    """Yield the requests for all documents, or for a sample if there are more than ``count``; return the hits."""
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
        some = (yield SideRequest("POST", path, body))["hits"]["hits"]
        hits |= {(hit["_index"], hit["_id"]): hit for hit in some}
    return list(hits.values())


def _looked_at(
    service: RerankService, options: Rerank, fields: Fields, hits: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[bytes, str, Text]], set[bytes]]:
    """Return each document's record key, index and text; and the keys whose records this machine has."""
    vectors = service.vectors_of(options)
    if vectors is None:
        raise no_vectors(service.model.model)
    readable = [
        (hit["_index"], Text(text, len(one.text or "")))
        for hit, (one, text) in zip(hits, texts_of(service, options, fields, hits), strict=True)
        if text is not None and not is_blank(one.text)
    ]
    keys = vectors.keys_of([text.text for _, text in readable])
    return [(key, *one) for key, one in zip(keys, readable, strict=True)], vectors.known(keys)


def _valid(vectors: DocumentVectors | None, found: Mapping[bytes, bytes]) -> set[bytes]:
    """Return the keys of the valid records among those from side indices, and store these on this machine."""
    return vectors.with_fetched(FetchedVectors(found)).known(list(found)) if vectors else set()


def _counted(searcher: "Searcher", vectors: DocumentVectors | None, names: set[str]) -> Looking:
    """Yield the request that counts the model's records in side indices, and return the count; None without any."""
    path, params = path_of([side_index(name) for name in sorted(names)], "_count"), {"ignore_unavailable": "true"}
    if vectors is None or searcher.is_embedded:
        return None
    try:
        answer = yield SideRequest("POST", path, {"query": {"term": {MODEL: vectors.label}}}, params)
    except TransportError:  # the user may not read it
        return None
    return int(answer["count"]) if answer["_shards"]["total"] else None
