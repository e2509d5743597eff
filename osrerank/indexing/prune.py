"""Delete the vectors of texts that are no longer in their indices."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.build import Builder
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import IndexStore, orphans, side_stores
from osrerank.retrieval.built_fields import fields_key
from osrerank.retrieval.requests import is_embedded
from osrerank.vectors.file import POSITION
from osrerank.vectors.index import PREFIX
from osrerank.vectors.position import Position
from osrerank.vectors.store import VECTORS_OFF

logger = logging.getLogger(__name__)


def prune_indexes(client: Client, indexes: Sequence[str]) -> int:
    """Delete all vectors from the side indices of indexes except those of their current texts; return how many stay.

    Args:
        client: a client of the indexes.
        indexes: names, aliases or patterns; searches by each of them find their vectors afterwards.

    Raises:
        ConfigError: the model has no vectors, or they are in a store that other indexes share.
        OsrerankError: pruning failed; side indices may be pruned in part.
    """
    if client.searcher.vectors is None:
        if vectors_of(client, indexes[0]).store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        reason = "one store has the vectors of all indexes: prune it with --all, which keeps the vectors of every index"
        raise ConfigError(reason, setting="index", source="--index")
    names: defaultdict[str, list[str]] = defaultdict(list)  # index -> the names by which the caller gave it
    sides: dict[str, IndexStore] = {}
    for name in indexes:
        for side in side_stores(client, [name]):
            sides[side.index] = side
            names[side.index].append(name)
    return sum(_prune_side(client, side, names[index]) for index, side in sides.items())


def prune_everything(client: Client) -> int:
    """Delete all vectors except those of this engine's indexes; return how many stay.

    On a cluster, these are the indexes with a side index. Side indices of deleted indexes are deleted.

    Args:
        client: a client of the engine.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: pruning failed; side indices may be pruned in part.
    """
    store, remaining = vectors_of(client).store, 0
    if client.searcher.vectors is None:
        if store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        indexes = _searchable(client)
    else:
        for name in orphans(client):
            logger.info("the index of %s was deleted: its vectors are deleted, too", name)
            client.indices.delete(index=name)
        side_indices = client.indices.get(index=f"{PREFIX}*", expand_wildcards="all", ignore_unavailable=True)
        indexes = sorted(name.removeprefix(PREFIX) for name in side_indices)
        remaining = sum(_prune_side(client, side_stores(client, [name])[0], [name]) for name in indexes)
    field_keys = [[POSITION + fields_key(name) for name in indexes]]
    return remaining + (store.prune(chain(_keys(client, indexes), field_keys)) if store is not None else 0)


def _searchable(client: Client) -> list[str]:
    """Return the engine's open indices whose model has vectors; system indices are left out."""
    hidden = {} if is_embedded(client) else {"expand_wildcards": "open,hidden"}  # indices of data streams are hidden
    indices = client.indices.get(index="*", **hidden)
    names = [name for name in indices if not name.startswith(PREFIX) and (name[0] != "." or name.startswith(".ds-"))]
    searchable = []
    for name in sorted(names):
        with suppress(ConfigError):  # a cross-encoder has no vectors
            vectors_of(client, name)
            searchable.append(name)
    return searchable


def _prune_side(client: Client, side: IndexStore, names: Sequence[str]) -> int:
    """Prune a side index; vectors that builders store meanwhile may be deleted, and are built again."""
    positions = {}
    for name in names:
        builder = Builder(client, name, "index", as_built=True)
        try:
            heads = builder.read_heads()
        except ConfigError:  # no positions to keep
            continue
        for index in heads.keys() & side.indices:
            positions[builder.key(index, heads[index])] = builder.saved_position(index, heads[index])
    old_positions = {key: saved.position for key, saved in positions.items()}
    field_keys = map(fields_key, side.indices)
    remaining = side.prune(_keys(client, names, ",".join(side.indices)), chain(old_positions, field_keys))

    for key, saved in positions.items():
        saved.load()
        saved.change(partial(Position.reopen_since, earlier=old_positions[key]))
    return remaining


def _keys(client: Client, names: Sequence[str], within: str | None = None) -> Iterator[list[bytes]]:
    """Yield the keys of the texts of indexes, each index with its model, in batches."""
    for name in names:
        for batch in batches_of(client, name, client.fields_of(name), within=within):
            yield vectors_of(client, name).records.keys_of(batch.all_texts)
