"""Lines of the service's log: time, level, logger and message, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time

from evercount.errors import UnknownName

FORMATS = ("text", "json")


class TextLines(logging.Formatter):
    """`2026-01-31T09:00:00.123Z INFO evercount.service: message`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(TextLines):
    """One JSON object per line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(form: str) -> logging.Logger:
    """Write every line of evercount and uvicorn to standard error.

    Args:
        form: "text" or "json".

    Returns:
        The logger of the service.

    Raises:
        UnknownName: there is no such format.
    """
    if form not in FORMATS:
        raise UnknownName("log format", form, FORMATS)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    for name in ("evercount", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("evercount").setLevel(logging.INFO)
    return logging.getLogger("evercount.service")
