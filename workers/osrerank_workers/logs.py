"""Configure a worker's log: one line per event, as text or JSON, without the texts of queries and documents."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal

NOISY_LOGGERS = ("celery.worker.strategy", "celery.app.trace", "celery.worker.consumer.connection", "kombu")
"""Loggers that write a line for every message. Only their warnings are shown."""
CODE = re.compile(r"\[([a-z-]+)\] ")
"""Matches the code at the start of some lines, such as ``[broker-away]``. docs/operations.md explains each code."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the code and traceback if it has them."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        code = CODE.match(message)
        if code:
            content["code"] = code[1]
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure_logs(layout: Literal["text", "json"]) -> None:
    """Write records of level INFO and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text_formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if layout == "json" else text_formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
