"""Documents' vectors in an index: made with the documents or afterwards, and counted.

A vector is made once for a text: where the digest beside it is that of the document's text today, the document is only
read. So a build that was interrupted goes on where it stopped, and one after changes makes what is lacking.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from osrerank._progress import shown
from osrerank.client import Client
from osrerank.errors import ConfigError, OsrerankError, VectorsError
from osrerank.options.rerank import Rerank
from osrerank.response import parse
from osrerank.retrieval.requests import is_embedded
from osrerank.retrieval.text_fields import USUAL
from osrerank.retrieval.vector_field import DEFAULT_FIELD, META, DataType, VectorField, refusal_of, takes_bytes
from osrerank.scoring.states.index import every_hit
from osrerank.scoring.states.store import StateStore
from osrerank.scoring.vectors.texts import TextVectors
from osrerank.states import SideStores, record_maker
from osrerank.types import Candidate, Query

BATCH = 64
"""Documents encoded, and written, at a time."""
PAGE = 2000
"""Documents that the embedded engine is asked for at a time."""
CONFLICT, GONE = 409, 404

Hit = Mapping[str, Any]


class VectorMaker:
    """Makes what a vector field holds of documents.

    Args:
        client: of the index.
        vectors: of its model.
        field: the index's.
        options: of its searches; they say how long documents are cut.
    """

    def __init__(self, client: Client, vectors: TextVectors, field: VectorField, options: Rerank) -> None:
        self.field = field
        self._vectors = vectors
        self._text_of = client.reranker.text_of(options)

    def digests(self, hits: Sequence[Hit]) -> list[str | None]:
        """Return the digest of each hit's text; None for those without one."""
        return [self.field.digest_of(one.text or "") if _has_text(one) else None for one in self._candidates(hits)]

    def values(self, hits: Sequence[Hit], states: StateStore | None = None) -> list[dict[str, Any] | None]:
        """Return the vector and the digest of each hit, by field; None for those without text.

        Args:
            hits: each with ``_id`` and ``_source``.
            states: a store that is to have the documents' states, besides the model's own.

        Raises:
            InferenceError: a text could not be encoded.
        """
        candidates = self._candidates(hits)
        able = list(filter(_has_text, candidates))
        made = self.field.values(self._vectors.documents([self._text_of(one) for one in able], states)) if able else []
        of = {
            one.doc_id: {self.field.name: vector, str(self.field.digest_field): self.field.digest_of(one.text or "")}
            for one, vector in zip(able, made, strict=True)
        }
        return [of.get(candidate.doc_id) for candidate in candidates]

    def _candidates(self, hits: Sequence[Hit]) -> Sequence[Candidate]:
        response = {"hits": {"hits": list(hits)}}
        return parse(response, Query("build", "build"), self.field.fields, self.field.separator).candidates


def _has_text(candidate: Candidate) -> bool:
    return bool(candidate.text and candidate.text.strip())


def new_field(client: Client, vectors: TextVectors, options: Rerank, name: str = DEFAULT_FIELD) -> VectorField:
    """Return the field that a model's vectors of an index go into: of 8-bit integers where the engine has them.

    Raises:
        ConfigError: the name has a dot.
    """
    if "." in name or not name:
        raise ConfigError(f"{name!r} is no name for a vector field: give one without dots", setting="vector_field")
    version = client.info()["version"]
    data_type: DataType = "byte" if takes_bytes(str(version["number"])) else "float"
    fields = options.fields or USUAL
    return VectorField(name, vectors.dimension, data_type, vectors.model, fields, options.separator)


@dataclass(frozen=True, slots=True)
class VectorCounts:
    """How far an index has vectors of today's texts.

    Attributes:
        documents: of the index.
        current: of those, how many have the vector of their text, by this model.
        stale: how many have one of an older text, or of another model; searches leave these out.
        missing: how many have text and no vector.
        empty: how many have no text in the fields that are read.
    """

    documents: int = 0
    current: int = 0
    stale: int = 0
    missing: int = 0
    empty: int = 0

    @property
    def share(self) -> float:
        """The current ones' share of the documents with text; 1 where there are none."""
        able = self.documents - self.empty
        return self.current / able if able else 1.0

    def plus(self, digests: Sequence[str | None], hits: Sequence[Hit], field: VectorField) -> "VectorCounts":
        """Return the counts with some hits and the digests of their texts."""
        kinds = [_kind(digest, hit, field) for digest, hit in zip(digests, hits, strict=True)]
        counted = {kind: getattr(self, kind) + kinds.count(kind) for kind in ("current", "stale", "missing", "empty")}
        return replace(self, documents=self.documents + len(hits), **counted)

    def __str__(self) -> str:
        return (
            f"{self.documents:,} documents: {self.current:,} with the vector of their text, {self.stale:,} with an "
            f"outdated one, {self.missing:,} with none, {self.empty:,} without text"
        )


