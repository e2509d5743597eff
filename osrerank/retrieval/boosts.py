"""Separate the text score of a query from its boosts, so that a model replaces the text score and the boosts stay.

A model cannot read recency, stock and other rules that a caller adds to a query (``function_score``, ``rank_feature``,
a filter in a ``should``). So the first pass's query gets names, and OpenSearch returns the scores of the text part and
of each boost for every hit. A `Boosts` says how these scores make up ``_score``. `split_scores` checks it, and
`apply_boosts` applies the same boosts to the model's order.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osrerank.response import hits_of, squash
from osrerank.retrieval.mapping import plain
from osrerank.retrieval.query_text import COMPOUND_CLAUSES, texts_with_fields
from osrerank.types import Candidate, Ranking, StageReport, StageScore
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.types.values import TEXT

STAGE = "boosts"
"""The name of the step after the stages, in reports and in hits."""
SCORED = "include_named_queries_score"
"""The URL parameter by which named queries have scores: since OpenSearch 2.13 and Elasticsearch 8.8."""
PREFIX = "osrerank-"
"""The prefix of the names that osrerank gives to queries."""
ULPS = 8
"""How far the combined parts may be from ``_score``, in units in the last place of float32: each part is rounded."""
RULES = frozenset({"rank_feature", "distance_feature"})
"""Clauses that only boost."""
FILTERS = frozenset({
    "match_all", "match_none", "term", "terms", "terms_set", "range", "exists", "ids", "prefix", "wildcard", "regexp",
    "constant_score", "geo_distance", "geo_bounding_box", "geo_polygon", "geo_shape", "script",
})  # fmt: skip
"""Clauses that select documents by exact values; their scores do not depend on text."""
_OPTIONS = frozenset({"query", "boost", "boost_mode", "score_mode", "max_boost", "min_score", "_name"})
"""Keys of a ``function_score`` that do not define a function."""
_SINGLE = {"multiply", "sum", "avg", "max", "min", "replace"}


@dataclass(frozen=True, slots=True)
class Boost:
    """One boost of a query, in the order in which they are combined, from the text outwards.

    Attributes:
        mode: how it is combined with the score so far: a ``boost_mode`` of ``function_score``.
        names: the queries whose scores are added up to the boost.
        factor: the product of the ``boost`` of all enclosing clauses; it multiplies the sum.
        present_value: the boost of a hit that matches the query, whatever its score (``negative_boost``); else None.
        within: the optional queries that enclose it; a hit that does not match all of them gets no boost.
    """

    mode: str
    names: tuple[str, ...]
    factor: float = 1.0
    present_value: float | None = None
    within: tuple[str, ...] = ()

    def value(self, scores: Mapping[str, float]) -> float:
        """Return a hit's boost.

        Args:
            scores: name -> score, for the named queries that the hit matches.
        """
        if not scores.keys() >= set(self.within):
            return 1.0 if self.mode == "multiply" else 0.0
        if self.present_value is not None:
            return self.present_value if self.names[0] in scores else 1.0
        return self.factor * sum(scores.get(name, 0.0) for name in self.names)


@dataclass(frozen=True, slots=True)
class Boosts:
    """A query whose parts have names, and how their scores make up ``_score``.

    Attributes:
        query: the query to send; it finds the same hits with the same scores as the caller's query.
        texts: the names of the text part; their scores are added up to the text score.
        factor: the product of the ``boost`` of all clauses that enclose the text part; it multiplies the text score.
        within: the optional queries that enclose the text part; a hit that lacks one of them has a text score of 0.
        steps: the boosts.
        has_scores: whether the caller asked for the scores of named queries, too.
    """

    query: Mapping[str, Any]
    texts: tuple[str, ...]
    factor: float
    within: tuple[str, ...]
    steps: tuple[Boost, ...]
    has_scores: bool = False

    def text(self, scores: Mapping[str, float]) -> float:
        """Return a hit's text score.

        Args:
            scores: name -> score, for the named queries that the hit matches.
        """
        if not scores.keys() >= set(self.within):
            return 0.0
        return self.factor * sum(scores.get(name, 0.0) for name in self.texts)


Parts = Mapping[str, float]
"""The scores of a hit's text part and boosts, under the keys `TEXT`, ``boost``, ``boost_2`` and so on."""


