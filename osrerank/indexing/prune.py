"""Delete the vectors of texts that are no longer in their indices."""

import logging
from collections.abc import Iterator, Sequence

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import orphans, side_stores
from osrerank.vectors.store import VECTORS_OFF

logger = logging.getLogger(__name__)


def prune_vectors(client: Client, indexes: Sequence[str]) -> int:
    """Delete all vectors but those of the client's model and these indexes; return how many are left.

    Also delete side indices whose index is gone.

    Args:
        client: of the indexes.
        indexes: all indexes whose vectors searches still need.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: pruning failed; side indices may be pruned in part.
    """
    vectors = vectors_of(client)
    sides = side_stores(client, indexes) if client.searcher.vectors is not None else []
    if vectors.store is None and not sides:
        raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")

    def keys(names: Sequence[str]) -> Iterator[list[bytes]]:
        return (vectors.keys_of(batch.every) for name in names for batch in batches_of(client, name))

    left = sum(side.prune(keys([side.beside])) for side in sides)
    for name in orphans(client) if sides else ():
        logger.warning("[vectors-orphaned] the index of %s is gone: its vectors are deleted", name)
        client.indices.delete(index=name)
    return left + (vectors.store.prune(keys(indexes)) if vectors.store else 0)
