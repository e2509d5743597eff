"""Find out which search engine a client speaks to, once."""

import logging
from collections.abc import Generator, Mapping
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.requests import SideRequest
from osrerank.types.engine import Engine
from osrerank.types.failed import Failed

logger = logging.getLogger(__name__)


class EngineFinder:
    """Asks the search engine what it is, and remembers the answer. Safe to use from many threads.

    Args:
        engine: the engine, if it is known; else None.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine
        self._log_throttle = LogThrottle()

    @property
    def known(self) -> Engine | None:
        """The engine; None until a lookup has succeeded."""
        return self._engine

    def find(self) -> Generator[SideRequest, Any, Engine]:
        """Return the engine; yield the requests to look it up, none if it is known."""
        if self._engine is not None:
            return self._engine
        try:
            self._engine = yield from _read()
        except Failed as error:
            if self._log_throttle.is_due(""):
                logger.warning(
                    "[engine-unread] the search engine does not say what it is: osrerank assumes OpenSearch; name it "
                    "with OSRERANK_ENGINE or engine=: %s",
                    error,
                )
            return Engine.OPENSEARCH
        return self._engine


def _read() -> Generator[SideRequest, Any, Engine]:
    """Yield the requests that identify the engine, and return it.

    ``GET /`` needs a right on the cluster. If a user lacks it, the path ``/_security/_authenticate`` decides: only
    Elasticsearch has it, and every user may read it.
    """
    try:
        answer = yield SideRequest("GET", "/")
    except Failed as failed:
        if not failed.is_forbidden and not failed.is_absent:
            raise
    else:
        version = answer.get("version") if isinstance(answer, Mapping) else None
        is_elasticsearch = isinstance(version, Mapping) and "build_flavor" in version
        return Engine.ELASTICSEARCH if is_elasticsearch else Engine.OPENSEARCH
    try:
        yield SideRequest("GET", "/_security/_authenticate")
    except Failed as failed:
        if failed.status is None or failed.is_overload:
            raise
        return Engine.OPENSEARCH
    return Engine.ELASTICSEARCH
