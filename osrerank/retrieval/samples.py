"""Request sample documents of indices, and choose text fields by the documents' values, for `osrerank init`.

The functions yield their requests instead of sending them.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.response import parse_hits
from osrerank.retrieval.fields import IndexGroup, create_group, group_by_text_fields, merge_equal_groups
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.retrieval.sampled_fields import choose_fields, read_field_values
from osrerank.retrieval.search_pipelines import add_pipeline
from osrerank.retrieval.text_fields import prefer_unnested

SAMPLE_SIZE = 20
"""The number of documents per request. If some fields have no value in them, a second request follows."""
MAX_SAMPLED_GROUPS = 20
"""The maximum number of groups of indices that are sampled, the largest first. For others, only the mapping decides."""
MAX_MISSING_FIELDS = 200
"""The maximum number of fields without a value for which the second request searches."""


def choose_fields_by_samples(
    index: Any, leaves_by_index: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Choose the text fields of each group of indices from sampled documents. Return () if no index has documents.

    Args:
        index: the indices as the caller names them.
        leaves_by_index: the fields in each index's mapping.
        pipeline: the ``search_pipeline`` of the requests. If None, the index's default applies.
    """
    groups = [(prefer_unnested(leaves), names) for leaves, names in group_by_text_fields(leaves_by_index)]
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}  # sources by the names of a group's indices
    for leaves, names in groups[:MAX_SAMPLED_GROUPS]:
        filtered_names = names if len(groups) > 1 else ()  # a single group contains all indices
        if leaves:
            samples[names] = yield from _sample_documents(index, leaves, filtered_names, pipeline)
    if not any(samples.values()):
        return ()
    # the first index stands for its group, whose indices have the same text fields
    return merge_equal_groups(
        create_group(names, choose_fields(leaves, samples.get(names, [])), leaves_by_index[names[0]])
        for leaves, names in groups
    )


def _sample_documents(
    index: Any, leaves: Sequence[Leaf], names: Sequence[str], pipeline: str | Mapping[str, Any] | None
) -> Generator[SideRequest, Any, list[Mapping[str, Any]]]:
    """Return the sources of some documents of ``index``. If ``names`` is not empty, they are only of these indices."""
    paths = sorted({path for leaf in leaves for path in leaf.copied_from or (leaf.source,)})
    filters = [{"terms": {"_index": list(names)}}] if names else [{"match_all": {}}]

    def request(**clauses: Any) -> SideRequest:
        body = {"query": {"bool": {"filter": filters, **clauses}}, "size": SAMPLE_SIZE, "_source": paths}
        body, params = add_pipeline(pipeline, body, {})
        return SideRequest("POST", build_path(index, "_search"), body, params)

    first_response = yield request()
    sources = [hit.get("_source") or {} for hit in parse_hits(first_response)]
    if len(sources) < SAMPLE_SIZE:
        return sources
    missing_paths = [leaf.path for leaf in leaves if not any(read_field_values(source, leaf) for source in sources)]
    if missing_paths:
        clauses = [{"exists": {"field": path}} for path in missing_paths[:MAX_MISSING_FIELDS]]
        second_response = yield request(must=[{"bool": {"should": clauses}}])
        sources += [hit.get("_source") or {} for hit in parse_hits(second_response)]
    return sources
