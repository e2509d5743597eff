"""Delete the vectors of texts that are no longer in their indices."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import IndexStore, orphans, side_stores
from osrerank.vectors.store import VECTORS_OFF

logger = logging.getLogger(__name__)


def prune_vectors(client: Client, indexes: Sequence[str]) -> int:
    """Delete all vectors except those of these indexes' texts by their own models; return how many are left.

    Also delete side indices whose index is gone.

    Args:
        client: a client of the indexes.
        indexes: all indexes whose vectors searches still need.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: pruning failed; side indices may be pruned in part.
    """
    store = next((vectors_of(client, name).store for name in indexes), None)
    written: defaultdict[str, list[str]] = defaultdict(list)  # index -> the names by which the caller gave it
    sides: dict[str, IndexStore] = {}
    for name in indexes if client.searcher.vectors is not None else ():
        for side in side_stores(client, [name]):
            sides[side.beside] = side
            written[side.beside].append(name)
    if store is None and not sides:
        raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")

    def keys(names: Sequence[str], within: str | None = None) -> Iterator[list[bytes]]:
        for name in names:
            for batch in batches_of(client, name, within=within):
                yield vectors_of(client, name).keys_of(batch.every)

    left = sum(side.prune(keys(written[index], index)) for index, side in sides.items())
    for name in orphans(client) if sides else ():
        logger.info("the index of %s is gone: its vectors are deleted", name)
        client.indices.delete(index=name)
    return left + (store.prune(keys(indexes)) if store else 0)
