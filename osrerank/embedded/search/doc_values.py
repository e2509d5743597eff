"""``docvalue_fields``: values of fields as a search's columns have them, also of those that ``_source`` leaves out."""

import json
from typing import Any

from osrerank.embedded.errors import Json, as_list, no_field_data, only, unsupported
from osrerank.embedded.mapping.fields import Field, leaves
from osrerank.embedded.mapping.values import millis_text
from osrerank.embedded.storage.index import Snapshot


class DocValues:
    """Reads the values of hits.

    Args:
        wanted: of a search's body: names, or objects with ``field``.
        snapshot: of the index.

    Raises:
        Fault: 400 for a text field, or a field with a format.
    """

    def __init__(self, wanted: list[Any], snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        named = [_name(one) for one in wanted]
        self._fields = [field for name in named if (field := snapshot.fields.by_path.get(name)) is not None]
        for field in self._fields:
            if field.column == "text":
                raise no_field_data(field.path)

    def of(self, seq: int) -> dict[str, list[Any]]:
        """Return the values of the document with a sequence number, ascending; of one replaced since, none."""
        source = self._snapshot.store.source_of(self._snapshot.row, seq) if self._fields else None
        if source is None:
            return {}
        by_source: dict[str, list[Any]] = {}
        for path, value in leaves(json.loads(source)):
            by_source.setdefault(path, []).append(value)
        found = {field.path: _values(field, by_source.get(field.source, [])) for field in self._fields}
        return {path: values for path, values in found.items() if values}


def doc_values_wanted(body: Json) -> list[Any]:
    """Return the ``docvalue_fields`` of a search's body."""
    return as_list(body.get("docvalue_fields") or [], "docvalue_fields")


def _name(wanted: Any) -> str:
    if not isinstance(wanted, dict):
        return str(wanted)
    only("docvalue_fields", wanted, frozenset({"field", "format"}))
    if wanted.get("format") not in (None, "use_field_mapping"):
        raise unsupported("[docvalue_fields.format]")
    return str(wanted.get("field"))


def _values(field: Field, given: list[Any]) -> list[Any]:
    converted = [one for one in map(field.convert, given) if one is not None]
    unique = sorted(set(converted) if field.column == "keyword" else converted)
    if field.kind == "date":
        return [millis_text(one) for one in unique]
    return [bool(one) for one in unique] if field.kind == "boolean" else unique
