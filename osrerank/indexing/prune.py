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
from osrerank.indexing.documents import document_vectors, read_batches
from osrerank.indexing.side_index import IndexStore, find_orphans, side_stores
from osrerank.retrieval.built_fields import fields_key
from osrerank.retrieval.requests import is_embedded
from osrerank.vectors.build_progress import BuildProgress
from osrerank.vectors.file import BUILD_PREFIX
from osrerank.vectors.index import PREFIX
from osrerank.vectors.store import VECTORS_OFF

logger = logging.getLogger(__name__)


def prune_indices(client: Client, names: Sequence[str]) -> int:
    """Delete the vectors of outdated texts from the side indices of these indices; return how many vectors remain.

    The vectors of texts that searches by any of the names, aliases or patterns need are kept.

    Raises:
        ConfigError: the model has no vectors, or they are in a store that other indices share.
        OsrerankError: pruning failed, perhaps after some vectors were deleted.
    """
    if client.searcher.vectors is None:
        if document_vectors(client, names[0]).store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        reason = "one store has the vectors of all indices: prune it with --all, which keeps the vectors of every index"
        raise ConfigError(reason, setting="index", source="--index")
    names_by_side: defaultdict[str, list[str]] = defaultdict(list)
    sides: dict[str, IndexStore] = {}
    for name in names:
        for side in side_stores(client, [name]):
            sides[side.index] = side
            names_by_side[side.index].append(name)
    return sum(_prune_side(client, side, names_by_side[index]) for index, side in sides.items())


def prune_everything(client: Client) -> int:
    """Delete all vectors except those of this engine's current documents; return how many vectors remain.

    On a cluster, only the documents of indices with a side index count. Side indices of deleted indices are deleted.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: pruning failed, perhaps after some vectors were deleted.
    """
    store, remaining = document_vectors(client).store, 0
    if client.searcher.vectors is None:
        if store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        indices = _indices_with_vectors(client)
    else:
        for name in find_orphans(client):
            logger.info("the index of %s was deleted, so its vectors are deleted", name)
            client.indices.delete(index=name)
        side_indices = client.indices.get(index=f"{PREFIX}*", expand_wildcards="all", ignore_unavailable=True)
        indices = sorted(name.removeprefix(PREFIX) for name in side_indices)
        remaining = sum(_prune_side(client, side_stores(client, [name])[0], [name]) for name in indices)
    field_keys = [[BUILD_PREFIX + fields_key(name) for name in indices]]
    return remaining + (store.prune(chain(_text_keys(client, indices), field_keys)) if store is not None else 0)


def _indices_with_vectors(client: Client) -> list[str]:
    """Return the engine's open indices whose model has vectors; system indices are left out."""
    hidden = {} if is_embedded(client) else {"expand_wildcards": "open,hidden"}  # indices of data streams are hidden
    entries = client.indices.get(index="*", **hidden)
    names = [name for name in entries if not name.startswith(PREFIX) and (name[0] != "." or name.startswith(".ds-"))]
    indices = []
    for name in sorted(names):
        with suppress(ConfigError):  # a cross-encoder has no vectors
            document_vectors(client, name)
            indices.append(name)
    return indices


def _prune_side(client: Client, side: IndexStore, names: Sequence[str]) -> int:
    """Prune a side index; return how many records remain.

    Vectors that builders store meanwhile might be deleted. The positions of builds are then set back, so that the next
    build stores these vectors again.
    """
    positions = {}
    for name in names:
        builder = Builder(client, name, "index", as_built=True)
        try:
            heads = builder.read_heads()
        except ConfigError:  # builds of this index store no position
            continue
        for index in heads.keys() & side.indices:
            positions[builder.key(index, heads[index])] = builder.saved_position(index, heads[index])
    old_positions = {key: saved.position for key, saved in positions.items()}
    field_keys = map(fields_key, side.indices)
    remaining = side.prune(_text_keys(client, names, ",".join(side.indices)), chain(old_positions, field_keys))

    for key, saved in positions.items():
        saved.load()
        saved.change(partial(BuildProgress.reopen_built_since, earlier=old_positions[key]))
    return remaining


def _text_keys(client: Client, names: Sequence[str], subset: str | None = None) -> Iterator[list[bytes]]:
    """Yield the record keys of the current texts of indices, each with its own model, in batches."""
    for name in names:
        for batch in read_batches(client, name, client.fields_of(name), subset=subset):
            yield document_vectors(client, name).records.compute_keys(batch.all_texts)
