"""A worker's log: one line an event, as text or as JSON, without texts of queries or documents."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal

NOISY = ("celery.worker.strategy", "celery.app.trace", "celery.worker.consumer.connection", "kombu")
"""Loggers with a line for every message."""


CODE = re.compile(r"\[([a-z-]+)\] ")
"""A line that names a condition begins with its code; docs/operations.md says what to do about each."""


class JsonFormatter(logging.Formatter):
    """A JSON object a line: time, level, logger, message; code and traceback where there are some."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": (message := record.getMessage()),
        }
        if code := CODE.match(message):
            content["code"] = code[1]
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure_logs(form: Literal["text", "json"]) -> None:
    """Send everything from INFO on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
