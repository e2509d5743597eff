"""Runs OpenSearch's own REST tests in YAML, with each search both plain and reranked.

Their language: https://github.com/opensearch-project/OpenSearch/blob/main/rest-api-spec/.../test/README.asciidoc. What
these files do not use is left out.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opensearchpy
import yaml

FEATURES = {"headers", "allowed_warnings", "warnings", "node_selector"}
STATUSES = {
    "bad_request": {400},
    "unauthorized": {401},
    "forbidden": {403},
    "missing": {404},
    "request_timeout": {408},
    "conflict": {409},
    "unavailable": {503},
    "request": set(range(400, 600)),
}
Send = Callable[[str, dict[str, Any], Any], Any]
"""Sends a request, given the API's name, its arguments and headers, and returns the response's body."""


class _Loader(yaml.SafeLoader):
    """Reads YAML as Java's reader does: a date, ``on`` or ``12:30`` is a string, ``1e3`` is a number."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _form, _first in (
    ("bool", "true|false", "tf"),
    ("int", r"-?(0|[1-9]\d*)", "-0123456789"),
    ("float", r"-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", "-.0123456789"),
    ("null", "~|null|", ["~", "n", ""]),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), list(_first))


class Skipped(Exception):  # noqa: N818 - not an error
    """A test that asks for what this runner or this version does not have."""


class Refused(Exception):  # noqa: N818 - judged by the test
    """An error that the engine answered.

    Attributes:
        status: of the response.
        body: of the response.
        is_by_name: whether the embedded engine names what it does not support.
    """

    def __init__(self, error: opensearchpy.TransportError) -> None:
        super().__init__(str(error))
        self.status, self.body = error.status_code, error.info
        self.is_by_name = error.status_code == 400 and "embedded engine" in str(error.info)


@dataclass(frozen=True)
class Case:
    """A test: its name, and the steps of its file's setup, its own, and of the teardown."""

    name: str
    steps: list[dict[str, Any]]
    teardown: list[dict[str, Any]]


def cases_of(file: Path) -> list[Case]:
    """Return the tests of a file."""
    parts: dict[str, Any] = {}
    for document in yaml.load_all(file.read_text(), _Loader):
        parts |= document or {}
    setup, teardown = parts.pop("setup", None) or [], parts.pop("teardown", None) or []
    return [Case(name, setup + (steps or []), teardown) for name, steps in parts.items()]


def run(case: Case, send: Send, version: str) -> None:
    """Run a test.

    Raises:
        Skipped: it is not for this version, or needs what this runner lacks.
        AssertionError: the engine answers differently.
        Refused: the engine refuses a request that should succeed.
    """
    values: dict[str, Any] = {}
    answer: Any = None
    for kind, wanted in (item for step in case.steps for item in step.items()):
        if kind == "skip":
            _skip(wanted, version)
        elif kind == "do":
            answer = _done(_filled(wanted, values), send)
        elif kind == "set":
            values |= {name: _at(answer, path, values) for path, name in wanted.items()}
        else:
            _check(kind, wanted, answer, values)


def undo(case: Case, send: Send) -> None:
    """Run a test's teardown, whatever it meets."""
    for step in case.teardown:
        try:
            _done(step["do"], send)
        except (Refused, AssertionError):
            continue


def _skip(wanted: Mapping[str, Any], version: str) -> None:
    features = wanted.get("features", [])
    if lacking := {features} - FEATURES if isinstance(features, str) else set(features) - FEATURES:
        raise Skipped(f"features {lacking}")
    for versions in str(wanted.get("version", "")).split(","):
        least, dash, most = versions.partition("-")
        if versions.strip() == "all" or (dash and _number(least, "0") <= _number(version, "") <= _number(most, "999")):
            raise Skipped(str(wanted.get("reason")))


def _number(version: str, default: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.strip() or default)))