def boosts_of(
    body: Mapping[str, Any], params: Mapping[str, Any], text: str, exact: Collection[str]
) -> Boosts | Reason | None:
    """Return the boosts of a search; the reason if they cannot be separated from its text score; None if it has none.

    Args:
        body: the caller's body.
        params: the caller's URL parameters.
        text: the query text. If some clause searches for it, a clause that searches for another text is a boost.
        exact: fields of exact values, such as keywords; a clause that searches only these is a boost.
    """
    query = body.get("query")
    naming = _Naming(text if text in (clause_text for clause_text, _ in texts_with_fields(query)) else None, exact)
    kinds = naming.kinds(query)
    if setting := next((key for key in ("rescore", "indices_boost") if body.get(key)), None):
        return _inseparable(f"{setting} changes the score after the query")
    if not isinstance(query, Mapping) or ("rule" not in kinds and not {"text", "filter"} <= kinds):
        return None
    try:
        _check(query)
        named_query = naming.name_parts(query, 1.0)
    except _Inseparable as error:
        return _inseparable(str(error))
    except (AttributeError, KeyError, TypeError, ValueError):  # an invalid query: OpenSearch will report it
        return None
    if naming.filters:
        named_query = {"bool": {"must": [named_query], "filter": naming.filters}}
    has_scores = asks_for_scores(params)
    return Boosts(named_query, tuple(naming.texts), naming.factor, naming.text_within, tuple(naming.steps), has_scores)


def asks_for_scores(params: Mapping[str, Any]) -> bool:
    """Return whether URL parameters ask for the scores of named queries."""
    return str(params.get(SCORED, "")).lower() == "true"


def _inseparable(cause: str) -> Reason:
    return Reason(ReasonCode.BOOSTS, f"the boosts of the query cannot be separated from its text score: {cause}")


class _Inseparable(Exception):  # noqa: N818 - it never leaves this module
    """A query whose boosts cannot be separated from its text score; the message says why."""


