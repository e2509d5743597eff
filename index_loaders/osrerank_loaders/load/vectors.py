"""Documents' vectors, made batch by batch while a collection is loaded."""

import dataclasses
import json
from typing import Any

from osrerank.client import Client
from osrerank.retrieval.vector_field import VectorField
from osrerank.states import SideStores
from osrerank.vectors import VectorMaker, new_field
from osrerank_loaders.load.bulk import Batch, Entry

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BatchVectors:
    """Gives the documents of batches their vectors.

    Args:
        client: of the index; its settings name the model.
        index: its name; it need not exist.
        name: of the field.

    Raises:
        VectorsError: the model makes no vectors.
        ConfigError: the name cannot be used.
    """

    def __init__(self, client: Client, index: str, name: str) -> None:
        vectors, options = client.reranker.text_vectors(), client.defaults.of(index)
        self.field: VectorField = new_field(client, vectors, options, name)
        self._maker = VectorMaker(client, vectors, self.field, options)
        self._states = SideStores(client).of(index)

    @property
    def fixed(self) -> str:
        """What an interrupted load must have in common with the one that resumes it."""
        return f"vectors={self.field.name}:{self.field.model}"

    def filled(self, batch: Batch) -> Batch:
        """Return the batch with vectors, and the number of its documents that have no text and so no vector.

        Raises:
            InferenceError: a text could not be encoded.
        """
        lines = [entry.body.split(b"\n") for entry in batch.entries]
        sources: list[dict[str, Any]] = [json.loads(source) for _, source, _ in lines]
        hits = [
            {"_id": entry.doc_id, "_index": str(at), "_source": source}  # one id may come twice
            for at, (entry, source) in enumerate(zip(batch.entries, sources, strict=True))
        ]
        values = self._maker.values(hits, self._states)
        entries = [
            Entry(entry.doc_id, b"\n".join([line[0], _encode({**source, **(value or {})}).encode(), b""]))
            for entry, line, source, value in zip(batch.entries, lines, sources, values, strict=True)
        ]
        return dataclasses.replace(batch, entries=tuple(entries), without_vector=values.count(None))
