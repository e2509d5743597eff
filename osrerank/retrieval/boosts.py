"""Separate a hit's text score from the query's boosts, so that a model replaces the text score and the boosts stay.

A model scores only text. Boosts are a caller's other rules for the score, such as recency or stock (``function_score``,
``rank_feature``, a filter in a ``should``), and must count as before. `find_boosts` gives names to the text part and
the boosts of the query, so that the engine returns their scores for each hit. `split_scores` checks that these scores
combine to ``_score``. After the stages, `apply_boosts` combines the model's order with the same boosts.
"""

import math
import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osrerank.response import parse_hits, squash
from osrerank.retrieval.mapping import without_boost
from osrerank.retrieval.query_text import COMPOUND_CLAUSES, find_texts_with_fields
from osrerank.types import Candidate, Ranking, StageReport, StageScore
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.types.values import TEXT_SCORE

STAGE = "boosts"
"""The name of the last stage in reports, in which boosts are applied."""
SCORES_PARAM = "include_named_queries_score"
"""The URL parameter that requests the scores of named queries, since OpenSearch 2.13 and Elasticsearch 8.8."""
PREFIX = "osrerank-"
"""The prefix of the names that osrerank gives to queries."""
MAX_ERROR_ULPS = 8
"""The maximum difference of the combined parts from ``_score``, in units in the last place (ULPs) of a float32."""
RULE_CLAUSES = frozenset({"rank_feature", "distance_feature"})
"""Clauses that score documents by a number, a date or a place. Their scores do not depend on text."""
FILTER_CLAUSES = frozenset({
    "match_all", "match_none", "term", "terms", "terms_set", "range", "exists", "ids", "prefix", "wildcard", "regexp",
    "constant_score", "geo_distance", "geo_bounding_box", "geo_polygon", "geo_shape", "script",
})  # fmt: skip
"""Clauses that select documents by exact values. Their scores do not depend on text."""
_NON_FUNCTION_KEYS = frozenset({"query", "boost", "boost_mode", "score_mode", "max_boost", "min_score", "_name"})
"""Keys of a ``function_score`` that do not define a function. Any other key does, such as ``field_value_factor``."""
_COMBINERS: Mapping[str, Callable[[float, float], float]] = {
    "multiply": operator.mul,
    "sum": operator.add,
    "avg": lambda score, value: (score + value) / 2,
    "max": max,
    "min": min,
    "replace": lambda _score, value: value,
}
"""For each ``boost_mode`` of a ``function_score``, the function that combines a score with a boost's value."""


@dataclass(frozen=True, slots=True)
class Boost:
    """A boost of a query. Its value for a hit is combined with the hit's text score.

    Attributes:
        mode: how the value is combined with the score so far, as a ``boost_mode`` such as ``sum``.
        query_names: the names of the boost's queries. The sum of their scores, times ``factor``, is the value.
        factor: the product of the parameters ``boost`` of all enclosing clauses.
        fixed_value: the value for each hit that matches the query (``negative_boost``). It is 1 for all other hits.
            None if the value depends on scores.
        enclosing_names: the names of the ``should`` clauses around the boost. It applies only to hits that match all of
            them.
    """

    mode: str
    query_names: tuple[str, ...]
    factor: float = 1.0
    fixed_value: float | None = None
    enclosing_names: tuple[str, ...] = ()

    def compute_value(self, scores: Mapping[str, float]) -> float:
        """Return the boost's value for a hit.

        ``scores`` are the hit's scores for the named queries that it matches, such as ``{"osrerank-1": 1.5}``.
        """
        if not scores.keys() >= set(self.enclosing_names):
            return 1.0 if self.mode == "multiply" else 0.0  # changes nothing
        if self.fixed_value is not None:
            return self.fixed_value if self.query_names[0] in scores else 1.0
        return self.factor * sum(scores.get(name, 0.0) for name in self.query_names)


@dataclass(frozen=True, slots=True)
class Boosts:
    """A query whose text part and boosts have names, and how their scores combine to ``_score``.

    Attributes:
        query: the query to send. It finds the same hits with the same scores as the caller's query.
        text_names: the names of the text clauses. The sum of their scores, times ``factor``, is the text score.
        factor: the product of the parameters ``boost`` of all clauses around the text part.
        enclosing_names: the names of the ``should`` clauses around the text part. A hit that does not match all of them
            has a text score of 0.
        steps: the boosts in the order in which they are combined with the text score, the innermost first.
        wants_scores: whether the caller also requested the scores of named queries.
    """

    query: Mapping[str, Any]
    text_names: tuple[str, ...]
    factor: float
    enclosing_names: tuple[str, ...]
    steps: tuple[Boost, ...]
    wants_scores: bool = False

    def compute_text_score(self, scores: Mapping[str, float]) -> float:
        """Return a hit's text score. ``scores`` are its scores for the named queries that it matches."""
        if not scores.keys() >= set(self.enclosing_names):
            return 0.0
        return self.factor * sum(scores.get(name, 0.0) for name in self.text_names)


