"""Delete the vectors of texts that are no longer in their indices."""

from collections.abc import Iterator, Sequence

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import side_stores
from osrerank.vectors.store import VECTORS_OFF


def prune_vectors(client: Client, indexes: Sequence[str]) -> int:
    """Delete all vectors except the client's model's for these indexes' texts; return how many are left.

    Args:
        client: of the indexes.
        indexes: all indexes whose vectors searches still need.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: the store cannot be pruned; it is as it was.
    """
    vectors = vectors_of(client)
    sides = side_stores(client, indexes) if client.searcher.service.settings.vectors_index else []
    if vectors.store is None and not sides:
        raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")

    def keys(names: Sequence[str]) -> Iterator[list[bytes]]:
        return (vectors.keys_of(batch.every) for name in names for batch in batches_of(client, name))

    left = sum(side.prune(keys([side.beside])) for side in sides)
    return left + (vectors.store.prune(keys(indexes)) if vectors.store else 0)
