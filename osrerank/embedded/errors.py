"""The engine's errors, with OpenSearch's error bodies and status codes, and checks of values in requests."""

import json
import math
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class Fault(Exception):  # noqa: N818 - never leaves the engine: the transport turns it into opensearch-py's own errors
    """An error that becomes an error response.

    Attributes:
        status: the HTTP status.
        kind: OpenSearch's ``type`` of the error, such as ``parsing_exception``.
        reason: a sentence with the clause or name that is wrong, and the fix if there is one.
        extra: further keys of the error object, such as ``index``.
    """

    def __init__(self, status: int, kind: str, reason: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind
        self.reason = reason
        self.extra = dict(extra or {})

    def error_object(self) -> Json:
        """Return the error object of a bulk item or a root cause."""
        return {"type": self.kind, "reason": self.reason, **self.extra}

    def response_body(self) -> Json:
        """Return the whole response body."""
        return {"error": {"root_cause": [self.error_object()], **self.error_object()}, "status": self.status}


def parsing_fault(reason: str) -> Fault:
    """Return the 400 for a request body that cannot be parsed."""
    return Fault(400, "parsing_exception", reason)


def argument_fault(reason: str) -> Fault:
    """Return the 400 for an argument that cannot be used."""
    return Fault(400, "illegal_argument_exception", reason)


def unsupported_fault(feature: str, fix: str = "use an OpenSearch server for it") -> Fault:
    """Return the 400 for an OpenSearch feature that this engine lacks. ``feature`` contains the clause in brackets."""
    return parsing_fault(f"the embedded engine does not support {feature}; {fix}")


def no_field_data_fault(path: str) -> Fault:
    """Return the 400 for sorting or counting by a text field."""
    return argument_fault(
        "Text fields are not optimised for operations that require per-document field data like aggregations and"
        f" sorting: use a keyword field instead of [{path}]"
    )


def missing_index_fault(name: str) -> Fault:
    """Return the 404 for an unknown index or alias."""
    resource = {"index": name, "resource.id": name, "resource.type": "index_or_alias", "index_uuid": "_na_"}
    return Fault(404, "index_not_found_exception", f"no such index [{name}]", resource)


def index_exists_fault(name: str, uuid: str) -> Fault:
    """Return the 400 for creating an index that exists."""
    reason = f"index [{name}/{uuid}] already exists"
    return Fault(400, "resource_already_exists_exception", reason, {"index": name, "index_uuid": uuid})


def parse_json(text: str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: it is not JSON, has NaN or an infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def require_object(value: Any, name: str) -> Json:
    """Return the value if it is an object, or raise the 400 for the parameter ``name``."""
    if not isinstance(value, dict):
        raise parsing_fault(f"[{name}] must be an object, found {value!r:.100}")
    return value


def require_list(value: Any, name: str) -> list[Any]:
    """Return the value if it is a list, or raise the 400 for the parameter ``name``."""
    if not isinstance(value, list):
        raise parsing_fault(f"[{name}] must be a list, found {value!r:.100}")
    return value


def require_string(value: Any, name: str) -> str:
    """Return the value if it is a string, or raise the 400 for the parameter ``name``."""
    if not isinstance(value, str):
        raise parsing_fault(f"[{name}] must be a string, found {value!r:.100}")
    return value


def parse_number(value: Any, name: str) -> float:
    """Convert a number or string to a finite number, or raise the 400 for the parameter ``name``."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise parsing_fault(f"[{name}] is not a number: {value!r:.50}")
    return number


def parse_count(value: Any, name: str) -> int:
    """Convert a number or string to a whole number of at least 0, or raise the 400 for the parameter."""
    is_scalar = isinstance(value, int | float | str) and not isinstance(value, bool)
    number = parse_number(value, name) if is_scalar else math.nan
    if not number.is_integer():
        raise parsing_fault(f"[{name}] is not a whole number: {value!r:.50}")
    if number < 0:
        raise argument_fault(f"[{name}] parameter cannot be negative, found [{value}]")
    return int(number)


def reject_unknown_keys(clause: str, body: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Raise the 400 for the first key of a clause that is not allowed."""
    for key in body:
        if key not in allowed:
            known = sorted(allowed)
            raise parsing_fault(f"[{clause}] does not support [{key}] in the embedded engine; it supports {known}")
