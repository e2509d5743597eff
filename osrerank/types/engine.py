"""The search engines, and how they differ.

A property of `Engine` decides what is sent. Three differences need no decision:

- Only the caller writes ``hybrid`` and ``derived`` (OpenSearch), and ``retriever`` and ``runtime_mappings``
  (Elasticsearch). They are sent as they come, and the engine that lacks them refuses them.
- Fields of nested objects come as ``{"parts.text": [...]}`` (OpenSearch) or ``{"parts": [{"text": [...]}]}``
  (Elasticsearch) in ``fields``. `osrerank.response` reads both shapes.
- Only Elasticsearch has fields of the type ``semantic_text``. The mapping names the type.
"""

import re
from enum import Enum
from typing import Any


class Engine(Enum):
    """A search engine. Its properties say what it supports, so that osrerank sends nothing that it would refuse."""

    OPENSEARCH = "OpenSearch"
    ELASTICSEARCH = "Elasticsearch"
    EMBEDDED = "the embedded engine"

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded engine, which has no scroll, shards or doc values."""
        return self is Engine.EMBEDDED

    @property
    def has_pipelines(self) -> bool:
        """Whether it has search pipelines."""
        return self is Engine.OPENSEARCH

    @property
    def has_ext(self) -> bool:
        """Whether a search may have ``ext``."""
        return self is not Engine.ELASTICSEARCH

    @property
    def reranks_by_endpoint(self) -> bool:
        """Whether it reranks by itself through an inference endpoint; if not, through a search pipeline."""
        return self is Engine.ELASTICSEARCH

    @property
    def scores_names_in_multi_search(self) -> bool:
        """Whether a multi-search, too, may ask for the scores of named queries.

        With scores, ``matched_queries`` is an object of them; without, it is a list of names.
        """
        return self is Engine.ELASTICSEARCH

    @property
    def no_pipeline(self) -> dict[str, Any]:
        """The URL parameters of a search that runs under no search pipeline, whatever its index's default is."""
        return {"search_pipeline": "_none"} if self.has_pipelines else {}

    def preference_of(self, shard: str) -> str:
        """Return the preference of a search in one shard: its primary copy, or on Elasticsearch any copy.

        Elasticsearch cannot ask for the primary. Up to the global checkpoint, all copies have the same changes.
        """
        return f"_shards:{shard}" if self is Engine.ELASTICSEARCH else f"_shards:{shard}|_primary"


_BACKING = re.compile(r"(?:.*-)?\.ds-(?P<stream>.+?)(?:-\d{4}\.\d{2}\.\d{2})?-\d{6,}")
"""Matches the index of a data stream. Elasticsearch adds a date, and a prefix if the index was shrunk or restored."""


def stream_of(index: str) -> str:
    """Return the data stream that an index belongs to, by the index's name; the index itself outside data streams."""
    backing = _BACKING.fullmatch(index)
    return index if backing is None else backing["stream"]