def _kind(digest: str | None, hit: Hit, field: VectorField) -> str:
    kept = _kept_digest(hit, field)
    if digest is None:
        return "empty"
    return "missing" if kept is None else "current" if kept == digest else "stale"


def _kept_digest(hit: Hit, field: VectorField) -> str | None:
    found = (hit.get("fields") or {}).get(field.digest_field) or [None]
    return None if found[0] is None else str(found[0])


@dataclass(frozen=True, slots=True)
class VectorsBuilt:
    """What a build did.

    Attributes:
        made: vectors that were written.
        conflicts: documents that others wrote meanwhile, so that their vectors were left out.
        counts: of the index, read anew at the end.
    """

    made: int
    conflicts: int
    counts: VectorCounts


Report = Callable[[int, int], None]
"""Called with the documents read, and how many there are."""


def build_vectors(
    client: Client, index: str, *, name: str | None = None, report: Report = lambda _done, _all: None
) -> VectorsBuilt:
    """Give every document of an index the vector of its text; documents that have it are only read.

    Args:
        client: of the index; its settings name the model.
        index: its name, or an alias of one index.
        name: of the field; that of the mapping when None, else ``osrerank_vector``. It is made where it is not there.
        report: gets what is done after each batch.

    Raises:
        VectorsError: the index cannot have the field, or the model makes no vectors.
        ConfigError: the name cannot be used, or stands for several indices.
        OsrerankError: a text cannot be encoded, or the engine refuses a vector.
    """
    with record_maker(client) as scorer:
        vectors, options = TextVectors(scorer), client.options_of(index)
        real, field = _field_for(client, index, vectors, options, name)
        maker, sides = VectorMaker(client, vectors, field, options), SideStores(client)
        made = conflicts = read = 0
        count = int(client.count(index=real)["count"])
        written: set[str] = set()  # the embedded engine's pages show what was written since they began
        for hits in _pages(client, real, field):
            new = [hit for hit in hits if hit["_id"] not in written]
            digests = maker.digests(new)
            old = [one for one, digest in zip(new, digests, strict=True) if digest != _kept_digest(one, field)]
            done, refused = _write(client, old, maker.values(old, sides.of(real)))
            written.update(one["_id"] for one in old if is_embedded(client))
            made, conflicts, read = made + done, conflicts + refused, read + len(new)
            report(read, count)
        client.indices.refresh(index=real)
        return VectorsBuilt(made, conflicts, _counted(client, real, maker))


def count_vectors(client: Client, index: str, *, name: str | None = None) -> VectorCounts:
    """Return how far an index has vectors of today's texts, by reading all of its documents.

    Raises:
        VectorsError: the index has no such field, its vectors are another model's, or an application fills it.
    """
    field = VectorField.of(client.indices.get_mapping(index=index), name)
    if field.digest_field is None:
        reason = f"the vectors in {field.name} are an application's own: nothing says of which text they are"
        raise VectorsError(reason, kind="field", field=field.name)
    with record_maker(client) as scorer:
        vectors = TextVectors(scorer)
        field.check(vectors.model, vectors.dimension)
        return _counted(client, index, VectorMaker(client, vectors, field, client.options_of(index)))


def _counted(client: Client, index: str, maker: VectorMaker) -> VectorCounts:
    counts = VectorCounts()
    for hits in _pages(client, index, maker.field):
        counts = counts.plus(maker.digests(hits), hits, maker.field)
    return counts


def build_on_screen(client: Client, index: str, name: str | None = None) -> VectorsBuilt:
    """Do what `build_vectors` does, with its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(client, index, name=name, report=report)


def _pages(client: Client, index: str, field: VectorField) -> Iterator[list[Hit]]:
    """Yield an index's documents in batches, with their digests and the fields that are read."""
    embedded = is_embedded(client)
    body: dict[str, Any] = {"size": PAGE if embedded else BATCH, "query": {"match_all": {}}}
    body |= {"_source": list(field.fields), "docvalue_fields": [field.digest_field]}
    if not embedded:
        body["seq_no_primary_term"] = True
    hits = every_hit(client, index, body, is_embedded=embedded)
    while batch := list(islice(hits, BATCH)):
        yield batch


