"""Count the documents of an index that have stored vectors, without encoding any.

A vector build saves its progress: the sequence numbers of the writes that it has encoded, for each shard. Only
documents with other sequence numbers, the *unbuilt* documents, are examined, and the count is exact. If there are too
many of them, or if no progress is saved, a sample is examined, and the count is an estimate.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from osrerank.errors import ConfigError, FormatError
from osrerank.metrics import VECTORS_DOCUMENTS, VECTORS_LACKING
from osrerank.options.rerank import Rerank
from osrerank.response import make_candidates
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.retrieval.sequence import Heads, build_sequence_query, build_shard_request, read_heads
from osrerank.search.step import Computation
from osrerank.service import RerankService, no_vectors_error
from osrerank.stages.html import lacks_text
from osrerank.types import Candidate, LongText
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.build_progress import BuildProgress, index_identity
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.file import BUILD_PREFIX, FileStore
from osrerank.vectors.index import RecordRequests, side_index

if TYPE_CHECKING:
    from osrerank.search.searcher import Searcher

SAMPLE_SIZE = 1_000
"""The default maximum number of examined documents."""
SLICES = 10
"""The number of slices of consecutive documents in a sample of an embedded index."""
WARM_SHARE = 0.95
"""The default minimum fraction of documents with vectors in an index that is warm."""
MATCH_ALL: Mapping[str, Any] = {"match_all": {}}
MIN_PER_SHARD = 100
"""The lowest limit on the unbuilt documents examined in a shard, however many shards share the sample."""

Steps = Generator[SideRequest | Computation, Any, Any]


class ModelText(NamedTuple):
    """A text to encode.

    Attributes:
        text: the model's input.
        characters: the length of the document's whole text, in characters.
    """

    text: str | LongText
    characters: int


class _IndexedText(NamedTuple):
    """A document's text with the key of its vector and its index."""

    key: bytes
    index_name: str
    model_text: ModelText


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of an index's documents have vectors. A document without text counts as a document with vectors.

    Attributes:
        index: the name of the index, an alias or a pattern.
        documents: the number of documents in the index.
        built: the number of documents that vector builds have encoded, according to their saved progress.
        examined: the number of unbuilt documents that were examined: all of them, or a sample.
        examined_lacking: the number of examined documents without vectors.
        texts: the distinct texts of the examined documents without vectors.
    """

    index: str
    documents: int
    built: int
    examined: int
    examined_lacking: int
    texts: Sequence[ModelText] = ()

    @property
    def is_sample(self) -> bool:
        """Whether the count is an estimate, because only a sample of the unbuilt documents was examined."""
        return self.built + self.examined < self.documents

    @property
    def lacks(self) -> int:
        """The number of documents without vectors. It is an estimate if only a sample was examined."""
        if not self.is_sample:
            return self.examined_lacking
        n_unbuilt = self.documents - self.built
        return math.ceil(n_unbuilt * self.examined_lacking / max(1, self.examined))

    @property
    def share(self) -> float:
        """The fraction of documents with vectors, in [0, 1]. It is 1 for an empty index."""
        return 1 - self.lacks / self.documents if self.documents else 1.0

    def __str__(self) -> str:
        documents = f"{self.documents:,} documents"
        if self.lacks:
            lack = f"{self.lacks:,} of {documents} lack vectors"
            return f"about {lack}, by a sample of {self.examined:,}" if self.is_sample else lack
        if self.is_sample:
            return f"none of a sample of {self.examined:,} of {documents} lacks vectors"
        return f"none of {documents} lacks vectors"


def measure_coverage(searcher: "Searcher", index: str, max_documents: int = SAMPLE_SIZE) -> Steps:
    """Count an index's documents with and without vectors. Return the counts as a `Coverage`.

    Args:
        searcher: the searcher of the client that performs the steps.
        index: a name, an alias or a pattern.
        max_documents: about the maximum number of documents to examine.

    Raises:
        ConfigError: the model has no vectors, the first stage scores sentences, or the indices have different models.
        ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        EngineError: there is no such index, or it cannot be read.
    """
    defaults = searcher.defaults.options_for(index)
    fields = yield from searcher.find_fields(defaults, index)
    engine = yield from searcher.engine.find()
    n_documents = yield from count_documents(index, engine)
    options = fields.update_options(defaults)  # the defaults with the fields found
    with searcher.service_for(index) as service:
        vectors = service.load_vectors(options)
        if vectors is None:
            raise no_vectors_error(service.model.model)
        unbuilt = yield from _find_unbuilt_hits(searcher, vectors, index, defaults, fields, max_documents)
        if unbuilt is None:
            hits = yield from _sample_hits(index, fields, min(n_documents, max_documents), n_documents, engine)
            n_built = 0
        else:
            hits, n_unbuilt = unbuilt
            n_built = max(0, n_documents - n_unbuilt)
        texts, stored_keys = yield Computation(partial(_list_texts, service, vectors, options, fields, hits))
        side_indices = searcher.vectors
        if side_indices is not None:
            index_by_key = {text.key: text.index_name for text in texts if text.key not in stored_keys}
            records = yield from side_indices.fetch(index_by_key, remaining_s=lambda: math.inf)
            stored_keys |= (yield Computation(partial(vectors.parse_and_store, records))).keys()
    missing = [text for text in texts if text.key not in stored_keys]
    distinct_texts = list({text.key: text.model_text for text in missing}.values())  # equal texts have the same key
    coverage = Coverage(
        index,
        documents=n_documents,
        built=n_built,
        examined=len(hits),
        examined_lacking=len(missing),
        texts=distinct_texts,
    )
    VECTORS_DOCUMENTS.labels(index).set(n_documents)
    VECTORS_LACKING.labels(index).set(coverage.lacks)
    return coverage


def count_documents(index: str, engine: Engine, query: Mapping[str, Any] = MATCH_ALL) -> Steps:
    """Count the documents that a query finds, without the index's default search pipeline, which can hide documents.

    Unlike a search, ``_count`` cannot leave out the pipeline.
    """
    body = {"size": 0, "track_total_hits": True, "query": dict(query)}
    response = yield SideRequest("POST", build_path(index, "_search"), body, engine.no_pipeline)
    return int(response["hits"]["total"]["value"])


def describe_input(options: Rerank, fields: SearchFields) -> str:
    """Return a text that identifies which part of a document a model gets: the fields, the separator and the passages.

    It is part of the key under which a vector build saves its progress.
    """
    return repr((tuple(fields.model_fields), options.separator, options.passages))


def _find_unbuilt_hits(
    searcher: "Searcher",
    vectors: DocumentVectors,
    index: str,
    defaults: Rerank,
    fields: SearchFields,
    max_documents: int,
) -> Steps:
    """Find the documents that no build has encoded.

    Returns:
        the hits of about ``max_documents`` unbuilt documents, and the number of all unbuilt documents. None if the
        engine returns no sequence numbers, or if no build saved its progress.
    """
    try:
        # the last sequence numbers of each shard, by index
        heads: Heads = yield from read_heads(index, is_embedded=searcher.is_embedded)
    except (ConfigError, EngineError):
        return None
    progress_by_index: dict[str, BuildProgress | None] = {}
    for index_name, head_by_shard in heads.items():
        identity = index_identity(index_name, head_by_shard)
        key = vectors.records.compute_progress_key(identity, describe_input(defaults, fields))
        progress_by_index[index_name] = yield from _read_progress(searcher, vectors, index_name, key)
    if not any(progress_by_index.values()):
        return None
    ranges_by_shard = {}
    for index_name, head_by_shard in heads.items():
        progress = (progress_by_index[index_name] or BuildProgress()).with_shards(head_by_shard)
        for shard, head in head_by_shard.items():
            last_write = max(head.global_checkpoint, head.max_seq_no)  # some shard copies may lack it
            ranges = progress.list_unbuilt_ranges(shard, last_write)
            if ranges:
                ranges_by_shard[index_name, shard] = ranges
    sampled_hits: list[Mapping[str, Any]] = []
    engine = yield from searcher.engine.find()
    n_unbuilt = 0
    hits_per_shard = max(MIN_PER_SHARD, max_documents // max(1, len(ranges_by_shard)))
    for (index_name, shard), ranges in ranges_by_shard.items():
        query = build_sequence_query(ranges)
        if not searcher.is_embedded:  # the embedded engine has no random order
            query = shuffle_query(query)
        body = fetch_body(fields, hits_per_shard, query) | {"track_total_hits": True}
        response = yield build_shard_request(index_name, shard, body, engine=engine)
        sampled_hits += response["hits"]["hits"]
        n_unbuilt += int(response["hits"]["total"]["value"])
    return sampled_hits, n_unbuilt


def _read_progress(searcher: "Searcher", vectors: DocumentVectors, index: str, key: bytes) -> Steps:
    """Return the valid progress of an index's vector builds, which its side index or the vector file saves, or None."""
    content = b""
    store = vectors.store
    if searcher.vectors is not None:
        requests = RecordRequests((yield from searcher.engine.find()))
        path, params, body = requests.request_build_states([side_index(index)], [key])
        try:
            content, _ = requests.parse_build_state((yield SideRequest("POST", path, body, params)))
        except EngineError:  # the user is not allowed to read the side index
            return None
    elif isinstance(store, FileStore):
        content = store.read([BUILD_PREFIX + key]).get(BUILD_PREFIX + key, b"")
    try:
        progress = BuildProgress.from_bytes(content) if content else None
    except FormatError:
        return None
    if progress is None:
        return None
    existing_files = store.files() if progress.files and isinstance(store, FileStore) else ()
    return progress if progress.has_all_files(existing_files) else None


