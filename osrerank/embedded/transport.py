"""opensearch-py connections that call the engine instead of sending HTTP."""

import json
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from opensearchpy import Transport
from opensearchpy.connection import Connection
from opensearchpy.serializer import Serializer

from osrerank._threads import NATIVE_CODE
from osrerank.embedded.errors import Fault
from osrerank.embedded.rest.endpoints import router
from osrerank.embedded.rest.routing import Response
from osrerank.embedded.storage.engine import Engine

JSON = "application/json; charset=UTF-8"
LOGS = [logging.getLogger(name) for name in ("opensearch", "opensearchpy.trace")]
"""opensearch-py's loggers, which log whole responses at DEBUG."""
DECODED = "application/x-osrerank-decoded"
"""The content type of a body that is passed on as Python objects, so that hits are not turned to JSON and back."""
Reply = tuple[int, dict[str, str], Any]
"""Status, headers and body of an HTTP response."""


class AsItIs(Serializer):
    """opensearch-py's serializer of `DECODED` bodies."""

    mimetype = DECODED

    def loads(self, s: Any) -> Any:
        return s


SERIALIZERS = {DECODED: AsItIs()}


def decoding(options: dict[str, Any]) -> dict[str, Any]:
    """Return a transport's options, with the serializer of `DECODED` bodies added to the caller's own."""
    return {**options, "serializers": {**SERIALIZERS, **(options.get("serializers") or {})}}


class EmbeddedConnection(Connection):
    """A connection to the engine of a folder; errors, retries and decoding are opensearch-py's own.

    Args:
        embedded_path: the folder; created at the first request if absent.
    """

    def __init__(self, *, embedded_path: Path, **options: Any) -> None:
        super().__init__(**{key: value for key, value in options.items() if key != "metrics"})
        self._folder = Path(embedded_path)
        self.host = f"embedded:{self._folder}"
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The folder's engine, opened at first use."""
        if self._engine is None:
            self._engine = Engine.shared(self._folder)
        return self._engine

    def perform_request(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,  # noqa: ARG002 - opensearch-py's signature; what runs in this process cannot be left waiting
        ignore: Collection[int] = (),
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - opensearch-py's signature
    ) -> Reply:
        began = time.perf_counter()
        response = self._answer(method, url, params or {}, body)
        if response.is_own and not any(log.isEnabledFor(logging.DEBUG) for log in LOGS):
            self.log_request_success(method, f"{self.host}{url}", url, None, 200, "", time.perf_counter() - began)
            return 200, {"content-type": DECODED}, response.body
        is_text = isinstance(response.body, str)
        text = response.body if is_text else json.dumps(response.body, ensure_ascii=False)
        kind = "text/plain; charset=UTF-8" if is_text else JSON
        passed = time.perf_counter() - began
        full = f"{self.host}{url}"
        if not 200 <= response.status < 300 and response.status not in ignore:
            self.log_request_fail(method, full, url, body, passed, response.status, text)
            self._raise_error(response.status, text, kind.partition(";")[0])
        self.log_request_success(method, full, url, body, response.status, text, passed)
        self._raise_warnings(response.warnings)
        return response.status, {"content-type": kind}, text

    def _answer(self, method: str, url: str, params: Mapping[str, Any], body: bytes | None) -> Response:
        try:
            text = body.decode("utf-8", "surrogatepass") if body else ""
            with NATIVE_CODE:
                return router.answer(self.engine, method, url, params, text)
        except Fault as fault:
            return Response(fault.body(), fault.status)

    def close(self) -> None:
        """Release the engine; the last connection of the process commits pending writes and closes it."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.release()


class EmbeddedTransport(Transport):
    """opensearch-py's transport over ``EmbeddedConnection``; ``embedded_path`` names the folder."""

    DEFAULT_CONNECTION_CLASS = EmbeddedConnection

    def __init__(self, *hosts: Any, **options: Any) -> None:
        super().__init__(*hosts, **decoding(options))
