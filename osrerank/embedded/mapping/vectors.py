"""Fields of the type ``knn_vector``: their mappings, the vectors of documents, and scores as Lucene has them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from osrerank.embedded.errors import Fault, Json, illegal, unsupported

Kind = Literal["byte", "float"]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32] | npt.NDArray[np.int8]

TYPE = "knn_vector"
NUMBERS: Mapping[Kind, npt.DTypeLike] = {"byte": "<i1", "float": "<f4"}
MOST_DIMENSIONS = 16_000
BYTES = -128, 127
_PARAMETERS = frozenset(
    {"type", "dimension", "data_type", "space_type", "method", "mode", "compression_level", "store", "doc_values",
     "meta"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VectorField:
    """One field of vectors.

    Attributes:
        path: dotted.
        dimension: of a vector.
        kind: of its numbers.
        space: how two vectors are compared.
    """

    path: str
    dimension: int
    kind: Kind
    space: str

    @classmethod
    def of(cls, path: str, body: Json) -> "VectorField":
        """Return the field of a mapping.

        Raises:
            Fault: 400 naming the parameter that cannot be used.
        """
        for key in body:
            if key not in _PARAMETERS:
                reason = f"unknown parameter [{key}] on mapper [{path}] of type [{TYPE}]"
                raise Fault(400, "mapper_parsing_exception", reason)
        method = body.get("method") or {}
        space = str(method.get("space_type", body.get("space_type", "l2")))
        if space not in SPACES and space not in ("l1", "linf", "hamming"):
            raise Fault(400, "mapper_parsing_exception", f"Invalid space_type: {space}")
        if space not in SPACES:
            reason = f'Validation Failed: 1: "hnsw" does not support space type: "{space}" in the embedded engine.;'
            raise Fault(400, "validation_exception", reason)
        kind = str(body.get("data_type", "float")).lower()
        if kind == "binary":
            raise unsupported(f"[data_type: binary] of [{path}]", "use byte or float")
        if kind not in NUMBERS:
            raise illegal("Invalid value provided for [data_type] field. Supported values are [binary,byte,float]")
        return cls(path, _dimension(path, body), "byte" if kind == "byte" else "float", space)

    def read(self, value: Any) -> bytes | None:
        """Return a document's vector as it is kept; None where it has none.

        Raises:
            Fault: 400 if the value is no such vector.
        """
        if value is None:
            return None
        try:
            vector = self._vector(value)
        except ValueError as error:
            reason = f"failed to parse field [{self.path}] of type [{TYPE}]: {error}"
            raise Fault(400, "mapper_parsing_exception", reason) from None
        return vector.astype(NUMBERS[self.kind]).tobytes()

    def kept(self, content: bytes) -> Rows:
        """Return the vector that `read` gave."""
        return np.frombuffer(content, NUMBERS[self.kind])

    def shown(self, content: bytes) -> list[int] | list[float]:
        """Return the vector that `read` gave, as ``_source`` shows it."""
        return self.kept(content).tolist()  # type: ignore[no-any-return]

    def query(self, vector: Floats) -> Floats:
        """Check a query's vector, and return it.

        Raises:
            ValueError: it cannot be compared with the field's.
        """
        if len(vector) != self.dimension:
            raise ValueError(
                f"Query vector has invalid dimension: {len(vector)}. Dimension should be: {self.dimension}"
            )
        if self.space == "cosinesimil" and not vector.any():
            raise ValueError("zero vector is not supported when space type is [cosinesimil]")
        if self.kind == "byte":
            _check_bytes(vector)
        return vector

    def _vector(self, value: Any) -> Floats:
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
            raise ValueError(f"the value is {value!r:.100}, a vector is a list of numbers")
        vector = np.array(numbers, dtype=np.float64)
        if len(vector) != self.dimension:
            raise ValueError(f"Vector dimension mismatch. Expected: {self.dimension}, Given: {len(vector)}")
        if not (np.abs(vector) <= np.finfo(np.float32).max).all():
            raise ValueError("KNN vector values cannot be infinite")
        if self.kind == "byte":
            _check_bytes(vector)
        if self.space == "cosinesimil" and not vector.astype(np.float32).any():
            raise ValueError("zero vector is not supported when space type is [cosinesimil]")
        return vector.astype(np.float32)


def _check_bytes(vector: npt.NDArray[Any]) -> None:
    """Refuse numbers that are no 8-bit integers."""
    said = "[data_type] field was set as [byte] in index mapping. But, KNN vector values are"
    if (vector != np.trunc(vector)).any():
        raise ValueError(f"{said} floats instead of byte integers")
    if ((vector < BYTES[0]) | (vector > BYTES[1])).any():
        raise ValueError(f"{said} not within in the byte range [{BYTES[0]}, {BYTES[1]}]")


def _dimension(path: str, body: Json) -> int:
    if "dimension" not in body:
        raise illegal(f"Dimension value missing for vector: {path}")
    given = body["dimension"]
    try:
        dimension = int(str(given))
    except (TypeError, ValueError):
        raise illegal(f"Unable to parse [dimension] from provided value [{given}] for vector [{path}]") from None
    if dimension <= 0:
        raise illegal(f"Dimension value must be greater than 0 for vector: {path}")
    if dimension > MOST_DIMENSIONS:
        reason = f"Validation Failed: 1: Dimension value cannot be greater than {MOST_DIMENSIONS} for vector: {path};"
        raise Fault(400, "validation_exception", reason)
    return dimension


def _cosines(query: Floats, rows: Floats, squares: Floats) -> Floats:
    """Return (1 + cos) / 2."""
    cosines: Floats = rows @ query / np.sqrt(squares * np.float32(query @ query))
    return np.float32(0.5) + np.float32(0.5) * cosines


def _products(query: Floats, rows: Floats, _squares: Floats) -> Floats:
    """Return 1 + the inner product, or 1 / (1 - it) where it is negative."""
    products = rows @ query
    scores: Floats = np.where(products < 0, 1 / (1 - np.minimum(products, 0)), 1 + products).astype(np.float32)
    return scores


def _distances(query: Floats, rows: Floats, _squares: Floats) -> Floats:
    """Return 1 / (1 + the squared distance)."""
    differences = rows - query
    scores: Floats = 1 / (1 + np.einsum("ij,ij->i", differences, differences, dtype=np.float32))
    return scores


SPACES: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "cosinesimil": _cosines,
    "innerproduct": _products,
    "l2": _distances,
}
"""Scores ``(n,)`` of a query ``(dimension,)`` and rows ``(n, dimension)`` with their squared lengths ``(n,)``."""


def vector_fields(mappings: Json, prefix: str = "") -> dict[str, VectorField]:
    """Return the vector fields of mappings, by path.

    Raises:
        Fault: 400 for a mapping that cannot be used.
    """
    found: dict[str, VectorField] = {}
    for name, inner in mappings.get("properties", {}).items():
        if inner.get("type") == TYPE:
            found[prefix + name] = VectorField.of(prefix + name, inner)
        else:
            found |= vector_fields(inner, f"{prefix}{name}.")
    return found


def check_setting(mappings: Json, settings: Json) -> None:
    """Refuse vector fields with a method in an index that is not made for them.

    Raises:
        Fault: 400, as OpenSearch.
    """
    is_on = str(settings.get("index", {}).get("knn", False)).lower() == "true"
    if not is_on and any(_has_method(inner) for inner in mappings.get("properties", {}).values()):
        raise illegal("Cannot set modelId or method parameters when index.knn setting is false")


def _has_method(body: Json) -> bool:
    if body.get("type") == TYPE:
        return "method" in body
    return any(_has_method(inner) for inner in body.get("properties", {}).values())


def taken_out(source: Json, fields: Mapping[str, VectorField]) -> tuple[Json, dict[str, bytes]]:
    """Return a document without its vectors, and these by path.

    Raises:
        Fault: 400 if a value is no vector of its field.
    """
    vectors: dict[str, bytes] = {}
    for path, field in fields.items():
        value, source = _without(source, path.split("."), path)
        if (vector := field.read(value)) is not None:
            vectors[path] = vector
    return source, vectors


def _without(source: Json, parts: list[str], path: str) -> tuple[Any, Json]:
    """Return the value at a path of a document, and the document without it."""
    if path in source:  # a key with dots
        return source[path], {key: value for key, value in source.items() if key != path}
    first, *rest = parts
    if first not in source or (rest and not isinstance(source[first], dict)):
        return None, source
    if not rest:
        return source[first], {key: value for key, value in source.items() if key != first}
    value, inside = _without(source[first], rest, ".".join(rest))
    return value, source if value is None else {**source, first: inside}


def put_back(source: Json, vectors: Mapping[str, bytes], fields: Mapping[str, VectorField]) -> Json:
    """Return a document with its vectors."""
    for path, content in vectors.items():
        if path in fields:
            source = _with(source, path.split("."), fields[path].shown(content))
    return source


def _with(source: Json, parts: list[str], value: Any) -> Json:
    first, *rest = parts
    inside = source.get(first)
    below = _with(inside if isinstance(inside, dict) else {}, rest, value) if rest else value
    return {**source, first: below}