def is_warm(searcher: "Searcher", index: str, at_least: float) -> Steps:
    """Return whether an index's model is loaded and enough of its documents have vectors.

    Args:
        searcher: the searcher of the client that performs the steps.
        index: a name, an alias or a pattern.
        at_least: the fraction of the documents that must have vectors, in [0, 1].
    """
    options = searcher.defaults.options_for(index)
    with searcher.service_for(index) as service:
        first_model = service.select_models(options)[0]
        scoring_model = service.scoring_model
    if first_model.is_encoder is None or scoring_model.is_encoder is None:
        return False  # a model is not loaded
    if not first_model.is_encoder or options.is_first_pass:
        return True  # searches need no vectors
    coverage: Coverage = yield from measure_coverage(searcher, index)
    return coverage.share >= at_least


def model_texts(
    service: RerankService, options: Rerank, fields: SearchFields, hits: Sequence[Mapping[str, Any]]
) -> list[tuple[Candidate, str | LongText | None]]:
    """Return each document as a candidate, together with the text that a model gets (None if it has no text).

    Args:
        service: the service that holds the model.
        options: the options of the index's searches.
        fields: the fields whose text the model gets.
        hits: the documents, as hits of a search.
    """
    stage = service.load_vector_stage(options)
    fields_by_index = fields.model_fields_by_index(options.fields)
    candidates = make_candidates(hits, fields.model_fields, options.separator, fields_by_index)
    return [(candidate, None if candidate.text is None else stage.prepare_text(candidate)) for candidate in candidates]


