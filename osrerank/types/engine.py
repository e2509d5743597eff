"""The supported search engines and how they differ.

Code that builds a request checks a property of `Engine`, never the engine's name. Three differences need no property:

- ``hybrid`` and ``derived`` (OpenSearch), ``retriever`` and ``runtime_mappings`` (Elasticsearch) come only from the
  caller. They are passed on unchanged, and an engine that does not support them rejects the request.
- In ``fields``, OpenSearch returns a nested field as ``{"parts.text": [...]}``, and Elasticsearch as
  ``{"parts": [{"text": [...]}]}``. `osrerank.response` accepts both.
- Only Elasticsearch has fields of the type ``semantic_text``. They can be recognised in the mapping.
"""

import re
from enum import Enum
from typing import Any


class Engine(Enum):
    """A search engine and what it supports."""

    OPENSEARCH = "OpenSearch"
    ELASTICSEARCH = "Elasticsearch"
    EMBEDDED = "the embedded engine"

    @property
    def is_embedded(self) -> bool:
        """Whether this is the embedded engine, which has no scroll, shards or doc values."""
        return self is Engine.EMBEDDED

    @property
    def has_pipelines(self) -> bool:
        """Whether the engine has search pipelines."""
        return self is Engine.OPENSEARCH

    @property
    def has_ext(self) -> bool:
        """Whether a search body can contain ``ext``, the object for plugins."""
        return self is not Engine.ELASTICSEARCH

    @property
    def reranks_by_endpoint(self) -> bool:
        """Whether the engine's own reranking uses an inference endpoint rather than a search pipeline."""
        return self is Engine.ELASTICSEARCH

    @property
    def scores_names_in_multi_search(self) -> bool:
        """Whether a multi-search can return the scores of named queries, as a single search can.

        With scores, ``matched_queries`` maps names to scores. Without, it is a list of names.
        """
        return self is Engine.ELASTICSEARCH

    @property
    def no_pipeline(self) -> dict[str, Any]:
        """The URL parameters that turn off the default search pipeline of the index."""
        return {"search_pipeline": "_none"} if self.has_pipelines else {}

    def shard_preference(self, shard: str) -> str:
        """Return the ``preference`` that sends a search to one shard.

        OpenSearch sends it to the shard's primary copy. Elasticsearch cannot select the primary, and sends it to any
        copy. All copies have the same writes up to the global checkpoint.
        """
        return f"_shards:{shard}" if self is Engine.ELASTICSEARCH else f"_shards:{shard}|_primary"


_BACKING = re.compile(r"(?:.*-)?\.ds-(?P<stream>.+?)(?:-\d{4}\.\d{2}\.\d{2})?-\d{6,}")
"""Matches the name of a backing index. Elasticsearch puts a date into it, and a prefix after a shrink or restore."""


def find_data_stream(index: str) -> str:
    """Return the data stream of a backing index. For any other index, return its name."""
    backing = _BACKING.fullmatch(index)
    return index if backing is None else backing["stream"]
