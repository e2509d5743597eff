"""Turn a search response into a ranking of candidates, and a reranked ranking back into hits.

The functions read any ``_search`` response of OpenSearch and Elasticsearch, and never change their arguments.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osrerank.errors import ResponseFormatError
from osrerank.explanation import explain
from osrerank.thresholds.cut import Thresholds, filter_by_probability
from osrerank.types import Candidate, Ranking, Section, StageReport, StageScore
from osrerank.types.values import MAX_UNIT

FIRST_PASS = "first_pass"  # noqa: S105 - a stage's name
FIRST_STAGES = ("vectors", "mono")
"""The possible names of the first stage: it compares vectors, or scores with a cross-encoder."""
OBJECT_KEYS = frozenset({"_source", "fields", "highlight", "inner_hits"})
"""The keys of a hit whose values must be JSON objects."""
_ABSENT = object()
"""Stands for a value that a document does not have. None stands for a null."""

Hits = Sequence[Mapping[str, Any]]
"""The hits of a response, in order."""


@dataclass(frozen=True, slots=True)
class Page:
    """The part of the reranked hits that the caller requested.

    Attributes:
        offset: the number of hits above the page (`from`).
        size: the maximum number of hits on the page.
        added_fields: the names in `hit["fields"]` that were requested only for reranking, and are removed again.
        min_score: the minimum probability of a returned hit, or None for no minimum.
        explain: whether each hit explains its rank, and each stage lists the pairs that it compared.
        thresholds: further thresholds that remove hits, if any.
        search_after_indices: the positions in the response of the hits with `search_after`'s sort values, such as (9,)
            for the tenth hit. The page begins below the lowest-ranked of these hits. Empty if it begins at ``offset``.
    """

    offset: int = 0
    size: int = 10
    added_fields: tuple[str, ...] = ()
    min_score: float | None = None
    explain: bool = False
    thresholds: Thresholds | None = None
    search_after_indices: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether no hits are above the page."""
        return not (self.offset or self.search_after_indices)

    def count_above(self, new_ids: Sequence[str], old_ids: Sequence[str]) -> int:
        """Return the number of hits above the page.

        Args:
            new_ids: the ids of the hits in their new order.
            old_ids: the ids of the hits in the response's order.
        """
        if not self.search_after_indices:
            return self.offset
        after_ids = {old_ids[index] for index in self.search_after_indices}
        return max((rank for rank, doc_id in enumerate(new_ids, start=1) if doc_id in after_ids), default=0)