@dataclass(slots=True)
class _Naming:
    """Gives names to the parts of a query, from its root to the text.

    Attributes:
        text: the query text, if a clause searches for it.
        exact: fields of exact values.
        texts, factor, steps: as in `Boosts`.
        filters: named queries to add as filters that every document passes.
        count: the number of names given so far.
        within: the optional queries that enclose the clause that is being named.
        text_within: the optional queries that enclose the text part.
    """

    text: str | None
    exact: Collection[str]
    texts: list[str] = field(default_factory=list)
    factor: float = 1.0
    steps: list[Boost] = field(default_factory=list)
    filters: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    within: tuple[str, ...] = ()
    text_within: tuple[str, ...] = ()

    def name_parts(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a copy of a clause whose text part and boosts have names.

        Args:
            clause: the clause; it has a text part.
            factor: the product of the ``boost`` of all enclosing clauses.

        Raises:
            _Inseparable: its boosts cannot be separated from its text score.
        """
        kinds = self.kinds(clause)
        if "text" not in kinds:
            raise _Inseparable("no part of it searches for a text")
        if len(kinds) == 1:
            self.factor, self.text_within = factor, self.within
            return self._add_name(clause, self.texts)
        (name, content), *_ = clause.items()
        factor *= float(content.get("boost", 1.0))
        if name == "function_score":
            return {name: self._function_score(content, factor)}
        if name == "bool":
            return {name: self._bool(content, factor)}
        if name == "boosting":
            return {name: self._boosting(content, factor)}
        raise _Inseparable(f"a {name} query combines both")

    def kinds(self, clause: Any) -> frozenset[str]:
        """Return what a clause's score comes from: ``text``, ``filter`` (exact values or another text), ``rule``."""
        if isinstance(clause, list):
            return frozenset(kind for element in clause for kind in self.kinds(element))
        if not isinstance(clause, Mapping):
            return frozenset()
        kinds = set[str]()
        for name, content in clause.items():
            if name in COMPOUND_CLAUSES and isinstance(content, Mapping):
                kinds.update(*(self.kinds(content.get(key)) for key in COMPOUND_CLAUSES[name]))
                if name in ("boosting", "script_score") or (name == "function_score" and _functions(content)):
                    kinds.add("rule")
            elif name in RULES:
                kinds.add("rule")
            else:
                kinds.add("filter" if name in FILTERS or self._is_filter({name: content}) else "text")
        return frozenset(kinds)

    def _is_filter(self, leaf: Mapping[str, Any]) -> bool:
        """Return whether a clause searches only fields of exact values, or for another text than the query text."""
        texts = list(texts_with_fields(leaf))
        names = [plain(name) for _, fields in texts for name in fields]
        is_exact = bool(names) and all(name in self.exact for name in names)
        return is_exact or (self.text is not None and bool(texts) and all(text != self.text for text, _ in texts))

    def _add_name(self, clause: Any, names: list[str]) -> dict[str, Any]:
        """Return a clause wrapped in a bool query with a new name, and append the name to ``names``."""
        names.append(f"{PREFIX}{self.count}")
        self.count += 1
        return {"bool": {"must": [clause], "_name": names[-1]}}

    def _function_score(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        renamed = {**content, "query": self.name_parts(content.get("query"), factor)}
        if not _functions(content):
            return renamed
        mode = str(content.get("boost_mode", "multiply")).lower()
        if mode not in _SINGLE:
            raise ValueError(mode)
        rules = {
            key: value for key, value in content.items() if key not in _OPTIONS or key in ("score_mode", "max_boost")
        }
        name = f"{PREFIX}{self.count}"
        self.count += 1
        alone = {**rules, "query": {"match_all": {}}, "boost_mode": "replace", "_name": name}
        self.filters.append({"function_score": alone})
        self.steps.append(Boost(mode, (name,), within=self.within))
        return renamed

    def _bool(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Return a bool query whose scoring clauses have names."""
        renamed, boosts = dict(content), list[str]()
        clause_lists = {key: _listed(content.get(key)) for key in ("must", "should") if content.get(key)}
        kinds = [self.kinds(clause) for clauses in clause_lists.values() for clause in clauses]
        with_text = [clause_kinds for clause_kinds in kinds if "text" in clause_kinds]
        if len(with_text) > 1 and any(clause_kinds != {"text"} for clause_kinds in with_text):
            raise _Inseparable("several parts of a bool query search for a text, and one of them has boosts")
        for key, clauses in clause_lists.items():
            name_text_clause = self._optional if key == "should" else self.name_parts
            renamed[key] = []
            for clause in clauses:
                if "text" in self.kinds(clause):
                    renamed[key].append(name_text_clause(clause, factor))
                else:
                    renamed[key].append(self._add_name(clause, boosts) if self.kinds(clause) else clause)
        if boosts:
            self.steps.append(Boost("sum", tuple(boosts), factor, within=self.within))
        return renamed

    def _optional(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a named copy of a ``should`` clause with a text part; with boosts, the clause gets a name, too."""
        if len(self.kinds(clause)) == 1:
            return self.name_parts(clause, factor)
        names, outer = list[str](), self.within
        self.within = (*outer, f"{PREFIX}{self.count}")
        named = self._add_name(None, names)
        named["bool"]["must"] = [self.name_parts(clause, factor)]
        self.within = outer
        return named

    def _boosting(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        names = list[str]()
        positive = self.name_parts(content["positive"], factor)
        negative = self._add_name(content["negative"], names)
        self.steps.append(
            Boost("multiply", tuple(names), present_value=float(content["negative_boost"]), within=self.within)
        )
        return {**content, "positive": positive, "negative": negative}


def _listed(clauses: Any) -> list[Any]:
    return clauses if isinstance(clauses, list) else [clauses]


def _functions(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the functions of a ``function_score``; a single one may stand outside the list."""
    single = {key: value for key, value in content.items() if key not in _OPTIONS and key != "functions"}
    return [*_listed(content.get("functions") or []), *([single] if single else [])]


def _check(part: Any) -> None:
    """Raise `_Inseparable` if the value of a function depends on the query or on chance."""
    for value in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        _check(value)
    if not isinstance(part, Mapping):
        return
    if "random_score" in part and "seed" not in (part["random_score"] or {}):
        raise _Inseparable("random_score has no seed, so each search draws other values")
    if "script_score" in part:
        script = part["script_score"].get("script")
        source = script.get("source") if isinstance(script, Mapping) else script
        if not isinstance(source, str) or "_score" in source:
            raise _Inseparable("a script reads _score, or is a stored script")


def split_scores(response: Mapping[str, Any], boosts: Boosts) -> tuple[tuple[Parts, ...] | Reason, dict[str, Any]]:
    """Return the parts of each hit's score, or the reason why they are unknown; and the response without our names.

    The parts count only if they combine to each hit's ``_score``, to the last places of float32.

    Args:
        response: the response to ``boosts.query``.
        boosts: the query with names.

    Raises:
        ResponseFormatError: ``response`` is not a search response.
    """
    raw = hits_of(response)
    answer = with_own_names(response, has_scores=boosts.has_scores)
    parts = []
    for rank, hit in enumerate(raw, start=1):
        score, matched = hit.get("_score"), hit.get("matched_queries")
        if not isinstance(score, int | float):
            return _inseparable("a hit has no score"), answer
        matched = matched if isinstance(matched, Mapping) else {}
        try:
            text = boosts.text(matched)
            values = [boost.value(matched) for boost in boosts.steps]
            combined_score = combine(text, values, boosts.steps)
        except TypeError:  # "NaN"
            combined_score = math.nan
        if not abs(combined_score - score) <= ULPS * float(np.spacing(np.float32(score))):
            cause = f"the hit at rank {rank} has the _score {score:.7g}, but its parts make {combined_score:.7g}"
            return _inseparable(cause), answer
        parts.append({TEXT: text, **{_name(number): value for number, value in enumerate(values, start=1)}})
    return tuple(parts), answer


def with_own_names(response: Mapping[str, Any], *, has_scores: bool) -> dict[str, Any]:
    """Return a response whose hits have the caller's own ``matched_queries``, and their scores only if asked for."""
    hits = response["hits"]
    answer = {**response, "hits": {**hits, "hits": [_hit_with_own_names(hit, has_scores) for hit in hits["hits"]]}}
    if "aggregations" in response:
        answer["aggregations"] = _nested_own_names(response["aggregations"], has_scores)
    return answer


def _name(number: int) -> str:
    return f"boost_{number}" if number > 1 else "boost"


def _hit_with_own_names(hit: Mapping[str, Any], has_scores: bool) -> dict[str, Any]:  # noqa: FBT001 - as in the response
    """Return a hit without our names in ``matched_queries``: a list, or names and scores if the caller wants scores."""
    matched = hit.get("matched_queries") or {}
    if not isinstance(matched, Mapping):  # an engine that returns only names
        matched = dict.fromkeys(matched)
    own_queries = {name: score for name, score in matched.items() if not name.startswith(PREFIX)}
    cleaned = {name: value for name, value in hit.items() if name != "matched_queries"}
    if "inner_hits" in cleaned:
        cleaned["inner_hits"] = _nested_own_names(cleaned["inner_hits"], has_scores)
    if own_queries:
        cleaned["matched_queries"] = own_queries if has_scores else list(own_queries)
    return cleaned


def _nested_own_names(part: Any, has_scores: bool) -> Any:  # noqa: FBT001 - as in the response
    """Return a part of a response in which no ``matched_queries``, at any depth, has our names."""
    if isinstance(part, list):
        return [_nested_own_names(element, has_scores) for element in part]
    if not isinstance(part, Mapping):
        return part
    copy = {key: value if key == "_source" else _nested_own_names(value, has_scores) for key, value in part.items()}
    return _hit_with_own_names(copy, has_scores) if "matched_queries" in copy else copy


def with_parts(ranking: Ranking, parts: Sequence[Parts]) -> Ranking:
    """Return a first pass's ranking with the parts of each candidate's score; ``parts`` is in the ranking's order."""
    pairs = zip(ranking.candidates, parts, strict=True)
    return replace(ranking, candidates=tuple(candidate.with_first_parts(scores) for candidate, scores in pairs))


def combine(text: float, boosts: Sequence[float], steps: Sequence[Boost]) -> float:
    """Return the score that a text score and boosts combine to, from the text outwards."""
    score = text
    for value, step in zip(boosts, steps, strict=True):
        if step.mode == "multiply":
            score *= value
        elif step.mode == "sum":
            score += value
        elif step.mode == "avg":
            score = (score + value) / 2
        elif step.mode == "max":
            score = max(score, value)
        elif step.mode == "min":
            score = min(score, value)
        else:
            score = value
    return score


def apply_boosts(ranking: Ranking, boosts: Boosts | Reason) -> Ranking:
    """Return a ranking with the boosts of the query applied, or with a report of the reason why they are not.

    The text scores are dealt out again among the reranked candidates: the model's best candidate gets the highest, and
    so on. Each is then combined with the candidate's boosts as in the query. If the model agrees with the text scores,
    the result is the first pass's order. Candidates that were not reranked stay below, in their order.

    Args:
        ranking: the ranking after the stages.
        boosts: the boosts, or the reason why they do not count.
    """
    started = time.perf_counter()
    block = [candidate for candidate in ranking.candidates if candidate.trace[-1].level]
    if not block:
        return ranking
    if isinstance(boosts, Reason):
        report = StageReport(STAGE, applied=False, reason=str(boosts), code=boosts.code, skipped=True)
        return ranking.with_report(report)
    texts = sorted((candidate.text_score for candidate in block), reverse=True)
    scored = sorted(
        zip(_scores(block, texts, boosts.steps), texts, block, strict=True),
        key=lambda entry: (-entry[0], entry[2].trace[0].rank),
    )
    level = max(candidate.trace[-1].level for candidate in block)
    ranked = [
        candidate._replace(
            score=score,
            rank=rank,
            trace=(*candidate.trace, StageScore(STAGE, score, rank, squash(score), {TEXT: text}, level=level)),
        )
        for rank, (score, text, candidate) in enumerate(scored, start=1)
    ]
    remaining = [candidate for candidate in ranking.candidates if not candidate.trace[-1].level]
    took_ms = (time.perf_counter() - started) * 1000
    report = StageReport(STAGE, applied=True, candidates=len(block), took_ms=took_ms)
    return ranking.reordered((*ranked, *remaining), report)


def _scores(block: Sequence[Candidate], texts: Sequence[float], steps: Sequence[Boost]) -> Iterator[float]:
    """Yield each candidate's score; if its text score is the same as before, this is exactly the first pass's score."""
    for candidate, text in zip(block, texts, strict=True):
        first = candidate.trace[0]
        if text == candidate.text_score:
            yield first.score
        else:
            yield combine(text, [first.parts[_name(number)] for number in range(1, len(steps) + 1)], steps)
