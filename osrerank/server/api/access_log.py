"""Write the access log, which has a line of JSON for each request. By default, it has no queries or documents."""

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

from osrerank.errors import ConfigError

REQUEST_ID_HEADER = "X-Request-Id"
VALID_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Matches 1 to 128 printable ASCII characters other than spaces."""
ACCESS_RECORD = "osrerank.record"
"""The key in the ASGI scope of a dict to which routes add values for the access log: the numbers ``documents`` and
``cached``, and ``questions``, which are the request's queries with their documents."""


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
        try:
            if file == "-":
                self._handler: logging.Handler = logging.StreamHandler(sys.stdout)
            else:
                self._handler = WatchedFileHandler(Path(file), encoding="utf-8")
        except OSError as error:
            reason = f"cannot write the access log {file} ({error.strerror}): choose another --access-log"
            raise ConfigError(reason, setting="access_log", source="flag") from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a line with the current time and a request's values, such as {"status": 200, "ms": 12.5}."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def request_id(header: bytes) -> str:
    """Return the id that a client sent in the header `REQUEST_ID_HEADER` if it is valid, or else a new random id."""
    text = header.decode("latin-1")
    return text if VALID_ID.fullmatch(text) else uuid.uuid4().hex