def parse_hits(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Check and return the hits of a response.

    Raises:
        ResponseFormatError: `$.hits.hits` is not a list of objects with an `_id`, or a part of a hit has a wrong type.
    """
    try:
        hits = response["hits"]["hits"]
    except (KeyError, TypeError):
        reason = "the response has no $.hits.hits: pass the response of a search"
        raise ResponseFormatError(reason, path="$.hits.hits") from None
    if not isinstance(hits, list):
        raise ResponseFormatError(f"$.hits.hits is a {type(hits).__name__}, not a list", path="$.hits.hits")
    for index, hit in enumerate(hits):
        if not _is_object(hit) or not isinstance(hit.get("_id"), str):
            path = f"$.hits.hits[{index}]._id"
            raise ResponseFormatError(
                f"{path} is missing or not a string: a hit can be reranked only with its id", path=path
            )
        for name in OBJECT_KEYS & hit.keys():
            if hit[name] is not None and not _is_object(hit[name]):
                path = f"$.hits.hits[{index}].{name}"
                raise ResponseFormatError(f"{path} is a {type(hit[name]).__name__}, not an object", path=path)
    return hits


def _is_object(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # the quick test first, because this runs for every hit


def read_took_ms(response: Mapping[str, Any]) -> int:
    """Return a response's ``took`` in milliseconds, or 0 if it is missing or not a number."""
    took = response.get("took")
    return int(took) if isinstance(took, int | float) and math.isfinite(took) else 0


def make_candidate_ids(hits: Hits) -> list[str]:
    """Return an id for each hit. Different hits have different ids.

    It is the hit's ``_id``, such as ``7``. If two hits have the same ``_id``, all ids also contain the index, and the
    routing if there is one, such as ``news/7`` or ``news/berlin/7``. A hit that is listed twice has the same id twice.
    """
    short_ids = [hit["_id"] for hit in hits]
    if len(set(short_ids)) == len(short_ids):
        return short_ids
    long_ids = []
    for hit in hits:
        prefixes = filter(None, (hit.get("_index"), hit.get("_routing")))
        long_ids.append("/".join([*prefixes, hit["_id"]]))
    return long_ids


def has_repeats(hits: Hits) -> bool:
    """Return whether a hit is listed twice, as in a hybrid search without a pipeline that merges its queries' hits."""
    ids = make_candidate_ids(hits)
    return len(set(ids)) < len(ids)


def has_own_order(hits: Hits) -> bool:
    """Return whether a search sorted its hits by a field, and did not score them.

    With ``track_scores``, sorted hits have scores, so such a search is not recognised.
    """
    return any("sort" in hit and hit.get("_score") is None for hit in hits)


def make_candidates(
    hits: Hits,
    fields: Sequence[str],
    separator: str = " ",
    fields_by_index: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Candidate, ...]:
    """Return each hit as a candidate, with the model's input text.

    Args:
        hits: the hits, as `parse_hits` returns them, in the first pass's order.
        fields: the fields whose text the model gets, in order. They are read from the hit's ``fields`` or ``_source``.
        separator: the text between fields and between list values.
        fields_by_index: the fields of each index, if the indices have different fields.

    Raises:
        ResponseFormatError: a score is not a finite number.
    """
    candidates = []
    for rank, (doc_id, hit) in enumerate(zip(make_candidate_ids(hits), hits, strict=True), start=1):
        score = hit.get("_score")
        if type(score) is not float or not math.isfinite(score):  # rare
            score = _convert_score(score, rank)
        first_pass_score = StageScore(FIRST_PASS, score, rank, unit=squash(score))
        hit_fields = fields_by_index.get(hit.get("_index", ""), fields) if fields_by_index else fields
        sections = read_sections(hit, hit_fields)
        text = None if sections is None else separator.join([section.text for section in sections])
        candidates.append(Candidate(doc_id, text, score, rank, trace=(first_pass_score,), sections=sections or ()))
    return tuple(candidates)


def _convert_score(score: Any, rank: int) -> float:
    """Return a first-pass score as a float. If it is missing, as in early rank fusion in Elasticsearch, return 0.

    Raises:
        ResponseFormatError: the score is not a finite number.
    """
    if score is None:
        return 0.0
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    path = f"$.hits.hits[{rank - 1}]._score"
    raise ResponseFormatError(f"{path} is {score!r}; a score is a finite number", path=path)


def squash(score: float) -> float:
    """Map a first-pass score s to s / (1 + s), which is in [0, 1), such as 3 to 0.75. Negative scores become 0."""
    return min(score / (1.0 + score), MAX_UNIT) if score > 0 else 0.0


def read_hit_text(hit: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """Return the texts of a hit's fields, joined by spaces, or None if the hit has none of the fields.

    Args:
        hit: the hit.
        fields: names such as ``author.name`` for a field in ``_source`` or the hit's ``fields``, ``highlight:body`` for
            the highlighted fragments of ``body`` with their markup, or ``inner_hits:comments.text`` for the field
            ``text`` of the inner hits ``comments``.
    """
    sections = read_sections(hit, fields)
    return None if sections is None else " ".join(section.text for section in sections)


def read_sections(hit: Mapping[str, Any], fields: Sequence[str]) -> tuple[Section, ...] | None:
    """Return the non-empty values of a hit's fields, or None if the hit has none of the fields.

    The source ``{"title": "Wings", "tags": ["air", "lift"]}`` has three sections: the title, and each tag with its
    index.

    Args:
        hit: the hit.
        fields: as for `read_hit_text`.
    """
    source, requested_fields = hit.get("_source") or {}, hit.get("fields") or ()
    sections: list[Section] = []
    has_field = False
    for field in fields:  # this runs for every hit, and a field is nearly always a string in `_source`
        value = source.get(field)
        if type(value) is str and field not in requested_fields:
            has_field = True
            if value:
                sections.append(Section(field, value))
        elif (values := _read_field(hit, field)) is not None:
            has_field = True
            is_only = len(values) == 1
            sections += [Section(field, text, None if is_only else index) for index, text in enumerate(values) if text]
    return tuple(sections) if has_field else None


def _read_field(hit: Mapping[str, Any], field: str) -> list[str | None] | None:
    """Return the texts of a field's values, None for a null value, or None if the hit does not have the field."""
    source, requested_fields = hit.get("_source") or {}, hit.get("fields") or {}
    if field in requested_fields:
        return list(_flatten_texts(requested_fields[field]))
    kind, _, name = field.rpartition(":")
    if kind == "highlight":
        fragments = (hit.get("highlight") or {}).get(name)
        return None if fragments is None else list(_flatten_texts(fragments))
    if kind == "inner_hits":
        name, _, path = name.partition(".")
        texts_by_hit = [_read_field(inner_hit, path) for inner_hit in _read_inner_hits(hit, name)]
        return [text for texts in texts_by_hit if texts is not None for text in texts] or None
    keys = field.split(".")
    texts = _read_texts_at(source, keys)
    if not any(texts):
        texts = _read_texts_at(requested_fields, keys)  # Elasticsearch nests fields under their path
    if any(texts):
        return texts
    has_empty_text = _has_text_at(source, keys)
    return [] if has_empty_text else None


def _read_inner_hits(hit: Mapping[str, Any], name: str) -> Hits:
    group = (hit.get("inner_hits") or {}).get(name) or {"hits": {"hits": []}}
    try:  # `parse_hits` needs an id, which inner hits can lack
        return parse_hits({"hits": {"hits": [{"_id": "", **inner} for inner in group["hits"]["hits"]]}})
    except (KeyError, TypeError):
        path = f"$.hits.hits[_id={hit.get('_id')}].inner_hits.{name}.hits.hits"
        raise ResponseFormatError(f"{path} is not a list of hits", path=path) from None


def read_texts(source: Any, path: Sequence[str]) -> list[str]:
    """Return the texts at a path, through lists of objects and keys that contain dots.

    At the path ``["authors", "name"]``, ``{"authors": [{"name": "Lin"}, {"name": "Cho"}]}`` has the texts Lin and Cho.
    """
    return [text for text in _read_texts_at(source, path) if text is not None]


def _read_texts_at(source: Any, path: Sequence[str]) -> list[str | None]:
    """Return the texts at a path, with None for each null. Texts in nested lists come last, as in ``fields``.

    The value ``[["a"], "b"]`` has the texts b and a.
    """
    texts: list[str | None] = []
    level = [_read_value_at(source, path)]
    while level:
        next_level = []
        for value in level:
            if isinstance(value, list):
                next_level += value
            elif value is not _ABSENT:
                texts += _flatten_texts(value)
        level = next_level
    return texts


def _read_value_at(source: Any, path: Sequence[str]) -> Any:
    """Return the value at a path, or `_ABSENT`. For a list, return the list of its elements' values.

    A key can contain dots, so at the path ``["a", "b", "c"]``, the keys ``a``, ``a.b`` and ``a.b.c`` are tried.
    """
    if isinstance(source, list):
        return [value for element in source if (value := _read_value_at(element, path)) is not _ABSENT]
    if not isinstance(source, Mapping):
        return _ABSENT if path else source
    values = []
    for length in range(1, len(path) + 1):
        key = ".".join(path[:length])
        value = _read_value_at(source[key], path[length:]) if key in source else _ABSENT
        if value is not _ABSENT:
            values.append(value)
    first_value = values[0] if values else _ABSENT
    return next((value for value in values if value), first_value)  # the first that is not empty, if there is one


def _has_text_at(source: Any, path: Sequence[str]) -> bool:
    """Return whether there is a text at a path, even an empty one."""
    if isinstance(source, list):
        return any(_has_text_at(element, path) for element in source)
    if not path:
        return isinstance(source, str)
    if not isinstance(source, Mapping):
        return False
    return any(
        _has_text_at(source[key], path[length:])
        for length in range(1, len(path) + 1)
        if (key := ".".join(path[:length])) in source
    )


def _flatten_texts(value: Any) -> Iterator[str | None]:
    """Yield the text of each value inside lists and objects, such as "true" for True. Yield None for each null."""
    if value is None or isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for element in value:
            yield from _flatten_texts(element)
    elif isinstance(value, bool):
        yield str(value).lower()
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from _flatten_texts(element)


class RankedPage(NamedTuple):
    """A page of reranked hits.

    Attributes:
        hits: the hits with their new ``_score``, and each stage's score in ``_rerank``.
        max_score: the highest ``_score`` of all pages. None if there are no hits.
        removed: the entries of ``response["rerank"]`` about hits that thresholds removed, such as
            ``{"below_min_score": 3}``.
    """

    hits: list[dict[str, Any]]
    max_score: float | None
    removed: dict[str, Any]


def make_page(response: Mapping[str, Any], ranking: Ranking, page: Page) -> RankedPage:
    """Return a page of the reranked hits.

    A hit's ``_score`` is the number of stages that scored it, plus the last stage's score mapped to [0, 1), such as
    2.93 for a hit that two stages scored. So it is never negative, and never increases down the page.

    Args:
        response: the first pass's response, which `parse_hits` has checked.
        ranking: the reranked hits. Candidates that are not in the response are left out.
        page: the page to return.
    """
    raw_hits = response["hits"]["hits"]
    ids = make_candidate_ids(raw_hits)
    hits_by_id = dict(zip(ids, raw_hits, strict=True))
    candidates = list(ranking.candidates)
    removed: dict[str, Any] = {}
    if page.min_score is not None:
        candidates, removed["below_min_score"] = filter_by_probability(candidates, page.min_score, ranking.reports)
    if page.thresholds is not None:
        candidates, cuts = page.thresholds.remove_hits(candidates, ranking.reports)
        removed["cuts"] = [cut.as_json() for cut in cuts]
    start = page.offset
    if page.search_after_indices:
        new_ids = [candidate.doc_id for candidate in ranking.candidates]
        ids_above = set(new_ids[: page.count_above(new_ids, ids)])
        start = sum(candidate.doc_id in ids_above for candidate in candidates)  # thresholds may have removed some
    on_page = [candidate for candidate in candidates[start : start + page.size] if candidate.doc_id in hits_by_id]
    hits = [merge_hit(hits_by_id[candidate.doc_id], candidate, page, ranking.reports) for candidate in on_page]
    best = next((candidate for candidate in candidates if candidate.doc_id in hits_by_id), None)
    return RankedPage(hits, None if best is None else compute_final_score(best), removed)


def make_unranked_page(response: Mapping[str, Any], page: Page | None, offset: int) -> list[dict[str, Any]] | None:
    """Return a page of the first pass's hits in their order, or None if the response contains no hits.

    Args:
        response: the search engine's response.
        page: the page to cut out of the response. If None, the response is the page, and begins at ``offset``.
        offset: the number of hits above the response's first hit, used if ``page`` is None.
    """
    hits = (response.get("hits") or {}).get("hits")  # they can be missing because of `filter_path`
    if not isinstance(hits, list) or not all(map(_is_object, hits)):
        return None
    if page is not None:
        offset = page.search_after_indices[-1] + 1 if page.search_after_indices else page.offset
        hits = hits[offset : offset + page.size]
        hits = [without_fields(hit, page.added_fields) for hit in hits]
    return [_add_first_pass_entry(hit, rank) for rank, hit in enumerate(hits, offset + 1)]


def _add_first_pass_entry(hit: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return a hit that was not reranked, with its score and rank in ``_rerank``."""
    return {**hit, "_rerank": {FIRST_PASS: {"score": hit.get("_score"), "rank": rank}}}


def merge_hit(
    raw: Mapping[str, Any], candidate: Candidate, page: Page, reports: tuple[StageReport, ...]
) -> dict[str, Any]:
    """Return a hit with its ``_score`` after reranking, and each stage's score in ``_rerank``."""
    entries: dict[str, Any] = {entry.stage: entry.as_json() for entry in candidate.trace}
    if candidate.failure:
        entries["failure"] = candidate.failure
    probability = None if page.thresholds is None else page.thresholds.probability(candidate)
    if probability is not None:
        entries["probability"] = probability
    if page.explain:
        entries["explanation"] = explain(candidate, reports)
    hit = without_fields(raw, page.added_fields) if page.added_fields else raw
    return {**hit, "_score": compute_final_score(candidate), "_rerank": entries}


def compute_final_score(candidate: Candidate) -> float:
    """Return a hit's ``_score``, as `make_page` explains it."""
    last_score = candidate.trace[-1]
    return last_score.level + last_score.unit  # the number of stages, and the last stage's score mapped to [0, 1)


def _without_field(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a hit's ``fields`` without one field.

    Elasticsearch can nest a field in objects: ``author.name`` is removed from ``{"author": [{"name": ["Lin"]}]}``.
    """
    remaining = {key: value for key, value in fields.items() if key != name}
    for key, value in fields.items():
        if not name.startswith(f"{key}.") or not isinstance(value, list):
            continue
        if all(isinstance(element, Mapping) for element in value):
            inner_name = name.removeprefix(f"{key}.")
            objects = [_without_field(element, inner_name) for element in value]
            remaining[key] = [fields_left for fields_left in objects if fields_left]
            if not remaining[key]:
                del remaining[key]
    return remaining


def without_fields(raw: Mapping[str, Any], added_fields: tuple[str, ...]) -> dict[str, Any]:
    """Return a copy of a hit without the added entries of its ``fields``."""
    hit = dict(raw)
    if added_fields and hit.get("fields"):
        fields = dict(hit["fields"])
        for name in added_fields:
            fields = _without_field(fields, name)
        if fields:
            hit["fields"] = fields
        else:
            del hit["fields"]
    return hit
