"""Lines of the service's log: time, level, logger and message, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

LINES_PER_MINUTE = 10
CLIENTS = "evercount.service.clients"  # the logger of what clients do wrong


class TextLines(logging.Formatter):
    """`2026-01-31T09:00:00.123Z INFO evercount.service: message`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class JsonLines(TextLines):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Repeated(logging.Filter):
    """Lets few lines of one kind pass in a minute; the next one says how many were left out. For
    lines that any client can cause as often as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[str, tuple[int, int]] = {}  # by kind of line: the minute, and its lines

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg)
        now = int(record.created // 60)
        minute, lines = self._minutes.get(kind, (now, 0))
        if minute != now:
            if lines > LINES_PER_MINUTE:
                left_out = lines - LINES_PER_MINUTE
                record.msg = f"{record.getMessage()} (and {left_out} more before)"
                record.args = None
            lines = 0
        self._minutes[kind] = (now, lines + 1)
        return lines < LINES_PER_MINUTE


def limit_lines() -> None:
    """Let few lines a minute pass of each kind that clients can cause."""
    for name in ("uvicorn.error", CLIENTS):
        logger = logging.getLogger(name)
        others = [one for one in logger.filters if not isinstance(one, Repeated)]
        logger.filters[:] = [*others, Repeated()]


def log_to_stderr(form: Literal["text", "json"]) -> logging.Logger:
    """Write the log of the service to stderr; return its logger."""
    handler = logging.StreamHandler()
    lines = JsonLines if form == "json" else TextLines
    handler.setFormatter(lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("evercount", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("evercount").setLevel(logging.INFO)
    return logging.getLogger("evercount.service")
