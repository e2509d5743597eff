"""The supported search engines and how they differ.

Code that builds a request checks a property of `Engine`, never the engine's name. Three differences need no property:

- osrerank never adds ``hybrid`` or ``derived`` (OpenSearch), or ``retriever`` or ``runtime_mappings`` (Elasticsearch)
  to a request. It passes on those of the caller, and an engine that does not support them rejects the request.
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
        """Whether a search body can contain the key ``ext``, under which plugins find their parameters."""
        return self is not Engine.ELASTICSEARCH

    @property
    def reranks_by_endpoint(self) -> bool:
        """Whether the engine can rerank with an inference endpoint. If not, it reranks with a search pipeline."""
        return self is Engine.ELASTICSEARCH

    @property
    def scores_named_queries_in_multi_search(self) -> bool:
        """Whether a multi-search can return the scores of named queries, as a single search can.

        With scores, ``matched_queries`` of a hit is ``{"recent": 1.5}``. Without scores, it is ``["recent"]``.
        """
        return self is Engine.ELASTICSEARCH

    @property
    def no_pipeline(self) -> dict[str, Any]:
        """The URL parameters that turn off an index's default search pipeline. Empty if the engine has none."""
        return {"search_pipeline": "_none"} if self.has_pipelines else {}

    def shard_preference(self, shard: str) -> str:
        """Return the ``preference`` that sends a search to one shard.

        On OpenSearch, the primary copy of the shard answers. On Elasticsearch, a request cannot select the primary, and
        any copy answers. Up to the shard's global checkpoint, all copies have the same writes.
        """
        return f"_shards:{shard}" if self is Engine.ELASTICSEARCH else f"_shards:{shard}|_primary"


_BACKING_INDEX = re.compile(r"(?:.*-)?\.ds-(?P<stream>.+?)(?:-\d{4}\.\d{2}\.\d{2})?-\d{6,}")
"""Matches the index of a data stream: ``.ds-logs-000001``, or on Elasticsearch ``.ds-logs-2024.05.01-000001``.

After a shrink or a restore, the name has a prefix, as in ``shrink-ab12-.ds-logs-2024.05.01-000001``.
"""


def find_data_stream(index: str) -> str:
    """Return the data stream that an index belongs to: ``logs`` for ``.ds-logs-000001``.

    An index outside data streams is returned unchanged.
    """
    match = _BACKING_INDEX.fullmatch(index)
    return index if match is None else match["stream"]