Parts = Mapping[str, float]
"""The text score and the boosts of a hit: ``{"text": 2.0, "boost": 1.5, "boost_2": 0.1}``."""


def find_boosts(
    body: Mapping[str, Any], params: Mapping[str, Any], text: str, non_text_fields: Collection[str]
) -> Boosts | Reason | None:
    """Return the query's boosts, or the reason why they cannot be separated from its text score.

    Returns None if the query has no boosts.

    Args:
        body: the caller's body.
        params: the caller's URL parameters.
        text: the query text. If a clause searches for it, all clauses that search for other texts are boosts.
        non_text_fields: keyword fields and other fields without text. A clause that searches only these is a boost.
    """
    query = body.get("query")
    is_searched = any(text == clause_text for clause_text, _ in find_texts_with_fields(query))
    namer = _PartNamer(text if is_searched else None, non_text_fields)
    kinds = namer.find_kinds(query)
    for key in ("rescore", "indices_boost"):
        if body.get(key):
            return _inseparable_reason(f"{key} changes the score after the query")
    has_boosts = "rule" in kinds or {"text", "filter"} <= kinds  # without text, a filter's score is no boost
    if not isinstance(query, Mapping) or not has_boosts:
        return None
    try:
        _check_functions(query)
        named_query = namer.name_parts(query, factor=1.0)
    except _InseparableBoostsError as error:
        return _inseparable_reason(str(error))
    except (AttributeError, KeyError, TypeError, ValueError):  # an invalid query, which the engine will report
        return None
    if namer.filters:
        named_query = {"bool": {"must": [named_query], "filter": namer.filters}}
    return Boosts(
        named_query,
        text_names=tuple(namer.text_names),
        factor=namer.factor,
        enclosing_names=namer.text_enclosing_names,
        steps=tuple(namer.steps),
        wants_scores=requests_named_scores(params),
    )


def requests_named_scores(params: Mapping[str, Any]) -> bool:
    """Return whether URL parameters request the scores of named queries."""
    return str(params.get(SCORES_PARAM, "")).lower() == "true"


def _inseparable_reason(cause: str) -> Reason:
    sentence = f"the query's boosts are ignored, because its text score cannot be told from them: {cause}"
    return Reason(ReasonCode.BOOSTS, sentence)


class _InseparableBoostsError(Exception):
    """A query's boosts cannot be separated from its text score. The message says why."""


