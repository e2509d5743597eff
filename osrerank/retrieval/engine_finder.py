"""Find out whether a client is connected to OpenSearch or Elasticsearch, once per client."""

import logging
from collections.abc import Generator, Mapping
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.requests import SideRequest
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError

logger = logging.getLogger(__name__)


class EngineFinder:
    """Identifies the search engine, unless the settings name it, and remembers it. Safe to use from many threads."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine
        self._log_throttle = LogThrottle()

    @property
    def identified_engine(self) -> Engine | None:
        """The engine. None until it has been identified."""
        return self._engine

    def find(self) -> Generator[SideRequest, Any, Engine]:
        """Return the engine. Yield the requests to identify it, unless it has been identified."""
        if self._engine is not None:
            return self._engine
        try:
            self._engine = yield from _identify()
        except EngineError as error:
            if self._log_throttle.should_log():
                logger.warning(
                    "[engine-unread] osrerank cannot identify the search engine (%s), and assumes OpenSearch; if it "
                    "is Elasticsearch, set OSRERANK_ENGINE=elasticsearch or connect(..., engine='elasticsearch')",
                    error,
                )
            return Engine.OPENSEARCH
        return self._engine


def _identify() -> Generator[SideRequest, Any, Engine]:
    """Ask the search engine what it is.

    ``GET /`` needs a permission on the cluster. If the user does not have it, the second request is
    ``GET /_security/_authenticate``. Only Elasticsearch has this path, and every user may read it.
    """
    try:
        response = yield SideRequest("GET", "/")
    except EngineError as error:
        if not error.is_forbidden and not error.is_absent:
            raise
    else:
        version = response.get("version") if isinstance(response, Mapping) else None
        is_elasticsearch = isinstance(version, Mapping) and "build_flavor" in version  # OpenSearch has none
        return Engine.ELASTICSEARCH if is_elasticsearch else Engine.OPENSEARCH
    try:
        yield SideRequest("GET", "/_security/_authenticate")
    except EngineError as error:
        if error.status is None or error.is_overload:  # no answer to the question; other errors mean no such path
            raise
        return Engine.OPENSEARCH
    return Engine.ELASTICSEARCH
