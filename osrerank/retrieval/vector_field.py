"""The field of an index that holds documents' vectors: its mapping, its query, and what makes a vector current.

Beside the vector stands a keyword, the digest of the model's document side and of the text that the vector was made
of. A hit whose digest is not that of its text today has the vector of an older text, or of another model. ``_meta`` of
the mapping says whose vectors they are, and how the texts were put together:

    "_meta": {"osrerank_vectors": {"field": "osrerank_vector", "model": "0f3c...", "dimension": 384,
              "text_digest": "osrerank_vector_of", "fields": ["title", "text"], "separator": " "}}

An index that we make leaves both fields out of ``_source``. So whatever writes a document anew from its source, an
``update`` by ``doc`` or script, ``_update_by_query`` or ``_reindex``, drops the vector with its digest; where they are
in the source (a field that was added to an index later), these keep both, and the digest tells the vector from a
current one. An ``index`` action always replaces the whole document.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from osrerank.errors import VectorsError

DEFAULT_FIELD = "osrerank_vector"
META = "osrerank_vectors"
DIGEST_SUFFIX = "_of"
DIGEST_BYTES = 16
MOST_K = 10_000
"""The most neighbours that OpenSearch returns of a shard."""
LOOKED_AT = 4
"""So many times the wanted neighbours are asked of HNSW, which finds the nearest of all the surer the more it looks at:
of NFCorpus' hundred nearest .905 when asked for a hundred, .993 when asked for four hundred."""
MOST_BYTE = 127
FIRST_WITH_BYTES = (2, 9)
"""The first version of OpenSearch whose Lucene engine takes vectors of 8-bit integers."""

Floats = npt.NDArray[np.float32]
DataType = Literal["byte", "float"]


