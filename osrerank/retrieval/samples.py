"""Choose the text fields of indices by the values in sampled documents, for `osrerank init`.

The functions yield their requests instead of sending them.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.response import parse_hits
from osrerank.retrieval.fields import IndexGroup, group_by_text_fields, make_group, merge_groups
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.retrieval.sampled_fields import choose_fields, read_field_values
from osrerank.retrieval.search_pipelines import add_pipeline
from osrerank.retrieval.text_fields import prefer_unnested

SAMPLE_SIZE = 20
"""The number of documents per request. A second request follows if these documents lack some of the fields."""
MAX_SAMPLED_GROUPS = 20
"""If there are more groups of indices, the smallest ones are not sampled: their fields' names and types decide."""
MAX_MISSING_FIELDS = 200
"""The second request searches for at most this many missing fields."""


def choose_fields_by_samples(
    index: Any, leaves_by_index: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Choose the text fields of each group of indices from sampled documents.

    ``pipeline`` is the ``search_pipeline`` of the requests. If it is None, the index's default is used. The result is
    empty if no index has documents.
    """
    groups = [(prefer_unnested(leaves), names) for leaves, names in group_by_text_fields(leaves_by_index)]
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for leaves, names in groups[:MAX_SAMPLED_GROUPS]:
        if leaves:
            samples[names] = yield from _sample_documents(index, leaves, names if len(groups) > 1 else (), pipeline)
    if not any(samples.values()):
        return ()
    return merge_groups(
        make_group(names, choose_fields(leaves, samples.get(names, [])), leaves_by_index[names[0]])
        for leaves, names in groups
    )


def _sample_documents(
    index: Any, leaves: Sequence[Leaf], names: Sequence[str], pipeline: str | Mapping[str, Any] | None
) -> Generator[SideRequest, Any, list[Mapping[str, Any]]]:
    """Return the sources of some documents of the indices ``names``, or of all indices if it is empty."""
    paths = sorted({path for leaf in leaves for path in leaf.copied_from or (leaf.source,)})
    filters = [{"terms": {"_index": list(names)}}] if names else [{"match_all": {}}]

    def request(**clauses: Any) -> SideRequest:
        body = {"query": {"bool": {"filter": filters, **clauses}}, "size": SAMPLE_SIZE, "_source": paths}
        return SideRequest("POST", build_path(index, "_search"), *add_pipeline(pipeline, body, {}))

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