def _write(client: Client, hits: Sequence[Hit], values: Sequence[Mapping[str, Any] | None]) -> tuple[int, int]:
    """Write vectors into their documents, unless these were changed since they were read; return how many, and not.

    Raises:
        OsrerankError: the engine refuses one.
    """
    lines: list[Any] = []
    for hit, value in zip(hits, values, strict=True):
        place = {name: hit[name] for name in ("_index", "_id") if name in hit}
        if "_routing" in hit:
            place["routing"] = hit["_routing"]
        if "_seq_no" in hit:
            place |= {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
        if value is not None:
            lines += [{"update": place}, {"doc": value}]
    if not lines:
        return 0, 0
    items = [item["update"] for item in client.bulk(body=lines)["items"]]
    for item in items:
        if "error" in item and item["status"] not in (CONFLICT, GONE):  # changed or deleted meanwhile
            reason = f"the vector of {item['_id']!r} was refused: {item['error'].get('reason')}"
            raise OsrerankError(f"{reason}; the same command goes on from here")
    refused = sum("error" in item for item in items)
    return len(items) - refused, refused


def _field_for(
    client: Client, index: str, vectors: TextVectors, options: Rerank, name: str | None
) -> tuple[str, VectorField]:
    """Return an index's own name and its vector field, which is made, or made this model's, where it is not."""
    mappings = client.indices.get_mapping(index=index)
    if len(mappings) != 1:
        reason = f"{index} stands for {len(mappings)} indices: build the vectors of each"
        raise ConfigError(reason, setting="index", source="argument")
    ((real, body),) = mappings.items()
    meta = body["mappings"].get("_meta") or {}
    ours = new_field(client, vectors, options, name or (meta.get(META) or {}).get("field") or DEFAULT_FIELD)
    try:
        there = VectorField.of(mappings, ours.name)
    except VectorsError:
        _check_room(client, real, body["mappings"], ours)
        _put(client, real, ours, meta, ours.properties())
        return real, ours
    if there.dimension != ours.dimension:
        there.check(vectors.model, ours.dimension)
    ours = replace(ours, data_type=there.data_type)
    if there == ours:
        return real, ours
    if there.model is None:
        _check_free(client, real, body["mappings"]["properties"][ours.name], ours)
    properties = ours.properties()
    del properties[ours.name]  # as it is
    _put(client, real, ours, meta, properties)
    return real, ours


def _check_room(client: Client, index: str, mapping: Mapping[str, Any], field: VectorField) -> None:
    """Refuse a field that an index cannot get."""
    if field.name in mapping.get("properties", {}):
        kind = mapping["properties"][field.name].get("type", "object")
        reason = f"{index} has a field {field.name} of the type {kind}: give another name with --vector-field"
        raise VectorsError(reason, kind="field", field=field.name)
    settings = client.indices.get_settings(index=index)[index]["settings"]["index"]
    if str(settings.get("knn", False)).lower() != "true":
        reason = f"{index} was not made with index.knn: true, which cannot be changed later: make a new index with it"
        raise VectorsError(f"{reason} and copy the documents (_reindex), or load them with --vectors", kind="field")


def _check_free(client: Client, index: str, mapped: Mapping[str, Any], field: VectorField) -> None:
    """Refuse a field that somebody else fills, or that compares vectors in another way."""
    holding = int(client.count(index=index, body={"query": {"exists": {"field": field.name}}})["count"])
    if holding:
        reason = f"the field {field.name} of {index} has {holding:,} vectors of an application's own"
        raise VectorsError(f"{reason}: give another name with --vector-field", kind="field", field=field.name)
    space = (mapped.get("method") or {}).get("space_type", mapped.get("space_type", "l2"))
    if space != "cosinesimil":
        reason = f"the field {field.name} of {index} compares vectors by {space}, and a model's by cosinesimil"
        raise VectorsError(f"{reason}: give another name with --vector-field", kind="field", field=field.name)


def _put(
    client: Client, index: str, field: VectorField, meta: Mapping[str, Any], properties: Mapping[str, Any]
) -> None:
    """Write a field, and what ``_meta`` says of it, into a mapping; what others keep in ``_meta`` stays."""
    with refused_by_engine():
        client.indices.put_mapping(
            index=index, body={"_meta": {**meta, **field.meta()}, "properties": dict(properties)}
        )


@contextmanager
def refused_by_engine() -> Iterator[None]:
    """Raise an engine's refusal of vectors as `VectorsError`."""
    from opensearchpy import RequestError  # noqa: PLC0415 - beside the client

    try:
        yield
    except RequestError as error:
        known = refusal_of(error.info.get("error") if isinstance(error.info, dict) else None)
        if known is None:
            raise
        raise VectorsError(f"the engine has no k-NN: {known}", kind=known.kind) from error
