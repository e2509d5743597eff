"""Choose or check the fields whose texts an engine sends to the rerank server."""

from collections.abc import Mapping, Sequence

from opensearchpy import AuthorizationException, NotFoundError, OpenSearch

from osrerank.client import Client
from osrerank.errors import InstallError
from osrerank.retrieval.mapping import Leaf, missing_names, most_similar_field, read_leaves_by_index
from osrerank.server.explained import explained

STEP = "look at the fields"


def fields_to_send(client: Client, index: str, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the fields that a model is to read in an index.

    Args:
        client: a client of the cluster.
        index: a name, an alias or a pattern.
        named: fields to check; empty to choose them by the mapping.

    Raises:
        InstallError: the index does not exist or lacks a named field, or the engine cannot send its fields.
    """
    with explained(STEP):
        if not _mappings(client, index):
            raise InstallError(f"there is no index {index}: create it first, or use another index", step=STEP)
        fields = client.fields_of(index, rerank={"fields": list(named), "query_fields": list(named)} if named else True)
    read_names = ", ".join(fields.read) or "no text"
    by_endpoint = client.engine.reranks_by_endpoint
    unsent = [name for name in fields.read if name in (fields.nested if by_endpoint else fields.not_in_source)]
    reasons: list[str] = [*fields.warnings, *fields.check_names(None)]
    if unsent and by_endpoint:
        reasons.append(f"Elasticsearch's retriever reads no nested field, such as {', '.join(unsent)}")
    elif unsent:
        reasons.append(f"OpenSearch's processor reads only _source, which lacks {', '.join(unsent)}")
    if reasons or not fields.read:
        raise InstallError(
            f"in {index} was found: {read_names}; {'; '.join(reasons)}; name others with --fields", step=STEP
        )
    return fields.read


def fields_missing(client: OpenSearch, index: str, names: Sequence[str]) -> list[str]:
    """Return a sentence for each field that no index has, with the nearest name.

    Args:
        client: a client of the cluster.
        index: a name, an alias or a pattern; empty for all indices that the user may see.
        names: the fields that a pipeline sends.
    """
    with explained(STEP):
        try:
            mappings = _mappings(client, index or "*")
        except AuthorizationException:
            if not index:  # the user may not read every mapping, and did not name an index
                return []
            raise
    if not mappings and not index:
        return []
    if not mappings:
        return [f"there is no index behind {index}"]
    near = {name: most_similar_field(mappings, name) or "none" for name in missing_names(mappings, names)}
    scope = index or "any name"
    return [
        f"no index behind {scope} has {name}; the nearest name is {name_nearby}" for name, name_nearby in near.items()
    ]


def _mappings(client: OpenSearch, index: str) -> list[Mapping[str, Leaf]]:
    """Return the fields of each index; empty if the index does not exist."""
    try:
        return list(read_leaves_by_index(client.indices.get_mapping(index=index)).values())
    except NotFoundError:
        return []
