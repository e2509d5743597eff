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

REQUEST_ID = "X-Request-Id"
"""The header of every response with the request's id, which the client sets or the server creates."""
USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
RECORD = "osrerank.record"
"""The key of an ASGI scope under which a route stores what the log should have of its request."""


class AccessLog:
    """Writes lines to standard output or to a file; if the file is moved away, a new one is created.

    Args:
        file: the path of the file; ``-`` for standard output.
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


def request_id(header: bytes) -> str:
    """Return a request's id: the client's if it has 1 to 128 printable ASCII characters, else a new one."""
    text = header.decode("latin-1")
    return text if USABLE_ID.fullmatch(text) else uuid.uuid4().hex
