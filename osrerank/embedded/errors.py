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
        extra: further keys of the error object, such as ``index``.
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
    """Return the fault for an impossible request body."""
    return Fault(400, "parsing_exception", reason)


def illegal(reason: str) -> Fault:
    """Return the fault for an argument that cannot be used."""
    return Fault(400, "illegal_argument_exception", reason)


def unsupported(what: str, instead: str = "") -> Fault:
    """Return the fault for a feature of OpenSearch that this engine lacks; ``what`` names the clause in brackets."""
    return parsing(f"the embedded engine does not support {what}; {instead or 'use an OpenSearch server for it'}")


def no_field_data(path: str) -> Fault:
    """Return the 400 for sorting or counting by a text field."""
    return illegal(
        "Text fields are not optimised for operations that require per-document field data like aggregations and"
        f" sorting: use a keyword field instead of [{path}]"
    )


def no_such_index(name: str) -> Fault:
    """Return the 404 of an unknown index or alias."""
    resource = {"index": name, "resource.id": name, "resource.type": "index_or_alias", "index_uuid": "_na_"}
    return Fault(404, "index_not_found_exception", f"no such index [{name}]", resource)


def index_exists(name: str, uuid: str) -> Fault:
    """Return the 400 of an index created twice."""
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


def as_object(given: Any, name: str) -> Json:
    """Return the object, or raise the fault that names what must be one."""
    if not isinstance(given, dict):
        raise parsing(f"[{name}] must be an object, found {given!r:.100}")
    return given


def as_list(given: Any, name: str) -> list[Any]:
    """Return the list, or raise the fault that names what must be one."""
    if not isinstance(given, list):
        raise parsing(f"[{name}] must be a list, found {given!r:.100}")
    return given


def as_name(given: Any, name: str) -> str:
    """Return the string, or raise the fault that names what must be one."""
    if not isinstance(given, str):
        raise parsing(f"[{name}] must be a string, found {given!r:.100}")
    return given


def as_number(given: Any, name: str) -> float:
    """Return the finite number, also from a string, or raise the fault that names what must be one."""
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise parsing(f"[{name}] is not a number: {given!r:.50}")
    return number


def as_whole(given: Any, name: str) -> int:
    """Return the whole number of at least 0, also from a string, or raise the fault that names it."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise parsing(f"[{name}] is not a whole number: {given!r:.50}")
    number = as_number(given, name)
    if not number.is_integer():
        raise parsing(f"[{name}] is not a whole number: {given!r:.50}")
    if number < 0:
        raise illegal(f"[{name}] parameter cannot be negative, found [{given}]")
    return int(number)


def only(clause: str, body: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Refuse a clause with an unknown key; the reason names both."""
    for key in body:
        if key not in allowed:
            raise parsing(f"[{clause}] does not support [{key}] in the embedded engine; it knows {sorted(allowed)}")
