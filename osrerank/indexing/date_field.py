"""Find the documents that changed since a build by a date field, for engines that give no sequence numbers."""

from dataclasses import replace
from typing import Any, NamedTuple, Self

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.stored_position import SidePosition
from osrerank.retrieval.requests import is_embedded

DATES = ("date", "date_nanos")
NUMBERS = ("long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long")
"""The types of the fields by which changes can be found."""


class Changes(NamedTuple):
    """The changes in an index since a build, found by a field that grows with each change.

    Attributes:
        saved: the stored position; it has the highest value of the field at the last such build.
        newest: the field's highest value now; None if no document has the field.
        field: the field's name.
        is_date: whether the field is a date, with values in milliseconds.
    """

    saved: SidePosition
    newest: float | None
    field: str
    is_date: bool

    @classmethod
    def of(cls, client: Client, index: str, saved: SidePosition, field: str) -> Self:
        """Request a field's highest value from the cluster; return the changes up to that value.

        Raises:
            ConfigError: the engine is the embedded one, or the field is not a date or number.
        """
        if is_embedded(client):
            reason = "the embedded engine needs no date field: write --follow alone"
            raise ConfigError(reason, setting="follow", source="flag")
        kinds = {*_types(client, index, field)}
        if len(kinds) != 1 or not kinds <= {*DATES, *NUMBERS}:
            raise ConfigError(f"{field} is not a date or number field of {index}", setting="follow", source="flag")
        body = {"size": 0, "aggs": {"newest": {"max": {"field": field}}}}
        newest = client.search(index=index, body=body)["aggregations"]["newest"]["value"]
        saved.load()
        return cls(saved, newest, field, kinds <= {*DATES})

    @property
    def query(self) -> dict[str, Any]:
        """The query for the documents that changed and those without the field."""
        last = self.saved.position.newest
        if last is None:
            return {"match_all": {}}
        bounds = {"gte": int(last), "format": "epoch_millis"} if self.is_date else {"gte": last}
        without = {"bool": {"must_not": [{"exists": {"field": self.field}}]}}
        return {"bool": {"should": [{"range": {self.field: bounds}}, without]}}

    def keep(self) -> None:
        """Store in the side index that all changes up to the newest are built."""
        if self.newest is not None:
            self.saved.change(lambda position: replace(position, newest=self.newest))


def _types(client: Client, index: str, field: str) -> set[str]:
    mappings = client.indices.get_field_mapping(fields=field, index=index)[index]["mappings"]
    return {str(definition["type"]) for entry in mappings.values() for definition in entry["mapping"].values()}
