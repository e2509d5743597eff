"""Sample documents of indices for `osrerank init`, and choose the text fields by their values."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.response import hits_of
from osrerank.retrieval.fields import IndexGroup, group_by_text_fields, index_group, merge_groups
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.sampled_fields import choose, values_of
from osrerank.retrieval.search_pipelines import under_pipeline
from osrerank.retrieval.text_fields import whole_fields

SAMPLE = 20
"""The number of documents in a sample; as many again are read if the first ones lack some of the fields."""
MAX_SAMPLED = 20
"""The maximum number of index groups that are sampled. In further groups, field names and types decide."""
MAX_CLAUSES = 200
"""The maximum number of missing fields that the second request searches for."""


def sampled_groups(
    index: Any, by_index: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Yield the requests for samples, and return each group of indices with its fields; () if there are no documents.

    Args:
        index: as the caller names the indices.
        by_index: index -> its fields.
        pipeline: the ``search_pipeline`` of the requests; None for the index's default.
    """
    groups = [(whole_fields(texts), names) for texts, names in group_by_text_fields(by_index)]
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for texts, names in groups[:MAX_SAMPLED]:
        if texts:
            samples[names] = yield from _sample(index, texts, names if len(groups) > 1 else (), pipeline)
    if not any(samples.values()):
        return ()
    return merge_groups(
        index_group(names, choose(texts, samples.get(names, [])), by_index[names[0]]) for texts, names in groups
    )


def _sample(
    index: Any, leaves: Sequence[Leaf], names: Sequence[str], pipeline: str | Mapping[str, Any] | None
) -> Generator[SideRequest, Any, list[Mapping[str, Any]]]:
    """Yield the requests for a sample of documents, and for more that have its missing fields; return both."""
    paths = sorted({path for leaf in leaves for path in leaf.copied_from or (leaf.source,)})
    filters = [{"terms": {"_index": list(names)}}] if names else [{"match_all": {}}]

    def request(**clauses: Any) -> SideRequest:
        body = {"query": {"bool": {"filter": filters, **clauses}}, "size": SAMPLE, "_source": paths}
        return SideRequest("POST", path_of(index, "_search"), *under_pipeline(pipeline, body, {}))

    first_response = yield request()
    sources = [hit.get("_source") or {} for hit in hits_of(first_response)]
    if len(sources) < SAMPLE:
        return sources
    unseen = [leaf.path for leaf in leaves if not any(values_of(source, leaf) for source in sources)]
    if unseen:
        exist = [{"exists": {"field": path}} for path in unseen[:MAX_CLAUSES]]
        second_response = yield request(must=[{"bool": {"should": exist}}])
        sources += [hit.get("_source") or {} for hit in hits_of(second_response)]
    return sources