def _done(wanted: dict[str, Any], send: Send) -> Any:
    """Send the request of a step, and return the answer, or the error that the step expects."""
    wanted = {
        name: value for name, value in wanted.items() if name not in ("warnings", "allowed_warnings", "node_selector")
    }
    catch, headers = wanted.pop("catch", None), wanted.pop("headers", None)
    if len(wanted) != 1:
        raise Skipped("the file is indented oddly")
    ((api, arguments),) = wanted.items()
    try:
        answer = send(api, dict(arguments or {}), headers)
    except Refused as refused:
        if catch is None or refused.is_by_name:
            raise
        if catch.startswith("/"):
            text = refused.body if isinstance(refused.body, str) else json.dumps(refused.body, ensure_ascii=False)
            said = f"{text} {text.encode().decode('unicode_escape')}" if "\\" in text else text
            assert re.search(catch.strip()[1:-1], said), f"{catch}: {said}"
        elif refused.status not in STATUSES[catch]:
            raise AssertionError(f"{catch}: {refused.status}") from refused
        return refused.body
    assert catch is None, f"{api} should be refused: {catch}"
    return answer


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value with the stored ones in place of their names."""
    if isinstance(value, dict):
        return {_filled(name, values): _filled(inner, values) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, values) for inner in value]
    if isinstance(value, str) and "$" in value:
        if value[1:] in values and value[0] == "$":
            return values[value[1:]]
        return re.sub(r"\$\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), value)
    return value


def _at(answer: Any, path: str, values: Mapping[str, Any]) -> Any:
    """Return the value at a path of an answer; None if there is none."""
    if path in ("$body", ""):
        return answer
    for name in re.split(r"(?<!\\)\.", path):
        part = _filled(name.replace("\\.", "."), values)
        if isinstance(answer, list):
            answer = answer[int(part)] if int(part) < len(answer) else None
        elif isinstance(answer, dict):
            if part == "_arbitrary_key_":
                return next(iter(answer))
            answer = answer.get(part)
        else:
            return None
    return answer


def _check(kind: str, wanted: Any, answer: Any, values: Mapping[str, Any]) -> None:
    if kind in ("is_true", "is_false"):
        value = _at(answer, wanted, values)
        assert (value not in (None, False, "", "false", 0)) == (kind == "is_true"), f"{kind} {wanted}: {value}"
        return
    for path, raw in wanted.items():
        expected, value = _filled(raw, values), _at(answer, path, values)
        message = f"{kind} {path}: {value!r}, not {expected!r}"
        if kind == "match" and isinstance(expected, str) and re.fullmatch(r"/.*/", expected.strip(), re.DOTALL):
            assert re.search(expected.strip()[1:-1], str(value), re.VERBOSE), message
        elif kind == "match":
            assert value == expected or _is_near(value, expected), message
        elif kind == "length":
            assert len(value or ()) == int(expected), message
        else:
            assert {"gt": value > expected, "gte": value >= expected, "lt": value < expected, "lte": value <= expected}[
                kind
            ], message


def _is_near(value: Any, expected: Any) -> bool:
    """Return whether two numbers are the same in double precision."""
    return isinstance(value, float) and isinstance(expected, int | float) and value == float(expected)


def sender(client: opensearchpy.OpenSearch) -> Send:
    """Return what sends requests through the methods of a client."""

    def send(api: str, arguments: dict[str, Any], headers: Any = None, **more: Any) -> Any:
        method: Any = client
        for name in api.split("."):
            method = getattr(method, name)
        try:
            return _called(method, arguments | ({"headers": headers} if headers else {}) | more)
        except opensearchpy.ConnectionError as error:
            if isinstance(error.info, ValueError):
                raise Skipped(f"opensearch-py does not send it: {error}") from error
            raise AssertionError(str(error)) from error
        except opensearchpy.TransportError as error:
            raise Refused(error) from error
        except ValueError as error:
            raise Skipped(f"opensearch-py does not send it: {error}") from error

    return send


def _called(method: Any, arguments: dict[str, Any]) -> Any:
    """Call a method of opensearch-py, with what it does not know as parameters of the URL."""
    try:
        return method(**arguments)
    except TypeError:
        known = {name: value for name, value in arguments.items() if name in inspect.signature(method).parameters}
        params = {name: value for name, value in arguments.items() if name not in known}
        escaped = {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()}
        return method(**known, params=escaped)
