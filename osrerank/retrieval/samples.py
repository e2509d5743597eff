"""Sample documents of indices for `osrerank init`, and find the text fields by their values."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.response import hits_of
from osrerank.retrieval.fields import IndexGroup, groups_of, joined, part_of
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.sampled_fields import choose, values_of
from osrerank.retrieval.search_pipelines import named_in
from osrerank.retrieval.text_fields import whole_fields

SAMPLE = 20
"""How many documents are sampled, and how many more that have the fields which the first ones lack."""
MOST_SAMPLED = 20
"""The most groups of indices that are sampled; in others, field names and types decide."""
MOST_CLAUSES = 200
"""The most fields that the request for more documents asks for."""


def sampled_parts(
    index: Any, every: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Yield the requests for samples, and return each group of indices with its fields; () if there are no documents.

    Args:
        index: as the caller names the indices.
        every: index -> its fields.
        pipeline: the ``search_pipeline`` of the requests; None for the index's own.
    """
    groups = [(whole_fields(texts), names) for texts, names in groups_of(every)]
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for texts, names in groups[:MOST_SAMPLED]:
        if texts:
            samples[names] = yield from _sample(index, texts, names if len(groups) > 1 else (), pipeline)
    if not any(samples.values()):
        return ()
    return joined(part_of(names, choose(texts, samples.get(names, [])), every[names[0]]) for texts, names in groups)


def _sample(
    index: Any, leaves: Sequence[Leaf], names: Sequence[str], pipeline: str | Mapping[str, Any] | None
) -> Generator[SideRequest, Any, list[Mapping[str, Any]]]:
    """Yield the requests for a sample of documents, and for more that have the fields which it lacks; return both."""
    paths = sorted({path for leaf in leaves for path in leaf.copied_from or (leaf.source,)})
    only = [{"terms": {"_index": list(names)}}] if names else [{"match_all": {}}]

    def request(**clauses: Any) -> SideRequest:
        body = {"query": {"bool": {"filter": only, **clauses}}, "size": SAMPLE, "_source": paths}
        return SideRequest("POST", path_of(index, "_search"), *named_in(pipeline, body, {}))

    found = yield request()
    sources = [hit.get("_source") or {} for hit in hits_of(found)]
    if len(sources) < SAMPLE:
        return sources
    unseen = [leaf.path for leaf in leaves if not any(values_of(source, leaf) for source in sources)]
    if unseen:
        exist = [{"exists": {"field": path}} for path in unseen[:MOST_CLAUSES]]
        more = yield request(must=[{"bool": {"should": exist}}])
        sources += [hit.get("_source") or {} for hit in hits_of(more)]
    return sources
