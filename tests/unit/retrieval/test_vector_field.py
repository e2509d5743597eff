"""What a vector field is: its mapping, its query, and which of its vectors count."""

import numpy as np
import pytest

from osrerank.errors import VectorsError
from osrerank.retrieval.vector_field import VectorField, refusal_of, takes_bytes

OURS = VectorField("osrerank_vector", 3, "byte", "0f3c", ("title", "text"), " ")


def answer(body: dict, *names: str) -> dict:
    return {name: {"mappings": body["mappings"]} for name in names or ("articles",)}


def test_a_field_is_read_back_from_the_mapping_that_it_makes() -> None:
    body = OURS.with_field({"mappings": {"_meta": {"kept": 1}, "properties": {"text": {"type": "text"}}}})
    assert VectorField.of(answer(body)) == OURS
    assert body["mappings"]["_meta"]["kept"] == 1
    assert body["mappings"]["_source"] == {"excludes": ["osrerank_vector", "osrerank_vector_of"]}
    assert body["settings"]["index"]["knn"] is True


def test_an_applications_own_field_is_named_and_has_no_digests() -> None:
    mapping = {"properties": {"about": {"properties": {"vector": {"type": "knn_vector", "dimension": 4}}}}}
    field = VectorField.of({"articles": {"mappings": mapping}}, "about.vector")
    assert field == VectorField("about.vector", 4, "float")
    assert field.digest_field is None
    assert field.is_current({}, None)
    field.check("any model", 4)


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ({}, "the field osrerank_vector is not there"),
        ({"properties": {"osrerank_vector": {"type": "keyword"}}}, "is a keyword"),
        ({"properties": {"osrerank_vector": {"type": "knn_vector", "dimension": 8, "data_type": "binary"}}}, "binary"),
    ],
)
def test_an_index_without_such_a_field_is_refused(mapping: dict, reason: str) -> None:
    with pytest.raises(VectorsError, match=reason) as raised:
        VectorField.of({"articles": {"mappings": mapping}})
    assert raised.value.kind == "field"


def test_indices_with_vectors_of_different_models_are_refused() -> None:
    other = VectorField("osrerank_vector", 3, "byte", "beef", ("title", "text"))
    both = answer(OURS.with_field({}), "old") | answer(other.with_field({}), "new")
    with pytest.raises(VectorsError, match="differ between old, new"):
        VectorField.of(both)


@pytest.mark.parametrize(("model", "dimension", "kind"), [("0f3c", 4, "dimension"), ("beef", 3, "model")])
def test_another_model_or_dimension_is_refused(model: str, dimension: int, kind: str) -> None:
    OURS.check("0f3c", 3)
    with pytest.raises(VectorsError) as raised:
        OURS.check(model, dimension)
    assert raised.value.kind == kind
    assert raised.value.field == "osrerank_vector"


def test_a_vector_counts_while_its_text_and_its_model_stay() -> None:
    hit = {"fields": {"osrerank_vector_of": [OURS.digest_of("the text")]}}
    assert OURS.is_current(hit, "the text")
    assert not OURS.is_current(hit, "the new text")
    assert not OURS.is_current(hit, None)
    assert not OURS.is_current({}, "the text")
    assert VectorField("osrerank_vector", 3, "byte", "beef").digest_of("the text") != OURS.digest_of("the text")


def test_numbers_are_scaled_to_eight_bits_and_keep_their_directions() -> None:
    vectors = np.random.default_rng(1).standard_normal((20, 384)).astype(np.float32)
    integers = np.array(VectorField("v", 384, "byte").values(vectors))
    assert (np.abs(integers).max(axis=1) == 127).all()
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(integers, axis=1)
    assert ((vectors * integers).sum(axis=1) / lengths > 0.9998).all()
    assert VectorField("v", 384, "float").values(vectors) == vectors.tolist()


def test_the_query_clause_has_the_filter_inside() -> None:
    only = {"term": {"year": 1999}}
    clause = OURS.query(np.array([0.5, 0, -1], dtype=np.float32), 7, only)
    assert clause == {"knn": {"osrerank_vector": {"vector": [64, 0, -127], "k": 28, "filter": only}}}
    assert OURS.query(np.ones(3, dtype=np.float32), 9_000)["knn"]["osrerank_vector"]["k"] == 10_000
    with pytest.raises(VectorsError, match="vectors of 3 numbers, and the model's have 2"):
        OURS.query(np.ones(2, dtype=np.float32), 7)


def test_what_an_engine_refuses_says_why() -> None:
    shard = {"type": "query_shard_exception", "reason": "failed to create query: Field 'v' is not knn_vector type."}
    assert refusal_of({"type": "x", "reason": "all shards failed", "root_cause": [shard]}).kind == "field"  # type: ignore[union-attr]
    assert refusal_of({"type": "parsing_exception", "reason": "unknown query [knn]"}).kind == "plugin"  # type: ignore[union-attr]
    far = {"reason": "Query vector has invalid dimension: 3. Dimension should be: 4"}
    assert refusal_of({"root_cause": [far]}).kind == "dimension"  # type: ignore[union-attr]
    assert refusal_of({"reason": "no such index [articles]"}) is None
    assert refusal_of("down") is None


def test_which_versions_take_integers() -> None:
    assert not takes_bytes("2.4.1")
    assert all(map(takes_bytes, ("2.9.0", "2.11.0", "3.6.0-SNAPSHOT")))
