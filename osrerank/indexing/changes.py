"""Find the documents of an index that changed since its vectors were built."""

import hashlib
from typing import Any, NamedTuple, Self

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.side_index import IndexStore
from osrerank.options.rerank import Rerank
from osrerank.retrieval.requests import is_embedded

DATES = ("date", "date_nanos")
NUMBERS = ("long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long")
"""Types of the fields that can tell changes."""


class Changes(NamedTuple):
    """What changed in an index since a build, found by a field that grows with each change.

    Attributes:
        side: the side index, which stores how far builds came.
        key: digest of the field, the model, and the options by which texts are read.
        last: the highest value of the field that the last such build saw; None before the first.
        newest: the field's highest value now; None if no document has one.
        field: the field's name.
        is_date: whether the field is a date; its values are then in milliseconds.
    """

    side: IndexStore
    key: str
    last: float | None
    newest: float | None
    field: str
    is_date: bool

    @classmethod
    def of(cls, client: Client, side: IndexStore, field: str, options: Rerank) -> Self:
        """Ask the cluster for a field's highest value; return the changes up to that value.

        Raises:
            ConfigError: the engine is the embedded one, or the field is no date or number.
        """
        if is_embedded(client):
            raise ConfigError("since needs a cluster: leave it out", setting="since", source="flag")
        kinds = {*_types(client, side.beside, field)}
        if len(kinds) != 1 or not kinds <= {*DATES, *NUMBERS}:
            raise ConfigError(f"{field} is no date or number of {side.beside}", setting="since", source="flag")
        body = {"size": 0, "aggs": {"newest": {"max": {"field": field}}}}
        newest = client.search(index=side.beside, body=body)["aggregations"]["newest"]["value"]
        read = repr((options.fields, options.separator, options.passages))
        key = hashlib.blake2b(f"{field}\0{side.model}\0{read}".encode(), digest_size=8).hexdigest()
        return cls(side, key, side.built().get(key), newest, field, kinds <= {*DATES})

    @property
    def query(self) -> dict[str, Any]:
        """The query for the documents that changed and those without the field."""
        if self.last is None:
            return {"match_all": {}}
        bounds = {"gte": int(self.last), "format": "epoch_millis"} if self.is_date else {"gte": self.last}
        without = {"bool": {"must_not": [{"exists": {"field": self.field}}]}}
        return {"bool": {"should": [{"range": {self.field: bounds}}, without]}}

    def keep(self) -> None:
        """Store in the side index that all changes up to the newest are built."""
        if self.newest is not None:
            self.side.keep_built(self.key, self.newest)


def _types(client: Client, index: str, field: str) -> set[str]:
    found = client.indices.get_field_mapping(fields=field, index=index)[index]["mappings"]
    return {str(definition["type"]) for entry in found.values() for definition in entry["mapping"].values()}
