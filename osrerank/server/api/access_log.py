"""Write the access log, which has a line of JSON for each request. By default, it has no queries or documents."""

import contextlib
import json
import logging
import re
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-Id"
VALID_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Matches 1 to 128 printable ASCII characters other than spaces."""
ACCESS_RECORD = "osrerank.record"
"""The key in the ASGI scope of a dict to which routes add values for the access log: the numbers ``documents`` and
``cached``, and ``questions``, which are the request's queries with their documents."""


class _RaisingHandler(logging.Handler):
    """Raises the error of a line that cannot be written. Python's handlers print it with the line, and its texts."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - Python's signature
        error = sys.exception()
        assert error is not None
        raise error


class _FileHandler(_RaisingHandler, WatchedFileHandler):
    pass


class _StreamHandler(_RaisingHandler, logging.StreamHandler[Any]):
    pass


class AccessLog:
    """Writes the access log. If logrotate moves or deletes the file, the next line goes to a new file.

    Args:
        file: the path of the file, or ``-`` for standard output.
        logs_texts: whether the log contains queries and documents.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, file: str, *, logs_texts: bool = False) -> None:
        self.logs_texts = logs_texts
        self._throttle = LogThrottle()
        try:
            if file == "-":
                self._handler: logging.Handler = _StreamHandler(sys.stdout)
            else:
                self._handler = _FileHandler(Path(file), encoding="utf-8")
        except OSError as error:
            reason = f"cannot write the access log {file} ({error.strerror}): choose another --access-log"
            raise ConfigError(reason, setting="access_log", source="flag") from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line with the current time and a request's values, such as {"status": 200, "ms": 12.5}.

        A line that cannot be written, for example because the disk is full, is lost.
        """
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        try:
            self._handler.handle(logging.makeLogRecord({"msg": line}))
        except OSError as error:
            if self._throttle.should_log():
                logger.warning(
                    "[access-log-lost] the access log cannot be written: %s; not logged again for a minute", error
                )

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what could not be written before cannot be written now
            self._handler.close()


def request_id(header: bytes) -> str:
    """Return the id that a client sent in the header `REQUEST_ID_HEADER` if it is valid, or else a new random id."""
    text = header.decode("latin-1")
    return text if VALID_ID.fullmatch(text) else uuid.uuid4().hex
