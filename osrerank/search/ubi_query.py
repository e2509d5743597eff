"""Read the User Behavior Insights (UBI) object ``ext.ubi`` from a search's body.

OpenSearch's UBI plugin would record all candidates of a first pass, most of which the user never sees. So osrerank
removes ``ext.ubi`` from the request, and `osrerank.search.ubi` records the page that the user gets. The format is that
of the query request in UBI schema 1.3: https://o19s.github.io/ubi/docs/html/1.3.0/query.request.schema.html
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from osrerank.errors import ConfigError
from osrerank.retrieval.first_pass import read_count

MAX_CHARACTERS = 100
"""The maximum length of ids and names in the schema."""


@dataclass(frozen=True, slots=True)
class UbiQuery:
    """The content of a search's ``ext.ubi``.

    Attributes:
        query_id: the id that links clicks to the search. If the caller sets none, it is a random UUID.
        user_query: the query as the user typed it. If empty, the query text that hits are reranked by is recorded.
        client_id: the id of the browser or application that searches.
        application: the part of the application that searches.
        object_id_field: the field whose value identifies a hit. If empty, it is ``_id``.
        attributes: the caller's ``query_attributes``.
        query: the search's body as JSON text, without ``ext.ubi``.
        first_rank: the rank of the page's first hit, from 1.
    """

    query_id: str
    user_query: str = ""
    client_id: str = ""
    application: str = ""
    object_id_field: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    first_rank: int = 1

    @classmethod
    def from_body(cls, body: Mapping[str, Any], params: Mapping[str, Any]) -> Self | None:
        """Parse the object ``ext.ubi`` in a search's body. Return None if the body has no such object.

        Args:
            body: the search's body.
            params: the search's URL parameters, which may set ``from``.

        Raises:
            ConfigError: a value of ``ext.ubi`` does not conform to the schema.
        """
        ubi = (body.get("ext") or {}).get("ubi")
        if ubi is None:
            return None
        if not isinstance(ubi, Mapping):
            raise _invalid_entry("ext.ubi", ubi, "an object with query_id, user_query and so on")
        names = ("query_id", "client_id", "application", "object_id_field")
        texts = {name: _short_text(ubi, name) for name in names}
        attributes = ubi.get("query_attributes") or {}
        if not isinstance(attributes, Mapping):
            raise _invalid_entry("ext.ubi.query_attributes", attributes, "an object")
        offset = read_count(params, body, ("from", "from_"), 0) or 0
        return cls(
            texts.pop("query_id") or str(uuid.uuid4()),
            _user_query(ubi.get("user_query")),
            **texts,
            attributes=dict(attributes),
            query=json.dumps(without_ubi(body), ensure_ascii=False, default=str),
            first_rank=offset + 1,
        )


def without_ubi(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a search's body without ``ext.ubi``."""
    ext = body.get("ext") or {}
    if "ubi" not in ext:
        return body
    other_ext = {name: value for name, value in ext.items() if name != "ubi"}
    without_ext = {name: value for name, value in body.items() if name != "ext"}
    return {**without_ext, "ext": other_ext} if other_ext else without_ext


def _user_query(value: Any) -> str:
    """Return the user's query from a text or, as in newer versions of the plugin, an object ``{"text": "..."}``."""
    text = value.get("text", "") if isinstance(value, Mapping) else value
    if text is None:
        return ""
    if not isinstance(text, str):
        raise _invalid_entry("ext.ubi.user_query", value, 'a text, or an object with "text"')
    return text


def _short_text(ubi: Mapping[str, Any], name: str) -> str:
    """Return the value of a key of ``ext.ubi``, or an empty text if the key is missing."""
    value = ubi.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise _invalid_entry(f"ext.ubi.{name}", value, f"a text of at most {MAX_CHARACTERS} characters")
    return value


def _invalid_entry(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name} of the search is {value!r:.100}; it must be {expected}", setting=name, source="body")
