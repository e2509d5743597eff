"""Log each request as a line of JSON, without queries and documents unless the operator asks for them."""

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
RECORD = "osrerank.record"
"""The key of a dict in the ASGI scope. Routes add entries for the request's log line to it."""


class AccessLog:
    """Writes the access log. If the file is moved or deleted, as logrotate does, a new one is created.

    Args:
        file: the path of the file, or ``-`` for standard output.
        texts: whether the log contains queries and documents.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, file: str, *, texts: bool = False) -> None:
        self.texts = texts
        try:
            if file == "-":
                self._handler: logging.Handler = logging.StreamHandler(sys.stdout)
            else:
                self._handler = WatchedFileHandler(Path(file), encoding="utf-8")
        except OSError as error:
            reason = f"cannot write the access log {file} ({error.strerror}): choose another --access-log"
            raise ConfigError(reason, setting="access_log", source="flag") from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write the line of a request, and add the time to it."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def request_id(header: bytes) -> str:
    """Return the id in the client's header if it consists of 1 to 128 printable ASCII characters, or else a new id."""
    text = header.decode("latin-1")
    return text if VALID_ID.fullmatch(text) else uuid.uuid4().hex
