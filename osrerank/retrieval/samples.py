"""Sample documents of indices, and find the text fields by their values."""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from osrerank.response import hits_of
from osrerank.retrieval.fields import IndexGroup, read_of, union
from osrerank.retrieval.mapping import Leaf, Leaves
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.search_pipelines import named_in
from osrerank.retrieval.text_fields import candidates_of, choose, values_of

logger = logging.getLogger(__name__)

SAMPLE = 20
"""How many documents are sampled, and how many more that have the fields which the first ones lack."""
MOST_SAMPLED = 20
"""The most groups of indices that are sampled; in others, field names and types decide."""
MOST_CLAUSES = 200
"""The most fields that the request for more documents asks for."""


def find_parts(
    index: Any, every: Mapping[str, Leaves], pipeline: str | Mapping[str, Any] | None = None
) -> Generator[SideRequest, Any, tuple[IndexGroup, ...]]:
    """Yield the requests for samples, and return each group of indices with its fields; () if there are no documents.

    Args:
        index: as the caller names the indices.
        every: index -> its fields.
        pipeline: the ``search_pipeline`` of the requests; None for the index's own.
    """
    groups = _groups(every)
    samples: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for leaves, names in groups[:MOST_SAMPLED]:
        if leaves:
            samples[names] = yield from _sample(index, leaves, names if len(groups) > 1 else (), pipeline)
    if not any(samples.values()):
        return ()
    parts = _joined(_part(names, choose(leaves, samples.get(names, [])), every[names[0]]) for leaves, names in groups)
    for part in parts:
        logger.info("in %s, %s are searched", ", ".join(part.indices[:5]), ", ".join(part.searched) or "default fields")
    return parts


def parts_by_name(every: Mapping[str, Leaves]) -> tuple[IndexGroup, ...]:
    """Return the fields of each group of indices, chosen by names and types alone."""
    return _joined(_part(names, choose(leaves, []), every[names[0]]) for leaves, names in _groups(every))


def _groups(every: Mapping[str, Leaves]) -> list[tuple[tuple[Leaf, ...], tuple[str, ...]]]:
    """Group the indices that have the same text fields; return each group's fields and names, largest group first."""
    groups: dict[tuple[Leaf, ...], list[str]] = {}
    for name in sorted(every):
        groups.setdefault(tuple(candidates_of(every[name])), []).append(name)
    pairs = ((leaves, tuple(names)) for leaves, names in groups.items())
    return sorted(pairs, key=lambda group: (-len(group[1]), group[1]))


def _part(names: tuple[str, ...], texts: Sequence[Leaf], leaves: Leaves) -> IndexGroup:
    return IndexGroup(names, tuple(leaf.path for leaf in texts), union(_readable(leaf, leaves) for leaf in texts))


def _readable(leaf: Leaf, leaves: Leaves) -> tuple[str, ...]:
    """Return the names under which ``_source`` has a field's text; if it has not, those to ask for in ``fields``."""
    written = leaves.get(leaf.source)
    return (written.path,) if written is not None and written.is_written and not leaf.copied_from else read_of(leaf)


def _joined(parts: Iterable[IndexGroup]) -> tuple[IndexGroup, ...]:
    """Merge the parts that have the same fields."""
    by_fields: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for part in parts:
        by_fields.setdefault((part.searched, part.read), []).extend(part.indices)
    return tuple(IndexGroup(tuple(sorted(names)), *fields) for fields, names in by_fields.items())


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
