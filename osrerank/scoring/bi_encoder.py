"""Bi-encoders: models that encode each text into one vector, and compare a query with a document by their vectors."""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from osrerank.errors import InferenceError, ModelLoadError
from osrerank.formats.files import hash_file
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.backends.onnx import PRECISIONS
from osrerank.scoring.batcher import CallOutcome
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import list_parameter_files
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.local import LocalModel
from osrerank.scoring.model_files import CARD_FILE, hash_files, read_config, tokenizer_file
from osrerank.types import NEVER, Deadline, Side, Vectors
from osrerank.types.scores import NOT_FINITE
from osrerank.types.vectors import Floats

QUERY_CACHE_SIZE = 128
"""Maximum number of cached query vectors. They are cached because a search can need the same one several times."""


class BiEncoder(LocalModel):
    """A bi-encoder. Its inputs are ``[CLS] text [SEP]``. Queries and documents can have different prefixes.

    The similarity of two vectors is the logit ``scale * product + offset``, with the calibration of the model card. The
    product is a cosine if the vectors are normalised.
    """

    max_token_vectors = 0
    """Maximum number of token vectors of a document, or 0 if the model computes one vector for a whole document."""

    def __init__(self, directory: Path, card: ModelCard, builder: InputBuilder, backend: Backend) -> None:
        super().__init__(directory, card, builder, backend)
        self.dimensions = card.dimensions or int(read_config(directory)["hidden_size"])
        self._empty_query = builder.tokenise_query("")
        self._cached_query_vector = functools.lru_cache(QUERY_CACHE_SIZE)(self._checked_query_vector)
        self._query_encoder: BiEncoder | None = None

    def encode_queries_with(self, query_model: "BiEncoder") -> None:
        """Use another model for queries, like the Router of sentence-transformers.

        Raises:
            ModelLoadError: the vectors of the two models are not comparable.
        """
        expected_description = f"a {self.card.kind} ({self.card.head}, {self.dimensions} dimensions)"
        actual_description = f"a {query_model.card.kind} ({query_model.card.head}, {query_model.dimensions} dimensions)"
        if actual_description != expected_description:
            folder = self._directory / self.card.query_model
            reason = f"{folder} is {actual_description}; it must be {expected_description}, like the document model"
            raise ModelLoadError(reason, model=self.model, path=str(self._directory))
        self._query_encoder = query_model

    @functools.cached_property
    def key(self) -> str:
        """A string that differs whenever the same document might get another vector.

        It does not depend on backend, device or dtype, so a client on a CPU can use the vectors of a worker on a GPU.
        """
        components = (
            weights_digest(self._directory, self.card),
            hash_file(tokenizer_file(self._directory)),
            self.card.document_prefix,
            str(self.card.max_tokens),
            # the default is left out, so that vectors stay valid that were stored before there was another value
            *([self.card.normalization] if self.card.normalization != "tokenizer" else []),
            *(json.dumps(step.to_json(), sort_keys=True) for step in self.card.vector_head.steps),
        )
        return "\0".join(components)

    @functools.cached_property
    def identity(self) -> str:
        """A string that differs whenever the same texts might get another similarity."""
        key = hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()
        query_identity = f"/{self._query_encoder.identity}" if self._query_encoder else ""
        card_digest = self._digest(weights=())  # `key` contains the weights
        return f"{card_digest}/{key}/{self.card.kind}/{self._length_policy}{query_identity}"

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts into vectors. Query vectors are cached, and queries ignore the deadline.

        Raises:
            InferenceError: no document could be encoded, or the vector of a query is not finite.
        """
        if side == "query" and self._query_encoder:
            return self._query_encoder.encode(texts, side, deadline=deadline)
        if side == "query":
            query_vectors, truncated_indices = self._encode_queries(texts)
            return Vectors(np.concatenate(query_vectors), cut=truncated_indices)
        _, outcome, truncated_indices = self._encode_documents(texts, deadline)
        rows = np.full((len(texts), self.dimensions), np.nan, dtype=np.float32)
        for index, row in outcome.outputs.items():
            rows[index] = row
        return Vectors(rows, outcome.failures, truncated_indices)

    def _encode_queries(self, texts: Sequence[str]) -> tuple[list[Floats], frozenset[int]]:
        """Return each query's vector ``(1, dimensions)`` (or token vectors), and the indices of truncated queries."""
        queries = [self._builder.tokenise_query(text) for text in texts]
        inputs = [self._builder.build_single(query) for query in queries]
        vectors = [self._cached_query_vector(tokens.ids.tobytes()) for tokens in inputs]  # bytes can be cache keys
        return vectors, frozenset(index for index, query in enumerate(queries) if query.is_truncated)

    def _encode_documents(
        self, texts: Sequence[str], deadline: Deadline
    ) -> tuple[list[Tokens], CallOutcome, frozenset[int]]:
        """Encode documents until the deadline. Return the inputs, the outputs and the indices of truncated texts."""
        truncated_indices: list[int] = []
        sequences: list[Tokens] = []
        with self._batcher.call(deadline) as call:
            for group in self.tokenisation_groups([len(text) for text in texts]):
                if deadline.passed:
                    break
                documents = self._builder.tokenise_documents(texts[group], self._empty_query)
                truncated_indices += [
                    index for index, document in enumerate(documents, group.start) if document.is_truncated
                ]
                new_sequences = [self._builder.build_single(document) for document in documents]
                sequences += new_sequences
                call.add(new_sequences)
            return sequences, call.result(), frozenset(truncated_indices)

    def close(self) -> None:
        super().close()
        if self._query_encoder:
            self._query_encoder.close()

    def similarity(self, query: Floats, vectors: Floats) -> Floats:
        """Return the logits ``(n,)`` of a query vector ``(dimensions,)`` and document vectors ``(n, dimensions)``."""
        products: Floats = (vectors * query).sum(axis=1)
        return self.card.calibration.scale * products + self.card.calibration.offset

    def _checked_query_vector(self, ids: bytes) -> Floats:
        """Return the vector of a query, or raise `InferenceError` if it is not finite, so that it is not cached."""
        vector = self._query_vector(ids)
        if not np.isfinite(vector).all():
            raise InferenceError(NOT_FINITE.format(model=self.model), model=self.model)
        return vector

    def _query_vector(self, ids: bytes) -> Floats:
        """Return the vector ``(1, dimensions)`` of a query's int64 token ids, passed as bytes for the cache."""
        token_ids = np.frombuffer(ids, dtype=np.int64)
        vector: Floats = self.backend.run([Tokens(token_ids, np.zeros_like(token_ids))])
        return vector


def weights_digest(directory: Path, card: ModelCard) -> str:
    """Return a digest of an encoder's weights and pooling.

    If the card contains this digest, it is returned. Otherwise, the ONNX graph or the safetensors are hashed.
    Safetensors, and graphs that osrerank did not export, do not contain the pooling, so the digest is followed by the
    pooling's name.
    """
    if card.weights:
        return card.weights
    for precision in PRECISIONS:
        graph = card.onnx.get(precision)
        if not graph:
            continue
        if (directory / CARD_FILE).exists():  # osrerank exported the graph
            return hash_file(directory / graph)
        files = [name for name in (graph, f"{graph}_data") if (directory / name).exists()]
        return f"{hash_files(directory, files)}/{card.pooling}"
    return f"{hash_files(directory, list_parameter_files(directory))}/{card.pooling}"