@dataclass(slots=True)
class _PartNamer:
    """Gives names to a query's text clauses and boosts, so that the engine returns their scores.

    Attributes:
        text: the query text. None if no clause searches for it.
        non_text_fields: keyword fields and other fields without text.
        text_names, factor, steps: the attributes of the resulting `Boosts`, as collected so far.
        filters: named queries that compute boosts. They are sent as filters and match all documents, so that they
            change neither the hits nor the scores.
        n_names: the number of names given so far.
        enclosing_names: the names of the ``should`` clauses around the current clause.
        text_enclosing_names: the names of the ``should`` clauses around the text part.
    """

    text: str | None
    non_text_fields: Collection[str]
    text_names: list[str] = field(default_factory=list)
    factor: float = 1.0
    steps: list[Boost] = field(default_factory=list)
    filters: list[dict[str, Any]] = field(default_factory=list)
    n_names: int = 0
    enclosing_names: tuple[str, ...] = ()
    text_enclosing_names: tuple[str, ...] = ()

    def name_parts(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a copy of a clause with names for its text part and boosts.

        ``factor`` is the product of the parameters ``boost`` of all enclosing clauses.

        Raises:
            _InseparableBoostsError: its boosts cannot be separated from its text score.
        """
        kinds = self.find_kinds(clause)
        if "text" not in kinds:
            raise _InseparableBoostsError("no part of it searches for a text")
        if len(kinds) == 1:  # it is the text part
            self.factor, self.text_enclosing_names = factor, self.enclosing_names
            return self._add_name(clause, self.text_names)
        name, content = next(iter(clause.items()))
        factor *= float(content.get("boost", 1.0))
        if name == "function_score":
            return {name: self._name_function_score(content, factor)}
        if name == "bool":
            return {name: self._name_bool(content, factor)}
        if name == "boosting":
            return {name: self._name_boosting(content, factor)}
        raise _InseparableBoostsError(f"a {name} query contains both; put the boosts into a bool query around it")

    def find_kinds(self, clause: Any) -> frozenset[str]:
        """Return what a clause's score depends on.

        It is ``text``, ``filter`` (exact values or another text) or ``rule`` (numbers, dates, places and functions).
        ``bool`` and other compound clauses can have several kinds.
        """
        if isinstance(clause, list):
            return frozenset(kind for element in clause for kind in self.find_kinds(element))
        if not isinstance(clause, Mapping):
            return frozenset()
        kinds = set[str]()
        for name, content in clause.items():
            if name in COMPOUND_CLAUSES and isinstance(content, Mapping):
                kinds.update(*(self.find_kinds(content.get(key)) for key in COMPOUND_CLAUSES[name]))
                if name in ("boosting", "script_score") or (name == "function_score" and _list_functions(content)):
                    kinds.add("rule")
            elif name in RULE_CLAUSES:
                kinds.add("rule")
            elif name in FILTER_CLAUSES or self._is_filter({name: content}):
                kinds.add("filter")
            else:
                kinds.add("text")
        return frozenset(kinds)

    def _is_filter(self, leaf: Mapping[str, Any]) -> bool:
        """Return whether a clause searches only non-text fields, or only for texts other than the query text."""
        texts_with_fields = list(find_texts_with_fields(leaf))
        names = [without_boost(name) for _, fields in texts_with_fields for name in fields]
        if names and all(name in self.non_text_fields for name in names):
            return True
        texts = [text for text, _ in texts_with_fields]
        return self.text is not None and bool(texts) and self.text not in texts

    def _new_name(self) -> str:
        """Return a name that no other part of the query has, such as ``osrerank-0``."""
        self.n_names += 1
        return f"{PREFIX}{self.n_names - 1}"

    def _add_name(self, clause: Any, names: list[str]) -> dict[str, Any]:
        """Wrap a clause in a bool query with a new name, and append the name to ``names``."""
        names.append(self._new_name())
        return _wrap(clause, names[-1])

    def _name_function_score(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Name the text part of a ``function_score``, and add a named copy of its functions to `filters`.

        The copy matches all documents, and its score is the value of the functions (``boost_mode`` ``replace``).
        """
        named_content = {**content, "query": self.name_parts(content.get("query"), factor)}
        if not _list_functions(content):
            return named_content
        mode = str(content.get("boost_mode", "multiply")).lower()
        if mode not in _COMBINERS:
            raise ValueError(mode)
        removed_keys = _NON_FUNCTION_KEYS - {"score_mode", "max_boost"}  # these two say how functions are combined
        functions = {key: value for key, value in content.items() if key not in removed_keys}
        name = self._new_name()
        functions |= {"query": {"match_all": {}}, "boost_mode": "replace", "_name": name}
        self.filters.append({"function_score": functions})
        self.steps.append(Boost(mode, (name,), enclosing_names=self.enclosing_names))
        return named_content

    def _name_bool(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Name the text part of a ``bool``, and each of its other scoring clauses, which are boosts to be added."""
        clause_lists = {key: _as_list(content.get(key)) for key in ("must", "should") if content.get(key)}
        kinds_by_clause = [self.find_kinds(clause) for clauses in clause_lists.values() for clause in clauses]
        kinds_of_texts = [clause_kinds for clause_kinds in kinds_by_clause if "text" in clause_kinds]
        have_boosts = any(clause_kinds != {"text"} for clause_kinds in kinds_of_texts)
        if len(kinds_of_texts) > 1 and have_boosts:
            raise _InseparableBoostsError("several parts of a bool query search for a text, and one of them has boosts")
        named_content, boost_names = dict(content), list[str]()
        for key, clauses in clause_lists.items():
            named_clauses: list[Any] = []
            for clause in clauses:
                clause_kinds = self.find_kinds(clause)
                if not clause_kinds:  # it does not score
                    named_clauses.append(clause)
                elif "text" not in clause_kinds:
                    named_clauses.append(self._add_name(clause, boost_names))
                elif key == "should":
                    named_clauses.append(self._name_should_clause(clause, factor))
                else:
                    named_clauses.append(self.name_parts(clause, factor))
            named_content[key] = named_clauses
        if boost_names:
            self.steps.append(Boost("sum", tuple(boost_names), factor, enclosing_names=self.enclosing_names))
        return named_content

    def _name_should_clause(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a copy of a ``should`` clause with names for its text part and boosts.

        A clause with boosts also gets a name itself, because the boosts apply only to hits that match the clause.
        """
        if len(self.find_kinds(clause)) == 1:
            return self.name_parts(clause, factor)
        name, outer_names = self._new_name(), self.enclosing_names
        self.enclosing_names = (*outer_names, name)
        named_parts = self.name_parts(clause, factor)
        self.enclosing_names = outer_names
        return _wrap(named_parts, name)

    def _name_boosting(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Name both parts of a ``boosting``: ``positive`` has the text, and ``negative`` is a boost to multiply by."""
        positive = self.name_parts(content["positive"], factor)
        name = self._new_name()
        negative = _wrap(content["negative"], name)
        value = float(content["negative_boost"])
        self.steps.append(Boost("multiply", (name,), fixed_value=value, enclosing_names=self.enclosing_names))
        return {**content, "positive": positive, "negative": negative}


def _wrap(clause: Any, name: str) -> dict[str, Any]:
    return {"bool": {"must": [clause], "_name": name}}


def _as_list(clauses: Any) -> list[Any]:
    return clauses if isinstance(clauses, list) else [clauses]


def _list_functions(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the functions of a ``function_score``: the list under ``functions``, and a function beside this key."""
    single = {key: value for key, value in content.items() if key not in _NON_FUNCTION_KEYS and key != "functions"}
    return [*_as_list(content.get("functions") or []), *([single] if single else [])]


def _check_functions(part: Any) -> None:
    """Raise `_InseparableBoostsError` if a function's value depends on the text score or on chance."""
    if isinstance(part, list):
        for element in part:
            _check_functions(element)
    if not isinstance(part, Mapping):
        return
    for value in part.values():
        _check_functions(value)
    if "random_score" in part and "seed" not in (part["random_score"] or {}):
        raise _InseparableBoostsError("random_score has no seed, so its values change with each search")
    if "script_score" in part:
        script = part["script_score"].get("script")
        source = script.get("source") if isinstance(script, Mapping) else script
        if not isinstance(source, str):
            raise _InseparableBoostsError("a stored script may use _score; write the script into the query")
        if "_score" in source:
            raise _InseparableBoostsError("a script uses _score; multiply by it with boost_mode instead")


def split_scores(response: Mapping[str, Any], boosts: Boosts) -> tuple[tuple[Parts, ...] | Reason, dict[str, Any]]:
    """Split the score of each hit into its text score and its boosts.

    Returns:
        the parts of each hit's score, or the reason why they are unknown; and the response without the query names
        that osrerank added.

    Raises:
        ResponseFormatError: ``response`` is not a search response.
    """
    hits = parse_hits(response)
    caller_response = restore_caller_names(response, wants_scores=boosts.wants_scores)
    parts = []
    for rank, hit in enumerate(hits, start=1):
        score = hit.get("_score")
        if not isinstance(score, int | float):
            return _inseparable_reason("a hit has no score"), caller_response
        matched = hit.get("matched_queries")
        query_scores = matched if isinstance(matched, Mapping) else {}  # a list of names has no scores
        try:
            text_score = boosts.compute_text_score(query_scores)
            values = [boost.compute_value(query_scores) for boost in boosts.steps]
            combined_score = combine(text_score, values, boosts.steps)
        except TypeError:  # a score is the string "NaN"
            combined_score = math.nan
        max_error = MAX_ERROR_ULPS * float(np.spacing(np.float32(score)))
        if not abs(combined_score - score) <= max_error:  # also if one of them is NaN
            cause = f"the hit at rank {rank} has the _score {score:.7g}, but its parts combine to {combined_score:.7g}"
            return _inseparable_reason(cause), caller_response
        boost_values = {_boost_key(number): value for number, value in enumerate(values, start=1)}
        parts.append({TEXT_SCORE: text_score, **boost_values})
    return tuple(parts), caller_response


def restore_caller_names(response: Mapping[str, Any], *, wants_scores: bool) -> dict[str, Any]:
    """Remove osrerank's query names from each ``matched_queries`` of a response.

    The names of the caller's queries stay. If ``wants_scores``, they keep their scores, as in ``{"recent": 1.5}``.
    Otherwise they become a list, as in ``["recent"]``.
    """
    hits = response["hits"]
    restored_hits = [_restore_hit(hit, wants_scores=wants_scores) for hit in hits["hits"]]
    restored = {**response, "hits": {**hits, "hits": restored_hits}}
    if "aggregations" in response:
        restored["aggregations"] = _restore_nested_hits(response["aggregations"], wants_scores=wants_scores)
    return restored


def _boost_key(number: int) -> str:
    """Return the key of a boost in `Parts`: ``boost`` for the first, ``boost_2`` for the second."""
    return f"boost_{number}" if number > 1 else "boost"


def _restore_hit(hit: Mapping[str, Any], *, wants_scores: bool) -> dict[str, Any]:
    matched = hit.get("matched_queries") or {}
    if not isinstance(matched, Mapping):  # an engine that returns only names
        matched = dict.fromkeys(matched)
    caller_queries = {name: score for name, score in matched.items() if not name.startswith(PREFIX)}
    restored = {name: value for name, value in hit.items() if name != "matched_queries"}
    if "inner_hits" in restored:
        restored["inner_hits"] = _restore_nested_hits(restored["inner_hits"], wants_scores=wants_scores)
    if caller_queries:
        restored["matched_queries"] = caller_queries if wants_scores else list(caller_queries)
    return restored


def _restore_nested_hits(json_value: Any, *, wants_scores: bool) -> Any:
    """Remove osrerank's query names from each ``matched_queries`` in a value of a response, at any depth."""
    if isinstance(json_value, list):
        return [_restore_nested_hits(element, wants_scores=wants_scores) for element in json_value]
    if not isinstance(json_value, Mapping):
        return json_value
    copy = {
        key: value if key == "_source" else _restore_nested_hits(value, wants_scores=wants_scores)
        for key, value in json_value.items()
    }
    return _restore_hit(copy, wants_scores=wants_scores) if "matched_queries" in copy else copy


def add_score_parts(ranking: Ranking, parts: Sequence[Parts]) -> Ranking:
    """Return a first pass's ranking with the parts of each candidate's score. ``parts`` are in the ranking's order."""
    candidates = [
        candidate.with_first_parts(score_parts)
        for candidate, score_parts in zip(ranking.candidates, parts, strict=True)
    ]
    return replace(ranking, candidates=tuple(candidates))


def combine(text_score: float, values: Sequence[float], steps: Sequence[Boost]) -> float:
    """Combine a text score with the value of each boost, one step after the other."""
    score = text_score
    for value, step in zip(values, steps, strict=True):
        score = _COMBINERS[step.mode](score, value)
    return score


def apply_boosts(ranking: Ranking, boosts: Boosts | Reason) -> Ranking:
    """Apply the query's boosts to a ranking, or report why they cannot be applied.

    The model's best candidate gets the highest text score of all reranked candidates, the second best gets the second
    highest, and so on. Each text score is then combined with the candidate's boosts as in the query. If the model ranks
    candidates as their text scores do, the result is the first pass's order. Candidates that were not reranked stay
    below, in their order.
    """
    started_s = time.perf_counter()
    reranked = [candidate for candidate in ranking.candidates if _is_reranked(candidate)]
    if not reranked:
        return ranking
    if isinstance(boosts, Reason):
        report = StageReport(STAGE, applied=False, reason=str(boosts), code=boosts.code, skipped=True)
        return ranking.with_report(report)
    text_scores = sorted((candidate.text_score for candidate in reranked), reverse=True)
    scores = list(_compute_boosted_scores(reranked, text_scores, boosts.steps))
    first_ranks = [candidate.trace[0].rank for candidate in reranked]
    order = sorted(range(len(reranked)), key=lambda index: (-scores[index], first_ranks[index]))
    level = max(candidate.trace[-1].level for candidate in reranked)
    boosted = []
    for rank, index in enumerate(order, start=1):
        score, candidate = scores[index], reranked[index]
        parts = {TEXT_SCORE: text_scores[index]}
        entry = StageScore(STAGE, score, rank, unit=squash(score), parts=parts, level=level)
        boosted.append(candidate._replace(score=score, rank=rank, trace=(*candidate.trace, entry)))
    remaining = [candidate for candidate in ranking.candidates if not _is_reranked(candidate)]
    took_ms = (time.perf_counter() - started_s) * 1000
    report = StageReport(STAGE, applied=True, candidates=len(reranked), took_ms=took_ms)
    return ranking.reordered((*boosted, *remaining), report)


def _is_reranked(candidate: Candidate) -> bool:
    return candidate.trace[-1].level > 0


def _compute_boosted_scores(
    candidates: Sequence[Candidate], text_scores: Sequence[float], steps: Sequence[Boost]
) -> Iterator[float]:
    """Yield each candidate's score, computed from its new text score and its boosts.

    If the text score has not changed, this is the first-pass score, so that no rounding changes it.
    """
    for candidate, text_score in zip(candidates, text_scores, strict=True):
        first_pass = candidate.trace[0]
        if text_score == candidate.text_score:
            yield first_pass.score
        else:
            values = [first_pass.parts[_boost_key(number)] for number in range(1, len(steps) + 1)]
            yield combine(text_score, values, steps)
