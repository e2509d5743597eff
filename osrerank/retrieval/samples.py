"""Choose the text fields of indices by the values in sampled documents, for `osrerank init`."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.response import hits_of
from osrerank.retrieval.fields import IndexGroup, group_by_text_fields, index_group, merge_groups
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.retrieval.sampled_fields import choose_fields, field_values
from osrerank.retrieval.search_pipelines import under_pipeline
from osrerank.retrieval.text_fields import whole_fields

SAMPLE_SIZE = 20
"""The number of documents that a request samples. A second request follows if they lack some of the fields."""
MAX_SAMPLED_GROUPS = 20
"""The maximum number of index groups that are sampled. In further groups, field names and types decide."""
MAX_MISSING_FIELDS = 200
"""The maximum number of missing fields that the second request searches for."""


def sample_groups(
    index: Any, by_index: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Yield the requests for samples, and return each group of indices with its fields; () if no index has documents.

    ``pipeline`` is the ``search_pipeline`` of the requests. None for the index's default.
    """
    groups = [(whole_fields(texts), names) for texts, names in group_by_text_fields(by_index)]
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for texts, names in groups[:MAX_SAMPLED_GROUPS]:
        if texts:
            samples[names] = yield from _sample_documents(index, texts, names if len(groups) > 1 else (), pipeline)
    if not any(samples.values()):
        return ()
    return merge_groups(
        index_group(names, choose_fields(texts, samples.get(names, [])), by_index[names[0]]) for texts, names in groups
    )


def _sample_documents(
    index: Any, leaves: Sequence[Leaf], names: Sequence[str], pipeline: str | Mapping[str, Any] | None
) -> Generator[SideRequest, Any, list[Mapping[str, Any]]]:
    """Yield the requests for sampled documents of the indices ``names``, or of all, and return their sources."""
    paths = sorted({path for leaf in leaves for path in leaf.copied_from or (leaf.source,)})
    filters = [{"terms": {"_index": list(names)}}] if names else [{"match_all": {}}]

    def request(**clauses: Any) -> SideRequest:
        body = {"query": {"bool": {"filter": filters, **clauses}}, "size": SAMPLE_SIZE, "_source": paths}
        return SideRequest("POST", build_path(index, "_search"), *under_pipeline(pipeline, body, {}))

    first_response = yield request()
    sources = [hit.get("_source") or {} for hit in hits_of(first_response)]
    if len(sources) < SAMPLE_SIZE:
        return sources
    missing = [leaf.path for leaf in leaves if not any(field_values(source, leaf) for source in sources)]
    if missing:
        clauses = [{"exists": {"field": path}} for path in missing[:MAX_MISSING_FIELDS]]
        second_response = yield request(must=[{"bool": {"should": clauses}}])
        sources += [hit.get("_source") or {} for hit in hits_of(second_response)]
    return sources
