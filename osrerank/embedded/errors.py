"""The engine's errors: OpenSearch's own error bodies and status codes."""

import json
import math
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class Fault(Exception):  # noqa: N818 - never leaves the engine: the transport turns it into opensearch-py's own errors
    """An error that becomes an error response.

    Attributes:
        status: the HTTP status.
        kind: OpenSearch's ``type``, such as ``parsing_exception``.
        reason: one sentence with the clause or name and, if there is one, the fix.
        extra: more keys for the error object, such as ``index``.
    """

    def __init__(self, status: int, kind: str, reason: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind
        self.reason = reason
        self.extra = dict(extra or {})

    def cause(self) -> Json:
        """Return the error object of a bulk item or a root cause."""
        return {"type": self.kind, "reason": self.reason, **self.extra}

    def body(self) -> Json:
        """Return the whole response body."""
        return {"error": {"root_cause": [self.cause()], **self.cause()}, "status": self.status}


def parsing(reason: str) -> Fault:
    """Return the 400 for a request body that cannot be read."""
    return Fault(400, "parsing_exception", reason)


def illegal(reason: str) -> Fault:
    """Return the 400 for an argument that cannot be used."""
    return Fault(400, "illegal_argument_exception", reason)


def unsupported(what: str, instead: str = "") -> Fault:
    """Return the 400 for a feature of OpenSearch that this engine lacks; ``what`` names the clause in brackets."""
    return parsing(f"the embedded engine does not support {what}; {instead or 'use an OpenSearch server for it'}")


def no_field_data(path: str) -> Fault:
    """Return the 400 for sorting or counting by a text field."""
    return illegal(
        "Text fields are not optimised for operations that require per-document field data like aggregations and"
        f" sorting: use a keyword field instead of [{path}]"
    )


def no_such_index(name: str) -> Fault:
    """Return the 404 for an unknown index or alias."""
    resource = {"index": name, "resource.id": name, "resource.type": "index_or_alias", "index_uuid": "_na_"}
    return Fault(404, "index_not_found_exception", f"no such index [{name}]", resource)


def index_exists(name: str, uuid: str) -> Fault:
    """Return the 400 for creating an index that exists."""
    reason = f"index [{name}/{uuid}] already exists"
    return Fault(400, "resource_already_exists_exception", reason, {"index": name, "index_uuid": uuid})


def parsed_json(text: str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: it is not JSON, has NaN or an infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def as_object(value: Any, name: str) -> Json:
    """Return the value if it is an object; otherwise raise the 400 that says that ``name`` must be one."""
    if not isinstance(value, dict):
        raise parsing(f"[{name}] must be an object, found {value!r:.100}")
    return value


def as_list(value: Any, name: str) -> list[Any]:
    """Return the value if it is a list; otherwise raise the 400 that says that ``name`` must be one."""
    if not isinstance(value, list):
        raise parsing(f"[{name}] must be a list, found {value!r:.100}")
    return value


def as_name(value: Any, name: str) -> str:
    """Return the value if it is a string; otherwise raise the 400 that says that ``name`` must be one."""
    if not isinstance(value, str):
        raise parsing(f"[{name}] must be a string, found {value!r:.100}")
    return value


def as_number(value: Any, name: str) -> float:
    """Return a finite number, given as a number or a string; otherwise raise the 400 that names the parameter."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise parsing(f"[{name}] is not a number: {value!r:.50}")
    return number


def as_whole(value: Any, name: str) -> int:
    """Return a whole number of at least 0, given as a number or a string; otherwise raise the 400 that names it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise parsing(f"[{name}] is not a whole number: {value!r:.50}")
    number = as_number(value, name)
    if not number.is_integer():
        raise parsing(f"[{name}] is not a whole number: {value!r:.50}")
    if number < 0:
        raise illegal(f"[{name}] parameter cannot be negative, found [{value}]")
    return int(number)


def reject_unknown_keys(clause: str, body: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Raise a 400 if a clause has an unknown key; the message has the clause and the key."""
    for key in body:
        if key not in allowed:
            raise parsing(f"[{clause}] does not support [{key}] in the embedded engine; it supports {sorted(allowed)}")