@dataclass(frozen=True, slots=True)
class VectorField:
    """A field with a vector of each document.

    Attributes:
        name: the field's, with dots below objects.
        dimension: of a vector.
        data_type: of its numbers: 8-bit integers, or 32-bit floats.
        model: identity of the document side that made the vectors; None for an application's own field.
        fields: whose text was read, in order; none for an application's own field.
        separator: between their texts.
    """

    name: str
    dimension: int
    data_type: DataType = "byte"
    model: str | None = None
    fields: tuple[str, ...] = ()
    separator: str = " "

    @property
    def digest_field(self) -> str | None:
        """The keyword that holds the digest of a vector's text, for ``docvalue_fields``; None where there is none."""
        return None if self.model is None else f"{self.name}{DIGEST_SUFFIX}"

    def digest_of(self, text: str) -> str:
        """Return the digest that a current vector of a text has, 32 hexadecimal digits.

        Args:
            text: as joined from `fields` by `separator`.
        """
        content = f"{self.model}\0{text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()

    def is_current(self, hit: Mapping[str, Any], text: str | None) -> bool:
        """Return whether a hit's vector is of its text, by the digest among the hit's ``fields``.

        Vectors of an application's own field are taken as they are.

        Args:
            hit: of a search with `digest_field` in ``docvalue_fields``.
            text: of the hit, as joined from `fields` by `separator`; None where it has none.
        """
        if self.digest_field is None:
            return True
        kept = (hit.get("fields") or {}).get(self.digest_field) or [None]
        return text is not None and kept[0] == self.digest_of(text)

    def values(self, vectors: Floats) -> list[list[int]] | list[list[float]]:
        """Return vectors ``(n, dimension)`` as the field takes them; no row may be zero.

        8-bit integers are scaled by each vector's largest number, because the cosine does not depend on the length.
        """
        if self.data_type == "float":
            return vectors.astype(np.float32).tolist()  # type: ignore[no-any-return]
        largest = np.abs(vectors).max(axis=1, keepdims=True)
        return np.rint(vectors * (MOST_BYTE / largest)).astype(np.int8).tolist()  # type: ignore[no-any-return]

    def query(self, vector: Floats, k: int, only: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the query clause for the documents whose vectors are nearest to one; it matches `LOOKED_AT` times k.

        Args:
            vector: the query's, ``(dimension,)``.
            k: how many are wanted, from 1 to 10,000: the ``size`` of the search.
            only: a query clause that they match, too; the nearest among those are found, not those among the nearest.

        Raises:
            VectorsError: the vector has another dimension.
        """
        if vector.shape != (self.dimension,):
            raise self._dimension(len(vector))
        body: dict[str, Any] = {"vector": self.values(vector[None])[0], "k": min(k * LOOKED_AT, MOST_K)}
        if only is not None:
            body["filter"] = dict(only)
        return {"knn": {self.name: body}}

    def check(self, model: str, dimension: int) -> None:
        """Check that a model's queries can be compared with the field's vectors.

        Args:
            model: identity of its document side.
            dimension: of its vectors.

        Raises:
            VectorsError: the vectors are another model's, or have another dimension.
        """
        if self.dimension != dimension:
            raise self._dimension(dimension)
        if self.model not in (None, model):
            reason = f"the vectors in {self.name} are of another model; osrerank vectors build makes them anew"
            raise VectorsError(reason, kind="model", field=self.name)

    def _dimension(self, given: int) -> VectorsError:
        reason = f"the field {self.name} has vectors of {self.dimension} numbers, and the model's have {given}"
        return VectorsError(reason, kind="dimension", field=self.name)

    def properties(self) -> dict[str, Any]:
        """Return the properties of a mapping that has the field and its digest."""
        space = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}  # the only engine with exact filters
        vector: dict[str, Any] = {"type": "knn_vector", "dimension": self.dimension, "method": space}
        if self.data_type == "byte":
            vector["data_type"] = "byte"
        return {self.name: vector, f"{self.name}{DIGEST_SUFFIX}": {"type": "keyword"}}

    def meta(self) -> dict[str, Any]:
        """Return what ``_meta`` of a mapping says of the field."""
        said = {"field": self.name, "model": self.model, "dimension": self.dimension, "text_digest": self.digest_field}
        return {META: {**said, "fields": list(self.fields), "separator": self.separator}}

    def with_field(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body that creates an index, with the field in it, and left out of ``_source``."""
        mappings, settings = body.get("mappings") or {}, body.get("settings") or {}
        source = mappings.get("_source") or {}
        excluded = [*source.get("excludes", ()), *self.properties()]
        return {
            **body,
            "settings": {**settings, "index": {**settings.get("index", {}), "knn": True}},
            "mappings": {
                **mappings,
                "_meta": {**mappings.get("_meta", {}), **self.meta()},
                "_source": {**source, "excludes": excluded},
                "properties": {**mappings.get("properties", {}), **self.properties()},
            },
        }

    @classmethod
    def of(cls, mappings: Mapping[str, Any], name: str | None = None) -> Self:
        """Return the field in the answer to ``GET INDEX/_mapping``; of several indices, each must have the same.

        Args:
            mappings: the answer.
            name: the field's; that of ``_meta`` when None, else ``osrerank_vector``.

        Raises:
            VectorsError: an index has no such field, or they differ.
        """
        found = {index: cls._in(index, one.get("mappings") or {}, name) for index, one in mappings.items()}
        if not found:
            reason = f"there is no index with a field {name or DEFAULT_FIELD}"
            raise VectorsError(reason, kind="field", field=name or DEFAULT_FIELD)
        first, *others = found.values()
        if any(other != first for other in others):
            reason = f"the vectors in {first.name} differ between {', '.join(found)}: build them with one model"
            raise VectorsError(reason, kind="model", field=first.name)
        return first

    @classmethod
    def _in(cls, index: str, mapping: Mapping[str, Any], name: str | None) -> Self:
        said = (mapping.get("_meta") or {}).get(META) or {}
        name = name or said.get("field") or DEFAULT_FIELD
        mapped = _mapped(mapping, name)
        if mapped.get("type") != "knn_vector" or not isinstance(mapped.get("dimension"), int):
            there = f"is a {mapped['type']}" if "type" in mapped else "is not there"
            reason = f"{index} has no vectors: the field {name} {there}; osrerank vectors build makes it"
            raise VectorsError(reason, kind="field", field=name)
        data_type = str(mapped.get("data_type", "float")).lower()
        if data_type not in get_args(DataType):
            reason = f"the field {name} of {index} has vectors of the type {data_type}; only byte and float are read"
            raise VectorsError(reason, kind="field", field=name)
        if said.get("field") != name:
            return cls(name, mapped["dimension"], data_type)  # type: ignore[arg-type]
        fields = tuple(said.get("fields") or ())
        return cls(name, mapped["dimension"], data_type, said.get("model"), fields, said.get("separator", " "))  # type: ignore[arg-type]


def _mapped(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field's mapping; an empty one where it is not there."""
    inside: Mapping[str, Any] = mapping
    for part in name.split("."):
        inside = (inside.get("properties") or {}).get(part) or {}
    return inside


def takes_bytes(version: str) -> bool:
    """Return whether an OpenSearch of a version takes vectors of 8-bit integers in the Lucene engine."""
    numbers = re.findall(r"\d+", version)[:2]
    return tuple(map(int, numbers)) >= FIRST_WITH_BYTES


def refusal_of(error: Any) -> VectorsError | None:
    """Return why an engine refused a search or mapping because of its vectors; None for any other reason.

    Args:
        error: ``error`` of a response, or of one of an ``_msearch``'s responses.
    """
    reasons = " ".join(_reasons(error))
    for kind, pattern in _REFUSALS.items():
        if match := re.search(pattern, reasons):
            return VectorsError(match[0], kind=kind)
    return None


_REFUSALS: Mapping[Literal["plugin", "field", "dimension"], str] = {
    "plugin": r"unknown query \[knn\][^;]*|No handler for type \[knn_vector\][^:;]*|unknown setting \[index\.knn\]",
    "field": r"Field '[^']*' is not (knn_vector type|built for ANN search)",
    "dimension": r"Query vector has invalid dimension: \d+\. Dimension should be: \d+",
}


def _reasons(error: Any) -> Sequence[str]:
    """Return every reason within an error object."""
    if isinstance(error, list):
        return [reason for one in error for reason in _reasons(one)]
    if not isinstance(error, Mapping):
        return []
    own = [error["reason"]] if isinstance(error.get("reason"), str) else []
    return own + [reason for value in error.values() for reason in _reasons(value)]
