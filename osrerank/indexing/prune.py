"""Delete the vectors of texts that are no longer in their indices."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from opensearchpy import RequestError

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.build import Builder
from osrerank.indexing.documents import document_vectors, read_batches
from osrerank.indexing.side_index import IndexStore, find_orphans, find_side_indices
from osrerank.retrieval.build_fields import build_fields_key
from osrerank.retrieval.requests import is_embedded
from osrerank.vectors.build_progress import BuildProgress
from osrerank.vectors.file import BUILD_PREFIX
from osrerank.vectors.index import PREFIX
from osrerank.vectors.store import VECTORS_OFF

logger = logging.getLogger(__name__)


def prune_indices(client: Client, names: Sequence[str]) -> int:
    """Delete outdated vectors from side indices, the hidden indices that store the vectors of other indices.

    Keep the vectors that a search of one of the names needs. Return how many vectors remain.

    Args:
        client: a client of the indices.
        names: the names of indices whose side indices are pruned, or aliases or patterns for them.

    Raises:
        ConfigError: the model has no vectors, or they are in a store that other indices share.
        OsrerankError: pruning failed, perhaps after some vectors were deleted.
    """
    uses_side_indices = client.searcher.vectors is not None
    if not uses_side_indices:
        if document_vectors(client, names[0]).store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        reason = (
            "the vectors of all indices are in one store: pass --all, which keeps the current vectors of every index"
        )
        raise ConfigError(reason, setting="index", source="--index")
    names_by_side_index: defaultdict[str, list[str]] = defaultdict(list)
    stores: dict[str, IndexStore] = {}
    for name in names:
        for store in find_side_indices(client, [name]):
            stores[store.index] = store
            names_by_side_index[store.index].append(name)
    return sum(_prune_side_index(client, store, names_by_side_index[index]) for index, store in stores.items())


def prune_everything(client: Client) -> int:
    """Delete all vectors except those of this engine's current documents.

    On a cluster, only indices with a side index are read, and the side indices of deleted indices are deleted. Those of
    closed indices, and of indices whose model has no vectors, are kept as they are. Return how many vectors remain.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: pruning failed, perhaps after some vectors were deleted.
    """
    shared_store = document_vectors(client).store  # with side indices, it is a cache of their vectors on this machine
    n_remaining = 0
    uses_side_indices = client.searcher.vectors is not None
    if not uses_side_indices:
        if shared_store is None:
            raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
        indices = _indices_with_vectors(client)
    else:
        for side_index in find_orphans(client):
            logger.info("the index of %s was deleted, so its vectors are deleted", side_index)
            client.indices.delete(index=side_index)
        side_indices = client.indices.get(index=f"{PREFIX}*", expand_wildcards="all", ignore_unavailable=True)
        indices = []
        for name in sorted(name.removeprefix(PREFIX) for name in side_indices):
            try:
                document_vectors(client, name)
            except ConfigError as error:  # a cross-encoder, for example
                fix = f"osrerank vectors drop --index {name} deletes them"
                logger.warning("[vectors-unpruned] the vectors of %s are not pruned: %s; %s", name, error, fix)
                continue
            try:
                n_remaining += _prune_side_index(client, find_side_indices(client, [name])[0], [name])
            except RequestError as error:
                if error.error != "index_closed_exception":
                    raise
                logger.warning(
                    "[vectors-unpruned] the vectors of %s are not pruned, because it or its side index is closed", name
                )
            else:
                indices.append(name)
    if shared_store is not None:
        field_keys = [BUILD_PREFIX + build_fields_key(name) for name in indices]
        n_remaining += shared_store.prune(chain(_text_keys(client, indices), [field_keys]))
    return n_remaining


def _indices_with_vectors(client: Client) -> list[str]:
    """Return the engine's open indices whose model has vectors. System indices are left out."""
    params = {} if is_embedded(client) else {"expand_wildcards": "open,hidden"}  # indices of data streams are hidden
    entries = client.indices.get(index="*", **params)
    names = [name for name in entries if not name.startswith(PREFIX) and (name[0] != "." or name.startswith(".ds-"))]
    indices = []
    for name in sorted(names):
        with suppress(ConfigError):  # a cross-encoder has no vectors
            document_vectors(client, name)
            indices.append(name)
    return indices


def _prune_side_index(client: Client, store: IndexStore, names: Sequence[str]) -> int:
    """Prune a side index, and return how many vectors remain.

    Pruning might delete vectors that builders store at the same time. The build progress is therefore reset to its
    state before pruning, so that the next build stores these vectors again.
    """
    progress_by_key = {}
    for name in names:
        builder = Builder(client, name, to="index", uses_build_fields=True)
        try:
            heads_by_index = builder.read_heads()
        except ConfigError:  # builds of this index store no progress
            continue
        for index in heads_by_index.keys() & store.indices:
            heads = heads_by_index[index]
            progress_by_key[builder.progress_key(index, heads)] = builder.load_progress(index, heads)
    earlier_progress = {key: progress.latest for key, progress in progress_by_key.items()}
    n_remaining = store.prune(
        _text_keys(client, names, subset=",".join(store.indices)),
        build_state_keys=[*earlier_progress, *map(build_fields_key, store.indices)],
    )
    for key, progress in progress_by_key.items():
        progress.load()  # builders may have stored more progress during the pruning
        progress.change(partial(BuildProgress.reopen_built_since, earlier=earlier_progress[key]))
    return n_remaining


def _text_keys(client: Client, names: Sequence[str], subset: str | None = None) -> Iterator[list[bytes]]:
    """Yield the keys of the vectors of all current texts, in batches. If ``subset`` is given, read only its indices."""
    for name in names:
        for batch in read_batches(client, name, client.fields_of(name), subset=subset):
            yield document_vectors(client, name).records.compute_keys(batch.all_texts)
