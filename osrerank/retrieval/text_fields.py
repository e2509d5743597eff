"""Which fields of an index hold text, from its mapping."""

from collections.abc import Iterator, Mapping
from typing import Any

TEXT_TYPES = {"text", "match_only_text", "search_as_you_type", "semantic"}


def text_fields(properties: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of a mapping's text fields, those of objects with dots."""
    for name, field in properties.items():
        if "properties" in field:
            yield from text_fields(field["properties"], f"{above}{name}.")
        elif field.get("type") in TEXT_TYPES:
            yield f"{above}{name}"
