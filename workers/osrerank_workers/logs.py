"""Format a worker's log: one line per event, as text or JSON, without texts of queries or documents."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal

NOISY = ("celery.worker.strategy", "celery.app.trace", "celery.worker.consumer.connection", "kombu")
"""Loggers that write a line for every message; only their warnings are shown."""


CODE = re.compile(r"\[([a-z-]+)\] ")
"""Matches the code of a condition at the start of a line; docs/operations.md says what to do about each."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the code and traceback if it has them."""

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
    """Write all records from level INFO up to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
