"""One JSON line for each request. It has nothing of queries and documents unless that is asked for."""

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

REQUEST_ID = "X-Request-Id"
"""The header with a request's id: the client's, or one made here; every answer carries it."""
USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
RECORD = "osrerank.record"
"""Key of an ASGI scope: what a route says of its request."""


class AccessLog:
    """Writes lines to a file, which may be moved away and is then made anew, or to standard output.

    Args:
        file: its path; ``-`` for standard output.
        texts: whether queries and documents are written, too.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, file: str, *, texts: bool = False) -> None:
        self.texts = texts
        try:
            self._handler: logging.Handler = (
                logging.StreamHandler(sys.stdout) if file == "-" else WatchedFileHandler(Path(file), encoding="utf-8")
            )
        except OSError as error:
            reason = f"the access log {file} cannot be written ({error.strerror}): choose another --access-log"
            raise ConfigError(reason, setting="access_log", source="flag") from None

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write a request's line, with the time."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def request_id(given: bytes) -> str:
    """Return a request's id: the given one if it is of 1 to 128 printable ASCII characters, else a new one."""
    text = given.decode("latin-1")
    return text if USABLE_ID.fullmatch(text) else uuid.uuid4().hex
