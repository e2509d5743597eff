"""Find the documents that changed since the last build, by a date or number field instead of sequence numbers."""

from dataclasses import replace
from typing import Any, NamedTuple, Self

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.stored_progress import SideIndexProgress
from osrerank.retrieval.requests import is_embedded

DATE_TYPES = {"date", "date_nanos"}
NUMBER_TYPES = {"long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long"}
DATE_AND_NUMBER_TYPES = DATE_TYPES | NUMBER_TYPES


class DateFieldChanges(NamedTuple):
    """The changes in an index since the last build, found with a field that each change sets to a higher value.

    Attributes:
        progress: the stored progress, with the field's highest value at the last build.
        highest: the field's highest value now. None if no document has the field.
        field: the field's name.
        is_date: whether the field is a date. Its values are then in milliseconds since the epoch.
    """

    progress: SideIndexProgress
    highest: float | None
    field: str
    is_date: bool

    @classmethod
    def find(cls, client: Client, index: str, progress: SideIndexProgress, field: str) -> Self:
        """Ask the cluster for a field's highest value, load the progress, and return the changes up to the value.

        Raises:
            ConfigError: the engine is the embedded one, or the field is not a date or number.
        """
        if is_embedded(client):
            reason = "the embedded engine needs no date field: pass --follow without a field"
            raise ConfigError(reason, setting="follow", source="flag")
        types = _field_types(client, index, field)
        if len(types) != 1 or not types.issubset(DATE_AND_NUMBER_TYPES):
            raise ConfigError(
                f"{index} has no date or number field {field!r}: pass the name of one to --follow",
                setting="follow",
                source="flag",
            )
        body = {"size": 0, "aggs": {"highest": {"max": {"field": field}}}}
        highest = client.search(index=index, body=body)["aggregations"]["highest"]["value"]
        progress.load()
        return cls(progress, highest, field, is_date=types.issubset(DATE_TYPES))

    @property
    def query(self) -> dict[str, Any]:
        """The query for the documents that changed, and for those without the field."""
        last_value = self.progress.latest.highest_value
        if last_value is None:  # no earlier build used a date or number field
            return {"match_all": {}}
        # gte, because documents changed after the build might have the same value
        bounds = {"gte": int(last_value), "format": "epoch_millis"} if self.is_date else {"gte": last_value}
        lacks_field = {"bool": {"must_not": [{"exists": {"field": self.field}}]}}
        return {"bool": {"should": [{"range": {self.field: bounds}}, lacks_field]}}

    def save_highest_value(self) -> None:
        """Record in the side index that the vectors of all these changes are built."""
        if self.highest is not None:
            self.progress.change(lambda progress: replace(progress, highest_value=self.highest))


def _field_types(client: Client, index: str, field: str) -> set[str]:
    """Return the types of a field in an index, such as ``{"date"}``. There are none if it does not exist."""
    mappings = client.indices.get_field_mapping(fields=field, index=index)[index]["mappings"]
    return {str(definition["type"]) for entry in mappings.values() for definition in entry["mapping"].values()}
