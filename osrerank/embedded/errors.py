"""Create errors with OpenSearch's status codes and error bodies, and check the values in requests.

The functions named ``..._error`` return an exception for the caller to raise. The others raise it themselves.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An error that becomes a response with an HTTP status and a JSON body, as in OpenSearch.

    Users of the client never see this exception, because opensearch-py raises ``RequestError`` or the like instead.

    Attributes:
        status: the HTTP status.
        kind: OpenSearch's ``type`` of the error, such as ``parsing_exception``.
        reason: a sentence that names the wrong clause or value and, if there is one, the fix.
        extra: further keys of the error object, such as ``index``.
    """

    def __init__(self, status: int, kind: str, reason: str, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind
        self.reason = reason
        self.extra = dict(extra or {})

    def error_object(self) -> Json:
        """Return the error as a JSON object, as it appears in a bulk item or in ``root_cause``."""
        return {"type": self.kind, "reason": self.reason, **self.extra}

    def response_body(self) -> Json:
        """Return the whole response body."""
        return {"error": {"root_cause": [self.error_object()], **self.error_object()}, "status": self.status}


def parsing_error(reason: str) -> ApiError:
    """Return a 400 for a request body that cannot be parsed."""
    return ApiError(400, "parsing_exception", reason)


def argument_error(reason: str) -> ApiError:
    """Return a 400 for an invalid argument."""
    return ApiError(400, "illegal_argument_exception", reason)


def unsupported_error(feature: str, fix: str = "use an OpenSearch server for it") -> ApiError:
    """Return a 400 for a feature of OpenSearch that this engine does not have, such as ``[boost] in [match]``."""
    return parsing_error(f"the embedded engine does not support {feature}; {fix}")


def no_field_data_error(path: str) -> ApiError:
    """Return a 400 for sorting or counting by the values of a text field."""
    return argument_error(
        "Text fields are not optimised for operations that require per-document field data like aggregations and"
        f" sorting: use a keyword field instead of [{path}]"
    )


def missing_index_error(name: str) -> ApiError:
    """Return a 404 for an unknown index or alias."""
    resource = {"index": name, "resource.id": name, "resource.type": "index_or_alias", "index_uuid": "_na_"}
    return ApiError(404, "index_not_found_exception", f"no such index [{name}]", resource)


def index_exists_error(name: str, uuid: str) -> ApiError:
    """Return a 400 for creating an index that exists."""
    reason = f"index [{name}/{uuid}] already exists"
    return ApiError(400, "resource_already_exists_exception", reason, {"index": name, "index_uuid": uuid})


def parse_json(text: str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: the text is not JSON, contains NaN or an infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def require_object(value: Any, name: str) -> Json:
    """Return the value of the parameter ``name``, or raise a 400 if it is not an object."""
    if not isinstance(value, dict):
        raise parsing_error(f"[{name}] must be an object, found {value!r:.100}")
    return value


def require_list(value: Any, name: str) -> list[Any]:
    """Return the value of the parameter ``name``, or raise a 400 if it is not a list."""
    if not isinstance(value, list):
        raise parsing_error(f"[{name}] must be a list, found {value!r:.100}")
    return value


def require_string(value: Any, name: str) -> str:
    """Return the value of the parameter ``name``, or raise a 400 if it is not a string."""
    if not isinstance(value, str):
        raise parsing_error(f"[{name}] must be a string, found {value!r:.100}")
    return value


def parse_number(value: Any, name: str) -> float:
    """Convert the parameter ``name``, such as 2 or "2", to a finite number, or raise a 400."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # NaN fails the check below
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise parsing_error(f"[{name}] is not a number: {value!r:.50}")
    return number


def parse_count(value: Any, name: str) -> int:
    """Convert the parameter ``name``, such as 2, "2" or 2.0, to a whole number of at least 0, or raise a 400."""
    is_scalar = isinstance(value, int | float | str) and not isinstance(value, bool)
    number = parse_number(value, name) if is_scalar else math.nan
    if not number.is_integer():
        raise parsing_error(f"[{name}] is not a whole number: {value!r:.50}")
    if number < 0:
        raise argument_error(f"[{name}] parameter cannot be negative, found [{value}]")
    return int(number)


def reject_unknown_keys(clause: str, body: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Raise a 400 that names a clause's first key that is not allowed."""
    for key in body:
        if key not in allowed:
            supported = sorted(allowed)
            raise parsing_error(f"[{clause}] does not support [{key}] in the embedded engine; it supports {supported}")
