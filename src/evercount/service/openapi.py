"""The parts of the API's description that the handlers' types cannot say."""

from __future__ import annotations

from typing import Any

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "remedy"],
            "properties": {name: {"type": "string"} for name in ("type", "message", "remedy")},
        }
    },
}

MEANINGS = {
    401: "a token is missing or unknown",
    403: "the token's role does not allow it",
    404: "there is no such thing",
    409: "it is in the way of something that exists or is over",
    413: "the body is too long",
    415: "the body is of another kind",
    422: "the request is not legal",
    425: "a tick has not begun",
    429: "too many requests",
    501: "an optional part is not installed",
    503: "the store cannot be written now",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": ERROR}}}
    for status, meaning in MEANINGS.items()
}

_EVENT: dict[str, Any] = {
    "description": "a key, a list of keys, a number, or an object that holds one of these and may hold user and time",
    "anyOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "array"},
        {
            "type": "object",
            "properties": {
                "key": {},
                "keys": {},
                "value": {},
                "path": {},
                "values": {},
                "edge": {},
                "letter": {},
                "event": {},
                "user": {"type": "string"},
                "time": {"anyOf": [{"type": "string"}, {"type": "number"}]},
            },
            "additionalProperties": False,
        },
    ],
}

EVENTS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "array", "items": _EVENT}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}

DECLARATION: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["name", "query", "budget"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
                        "description": {"type": "string", "maxLength": 2000},
                        "query": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
                        },
                        "budget": {
                            "type": "object",
                            "required": ["epsilon", "delta"],
                            "properties": {
                                "epsilon": {"type": "number", "exclusiveMinimum": 0},
                                "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                                "adjacency": {"enum": ["add-remove", "replace"]},
                                "unit": {"enum": ["event", "user"]},
                                "max_events": {"type": "integer", "minimum": 1},
                            },
                        },
                        "tick": {"type": "string", "pattern": "^(manual|[1-9][0-9]{0,5}(ms|s|m|h|d))$"},
                        "start": {"type": ["string", "null"], "format": "date-time"},
                        "horizon": {"type": ["integer", "null"], "minimum": 1},
                        "late": {"enum": ["drop", "next"]},
                        "public": {"type": "boolean"},
                        "postprocess": {"type": "array", "items": {"enum": ["nonnegative", "integer", "monotone"]}},
                    },
                }
            }
        },
    }
}

TOKEN: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["role"],
                    "additionalProperties": False,
                    "properties": {"role": {"enum": ["admin", "write", "read"]}, "label": {"type": "string"}},
                }
            }
        },
    }
}