def fetch_body(fields: SearchFields, size: int, query: Mapping[str, Any] = MATCH_ALL) -> dict[str, Any]:
    """Return the body of a search that fetches the fields whose text the model gets."""
    not_in_source = [name for name in fields.model_fields if name in fields.traits.absent_from_source]
    body = {"size": size, "query": dict(query), "_source": list(fields.model_fields)}
    if not_in_source:
        body["fields"] = not_in_source
    return body


def shuffle_query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query that finds the same documents in a random but repeatable order."""
    return {
        "function_score": {"query": query, "random_score": {"seed": 1, "field": "_seq_no"}, "boost_mode": "replace"}
    }


def _sample_hits(index: str, fields: SearchFields, size: int, n_documents: int, engine: Engine) -> Steps:
    """Return the hits of a sample of ``size`` documents of an index that has ``n_documents``."""
    path = build_path(index, "_search")
    is_whole_index = size == n_documents
    if not engine.is_embedded:
        body = fetch_body(fields, size, MATCH_ALL if is_whole_index else shuffle_query(MATCH_ALL))
        return (yield SideRequest("POST", path, body, engine.no_pipeline))["hits"]["hits"]
    if is_whole_index:
        return (yield SideRequest("POST", path, fetch_body(fields, size)))["hits"]["hits"]
    # The embedded engine has no random order, so the sample is slices of consecutive documents at even distances.
    last_document = yield SideRequest("POST", path, {"size": 1, "sort": [{"_doc": "desc"}], "_source": False})
    last_position = last_document["hits"]["hits"][0]["sort"][0]
    hits: dict[tuple[str, str], Any] = {}
    for slice_index in range(SLICES):
        position_before = last_position * slice_index // SLICES - 1
        body = {**fetch_body(fields, size // SLICES), "sort": ["_doc"], "search_after": [position_before]}
        slice_hits = (yield SideRequest("POST", path, body))["hits"]["hits"]
        hits |= {(hit["_index"], hit["_id"]): hit for hit in slice_hits}
    return list(hits.values())


def _list_texts(
    service: RerankService,
    vectors: DocumentVectors,
    options: Rerank,
    fields: SearchFields,
    hits: Sequence[Mapping[str, Any]],
) -> tuple[list[_IndexedText], set[bytes]]:
    """Return the texts of the documents that have text, and the keys of records stored on this machine."""
    texts = [
        (hit["_index"], ModelText(text, len(candidate.text or "")))
        for hit, (candidate, text) in zip(hits, model_texts(service, options, fields, hits), strict=True)
        if text is not None and not lacks_text(candidate)
    ]
    keys = vectors.records.compute_keys([model_text.text for _, model_text in texts])
    indexed_texts = [_IndexedText(key, index, text) for key, (index, text) in zip(keys, texts, strict=True)]
    return indexed_texts, set(vectors.records.read_stored(keys))
