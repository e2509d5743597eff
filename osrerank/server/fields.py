"""Choose and check the document fields that OpenSearch or Elasticsearch sends to the rerank server."""

from collections.abc import Mapping, Sequence

from opensearchpy import AuthorizationException, NotFoundError, OpenSearch

from osrerank.client import Client
from osrerank.errors import InstallError
from osrerank.options.rerank import RerankOptions
from osrerank.retrieval.mapping import Leaf, find_missing_names, find_most_similar_field, read_leaves_by_index
from osrerank.server.failures import explain_failures

STEP = "read the mapping"
"""What the requests of this module do. Error messages contain it, as in "cannot read the mapping"."""


def choose_fields(client: Client, index: str, field_names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the fields of an index that will be the model's input, such as ``("title", "body")``.

    Args:
        client: the client that reads the index's mapping.
        index: the name of the index.
        field_names: the fields to check and return. If there are none, text fields of the mapping are chosen.

    Raises:
        InstallError: the index does not exist, it has no suitable field, a field is missing, or the cluster cannot
            send a field.
    """
    options: RerankOptions | bool = True  # the default options
    if field_names:
        options = {"fields": list(field_names), "query_fields": list(field_names)}
    with explain_failures(STEP):
        if not _read_mappings(client, index):
            raise InstallError(f"there is no index {index}: create it first, or use another index", step=STEP)
        fields = client.fields_of(index, rerank=options)
    problems: list[str] = [*fields.warnings, *fields.check_names(fields_with_text=None)]
    if client.engine.reranks_by_endpoint:  # as Elasticsearch does
        nested = [name for name in fields.model_fields if name in fields.traits.nested]
        if nested:
            problems.append(f"Elasticsearch's retriever does not support the nested fields {', '.join(nested)}")
    else:
        absent_from_source = [name for name in fields.model_fields if name in fields.traits.absent_from_source]
        if absent_from_source:
            names = ", ".join(absent_from_source)
            problems.append(f"OpenSearch's processor reads only _source, which does not contain {names}")
    if problems or not fields.model_fields:
        names = f"the fields {', '.join(fields.model_fields)}" if fields.model_fields else "no field"
        reason = "; ".join([f"the model would read {names} of the index {index}", *problems])
        raise InstallError(f"{reason}: set other fields with --fields", step=STEP)
    return fields.model_fields


def describe_missing_fields(client: OpenSearch, index: str, field_names: Sequence[str]) -> list[str]:
    """Return a sentence for each field that does not exist, such as "no index has bdy; the nearest name is body".

    Args:
        client: the client that reads the mappings.
        index: the index or alias that should contain the fields, or "" to check all indices that the user can see.
        field_names: the fields to check.
    """
    with explain_failures(STEP):
        try:
            mappings = _read_mappings(client, index or "*")
        except AuthorizationException:
            if not index:  # the user is not allowed to read the mappings of all indices
                return []
            raise
    if not mappings:
        return [f"there is no index behind {index}"] if index else []
    scope = f"index behind {index}" if index else "index"
    sentences = []
    for name in find_missing_names(mappings, field_names):
        similar_name = find_most_similar_field(mappings, name)
        suggestion = f"; the nearest name is {similar_name}" if similar_name else ""
        sentences.append(f"no {scope} has {name}{suggestion}")
    return sentences


def _read_mappings(client: OpenSearch, index: str) -> list[Mapping[str, Leaf]]:
    """Return, for each index that matches a name, alias or pattern, its fields by names such as "author.name"."""
    try:
        return list(read_leaves_by_index(client.indices.get_mapping(index=index)).values())
    except NotFoundError:
        return []
