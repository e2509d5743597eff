"""The connection and transport with which opensearch-py calls the embedded engine instead of an HTTP server."""

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
from osrerank.embedded.errors import ApiError
from osrerank.embedded.rest.endpoints import router
from osrerank.embedded.rest.routing import Response
from osrerank.embedded.storage.engine import Engine

LOGGERS = [logging.getLogger(name) for name in ("opensearch", "opensearchpy.trace")]
"""opensearch-py's loggers. At DEBUG, they log whole responses, which must then be JSON text."""
DECODED = "application/x-osrerank-decoded"
"""The content type of a response body that consists of Python objects instead of JSON text, which saves parsing it."""
HttpResponse = tuple[int, dict[str, str], Any]
"""Status, headers and body of an HTTP response."""


class PassThroughSerializer(Serializer):
    """Tells opensearch-py to return `DECODED` bodies unchanged."""

    mimetype = DECODED

    def loads(self, s: Any) -> Any:
        return s


def with_decoded_serializer(options: dict[str, Any]) -> dict[str, Any]:
    """Return a transport's options with the serializer for `DECODED` bodies added."""
    return {**options, "serializers": {DECODED: PassThroughSerializer(), **(options.get("serializers") or {})}}


class EmbeddedConnection(Connection):
    """Sends opensearch-py's requests to the embedded engine, which stores its indices in a folder.

    Args:
        embedded_path: the folder. The first request creates it if it is missing.
    """

    def __init__(self, *, embedded_path: Path, **options: Any) -> None:
        super().__init__(**options)
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
        timeout: float | None = None,  # noqa: ARG002 - opensearch-py's signature; the engine has no timeouts
        ignore: Collection[int] = (),
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - opensearch-py's signature
    ) -> HttpResponse:
        began_at_s = time.perf_counter()
        response = self._handle(method, url, params or {}, body)
        full_url = f"{self.host}{url}"
        logs_body = any(logger.isEnabledFor(logging.DEBUG) for logger in LOGGERS)
        if response.can_share_body and not logs_body:  # only successful responses can share their body
            took_s = time.perf_counter() - began_at_s
            self.log_request_success(method, full_url, url, None, response.status, "", took_s)
            return response.status, {"content-type": DECODED}, response.body
        is_text = isinstance(response.body, str)
        text = response.body if is_text else json.dumps(response.body, ensure_ascii=False)
        content_type = "text/plain" if is_text else "application/json"
        took_s = time.perf_counter() - began_at_s
        if not 200 <= response.status < 300 and response.status not in ignore:
            self.log_request_fail(method, full_url, url, body, took_s, response.status, text)
            self._raise_error(response.status, text, content_type)
        self.log_request_success(method, full_url, url, body, response.status, text, took_s)
        self._raise_warnings(response.warnings)
        return response.status, {"content-type": f"{content_type}; charset=UTF-8"}, text

    def _handle(self, method: str, url: str, params: Mapping[str, Any], body: bytes | None) -> Response:
        try:
            text = body.decode("utf-8", "surrogatepass") if body else ""
            with NATIVE_CODE:  # the interpreter's exit waits for it
                return router.handle(self.engine, method, url, params, text)
        except ApiError as error:
            return Response(error.response_body(), error.status)

    def close(self) -> None:
        """Release the engine. The last connection of the process commits pending writes and closes the engine."""
        engine = self._engine
        self._engine = None
        if engine is not None:
            engine.release()


class EmbeddedTransport(Transport):
    """An opensearch-py transport to the embedded engine in the folder ``embedded_path``."""

    DEFAULT_CONNECTION_CLASS = EmbeddedConnection

    def __init__(self, *hosts: Any, **options: Any) -> None:
        super().__init__(*hosts, **with_decoded_serializer(options))
