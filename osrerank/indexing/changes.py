"""Find the documents of an index that changed since its vectors were built."""

import hashlib
from typing import Any, NamedTuple, Self

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.side_index import IndexStore
from osrerank.options.rerank import Rerank
from osrerank.retrieval.requests import is_embedded


class Changes(NamedTuple):
    """An index's changes, found by a field that grows with each.

    Attributes:
        side: the side index, which stores how far builds got.
        key: digest of field, model, and how texts are read.
        last: the highest value of the field that the last such build saw; None before the first.
        newest: its highest value now; None where no document has one.
        field: its name.
        is_date: whether it is a date; values are then in milliseconds.
    """

    side: IndexStore
    key: str
    last: float | None
    newest: float | None
    field: str
    is_date: bool

    @classmethod
    def of(cls, client: Client, side: IndexStore, field: str, options: Rerank) -> Self:
        """Ask the cluster for a field's highest value.

        Raises:
            ConfigError: the engine is the embedded one, or the field is no date or number.
        """
        if is_embedded(client):
            raise ConfigError("since needs a cluster: leave it out", setting="since", source="flag")
        (kind,) = {*_kinds(client, side.beside, field)} or {""}
        if kind not in DATES and kind not in NUMBERS:
            raise ConfigError(f"{field} is no date or number of {side.beside}", setting="since", source="flag")
        body = {"size": 0, "aggs": {"newest": {"max": {"field": field}}}}
        newest = client.search(index=side.beside, body=body)["aggregations"]["newest"]["value"]
        read = repr((options.fields, options.separator, options.passages))
        key = hashlib.blake2b(f"{field}\0{side.model}\0{read}".encode(), digest_size=8).hexdigest()
        return cls(side, key, side.built().get(key), newest, field, kind in DATES)

    @property
    def query(self) -> dict[str, Any]:
        """Query for documents that changed, and those without the field."""
        if self.last is None:
            return {"match_all": {}}
        bounds = {"gte": int(self.last), "format": "epoch_millis"} if self.is_date else {"gte": self.last}
        without = {"bool": {"must_not": [{"exists": {"field": self.field}}]}}
        return {"bool": {"should": [{"range": {self.field: bounds}}, without]}}

    def keep(self) -> None:
        """Remember that all changes up to the newest are built."""
        if self.newest is not None:
            self.side.keep_built(self.key, self.newest)


DATES = ("date", "date_nanos")
NUMBERS = ("long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float", "unsigned_long")


def _kinds(client: Client, index: str, field: str) -> set[str]:
    found = client.indices.get_field_mapping(fields=field, index=index)[index]["mappings"]
    return {str(one["type"]) for whole in found.values() for one in whole["mapping"].values()}
