"""Tell the text score of a query from its boosts, so that a model replaces the one and the caller's rules stay.

Recency, stock and other rules that a caller adds to a query (``function_score``, ``rank_feature``, a filter in a
``should``) are in no text that a model reads. The first pass's query gets names: for each hit OpenSearch then returns
the score of the text part, and those of the boosts. A `Boosts` says how they make ``_score`` together; `told` checks
it, and `boosted` combines the model's order with the same boosts again.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osrerank.response import hits_of, squash
from osrerank.retrieval.mapping import plain
from osrerank.retrieval.query_text import COMPOUND_CLAUSES, parts_of
from osrerank.types import Candidate, Ranking, StageReport, StageScore
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.types.values import TEXT

STAGE = "boosts"
"""The name of the step after the stages, in reports and in hits."""
SCORED = "include_named_queries_score"
"""The URL parameter by which named queries have scores: since OpenSearch 2.13 and Elasticsearch 8.8."""
PREFIX = "osrerank-"
"""What our names of queries begin with."""
ULPS = 8
"""How far the parts, combined, may be from ``_score``, in last places of float32: each of them is rounded to it."""
RULES = frozenset({"rank_feature", "distance_feature"})
"""Clauses that boost, and search for nothing."""
FILTERS = frozenset({
    "match_all", "match_none", "term", "terms", "terms_set", "range", "exists", "ids", "prefix", "wildcard", "regexp",
    "constant_score", "geo_distance", "geo_bounding_box", "geo_polygon", "geo_shape", "script",
})  # fmt: skip
"""Clauses that select documents by exact values, whose scores say nothing of a text."""
_OPTIONS = frozenset({"query", "boost", "boost_mode", "score_mode", "max_boost", "min_score", "_name"})
"""The parts of a ``function_score`` that are no function."""
_SINGLE = {"multiply", "sum", "avg", "max", "min", "replace"}


@dataclass(frozen=True, slots=True)
class Step:
    """One boost of a query, in the order in which they are combined, from the text outwards.

    Attributes:
        mode: how it is combined with the score so far: a ``boost_mode`` of ``function_score``.
        names: the queries whose scores are added up to the boost.
        factor: multiplies them, by the ``boost`` of the clauses around them.
        instead: the boost of a hit if a query's presence, and not its score, counts (``negative_boost``).
        within: the optional queries that it is in: in a hit that lacks one of them, it has no effect.
    """

    mode: str
    names: tuple[str, ...]
    factor: float = 1.0
    instead: float | None = None
    within: tuple[str, ...] = ()

    def of(self, scores: Mapping[str, float]) -> float:
        """Return a hit's boost by the scores of the named queries that it matches."""
        if not scores.keys() >= set(self.within):
            return 1.0 if self.mode == "multiply" else 0.0
        if self.instead is not None:
            return self.instead if self.names[0] in scores else 1.0
        return self.factor * sum(scores.get(name, 0.0) for name in self.names)


@dataclass(frozen=True, slots=True)
class Boosts:
    """A query whose parts have names, and how these make ``_score``.

    Attributes:
        query: the query to send; it has the hits and the scores of the caller's own.
        texts: the names of the text part; its score is the sum of theirs.
        factor: multiplies them, by the ``boost`` of the clauses around them.
        within: the optional queries that the text part is in: a hit that lacks one of them has a text score of 0.
        steps: the boosts.
        has_scores: whether the caller asked for the scores of named queries, too.
    """

    query: Mapping[str, Any]
    texts: tuple[str, ...]
    factor: float
    within: tuple[str, ...]
    steps: tuple[Step, ...]
    has_scores: bool = False

    def text(self, scores: Mapping[str, float]) -> float:
        """Return a hit's text score by the scores of the named queries that it matches."""
        is_there = scores.keys() >= set(self.within)
        return self.factor * sum(scores.get(name, 0.0) for name in self.texts) if is_there else 0.0


Parts = Mapping[str, float]
"""What the text and the boosts of a query scored in a hit, by `TEXT`, ``boost``, ``boost_2`` and so on."""


def boosts_of(
    body: Mapping[str, Any], params: Mapping[str, Any], text: str, exact: Collection[str]
) -> Boosts | Reason | None:
    """Return how the boosts of a search are told from its text score; or why they cannot be; None if it has none.

    Args:
        body: the caller's body.
        params: the caller's URL parameters.
        text: the query text; a clause that searches for another one boosts, if any searches for this one.
        exact: fields of exact values, such as keywords: a clause that searches these alone boosts.
    """
    query = body.get("query")
    naming = _Naming(text if text in (own for own, _ in parts_of(query)) else None, exact)
    kinds = naming.kinds(query)
    if changed := next((part for part in ("rescore", "indices_boost") if body.get(part)), None):
        return _untold(f"{changed} changes the score after the query")
    if not isinstance(query, Mapping) or ("rule" not in kinds and not {"text", "filter"} <= kinds):
        return None
    try:
        _check(query)
        named = naming.of(query, 1.0)
    except _Tangled as tangled:
        return _untold(str(tangled))
    except (AttributeError, KeyError, TypeError, ValueError):  # OpenSearch will say what is wrong with it
        return None
    if naming.beside:
        named = {"bool": {"must": [named], "filter": naming.beside}}
    scored = asks_for_scores(params)
    return Boosts(named, tuple(naming.texts), naming.factor, naming.text_within, tuple(naming.steps), scored)


def asks_for_scores(params: Mapping[str, Any]) -> bool:
    """Return whether URL parameters ask for the scores of named queries."""
    return str(params.get(SCORED, "")).lower() == "true"


def _untold(why: str) -> Reason:
    return Reason(ReasonCode.BOOSTS, f"the boosts of the query cannot be told from its text score: {why}")


class _Tangled(Exception):  # noqa: N818 - it never leaves this module
    """A query whose boosts cannot be told from its text score; the message says why."""


@dataclass(slots=True)
class _Naming:
    """Gives names to the parts of a query, from its root to the text.

    Attributes:
        text: the query text, if a clause searches for it.
        exact: fields of exact values.
        texts, factor, steps: as in `Boosts`.
        beside: named queries that stand beside the caller's, as filters that every document passes.
        count: how many names were given.
        within: the optional queries around the clause that is being named.
        text_within: those around the text part.
    """

    text: str | None
    exact: Collection[str]
    texts: list[str] = field(default_factory=list)
    factor: float = 1.0
    steps: list[Step] = field(default_factory=list)
    beside: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    within: tuple[str, ...] = ()
    text_within: tuple[str, ...] = ()

    def of(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a clause with a text part, with its parts named.

        Args:
            clause: the clause.
            factor: the product of the boosts of the clauses around it.

        Raises:
            _Tangled: its boosts cannot be told from its text score.
        """
        kinds = self.kinds(clause)
        if "text" not in kinds:
            raise _Tangled("no part of it searches for a text")
        if len(kinds) == 1:
            self.factor, self.text_within = factor, self.within
            return self._named(clause, self.texts)
        (name, content), *_ = clause.items()
        factor *= float(content.get("boost", 1.0))
        if name == "function_score":
            return {name: self._function_score(content, factor)}
        if name == "bool":
            return {name: self._bool(content, factor)}
        if name == "boosting":
            return {name: self._boosting(content, factor)}
        raise _Tangled(f"a {name} query combines both")

    def kinds(self, clause: Any) -> frozenset[str]:
        """Return what makes a clause's score: ``text``, ``filter`` (exact values or another text), or ``rule``."""
        if isinstance(clause, list):
            return frozenset(kind for item in clause for kind in self.kinds(item))
        if not isinstance(clause, Mapping):
            return frozenset()
        found = set[str]()
        for name, content in clause.items():
            if name in COMPOUND_CLAUSES and isinstance(content, Mapping):
                found.update(*(self.kinds(content.get(key)) for key in COMPOUND_CLAUSES[name]))
                if name in ("boosting", "script_score") or (name == "function_score" and _functions(content)):
                    found.add("rule")
            elif name in RULES:
                found.add("rule")
            else:
                found.add("filter" if name in FILTERS or self._is_other({name: content}) else "text")
        return frozenset(found)

    def _is_other(self, leaf: Mapping[str, Any]) -> bool:
        """Return whether a clause searches exact values alone, or for another text than the query's."""
        parts = list(parts_of(leaf))
        names = [plain(name) for _, fields in parts for name in fields]
        is_exact = bool(names) and all(name in self.exact for name in names)
        return is_exact or (self.text is not None and bool(parts) and all(text != self.text for text, _ in parts))

    def _named(self, clause: Any, names: list[str]) -> dict[str, Any]:
        """Return a clause in a bool query that has a name; the name is added to the given ones."""
        names.append(f"{PREFIX}{self.count}")
        self.count += 1
        return {"bool": {"must": [clause], "_name": names[-1]}}

    def _function_score(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        named = {**content, "query": self.of(content.get("query"), factor)}
        if not _functions(content):
            return named
        mode = str(content.get("boost_mode", "multiply")).lower()
        if mode not in _SINGLE:
            raise ValueError(mode)
        rules = {
            key: value for key, value in content.items() if key not in _OPTIONS or key in ("score_mode", "max_boost")
        }
        name = f"{PREFIX}{self.count}"
        self.count += 1
        alone = {**rules, "query": {"match_all": {}}, "boost_mode": "replace", "_name": name}
        self.beside.append({"function_score": alone})
        self.steps.append(Step(mode, (name,), within=self.within))
        return named

    def _bool(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        """Name the scoring clauses: those that search for the text, and those that boost."""
        named, boosts = dict(content), list[str]()
        parts = {key: _listed(content.get(key)) for key in ("must", "should") if content.get(key)}
        inner = [clause for clauses in parts.values() for clause in clauses if "text" in self.kinds(clause)]
        if len(inner) > 1 and any(self.kinds(clause) != {"text"} for clause in inner):
            raise _Tangled("several parts of a bool query search for a text, and one of them has boosts")
        for key, clauses in parts.items():
            changed: list[Any] = []
            for clause in clauses:
                if any(clause is each for each in inner):
                    changed.append(self._optional(clause, factor) if key == "should" else self.of(clause, factor))
                elif self.kinds(clause):
                    changed.append(self._named(clause, boosts))
                else:
                    changed.append(clause)
            named[key] = changed
        if boosts:
            self.steps.append(Step("sum", tuple(boosts), factor, within=self.within))
        return named

    def _optional(self, clause: Any, factor: float) -> Mapping[str, Any]:
        """Return a clause with a text part that hits may lack, with its parts named; it has a name itself if needed."""
        if len(self.kinds(clause)) == 1:
            return self.of(clause, factor)
        names, outer = list[str](), self.within
        self.within = (*outer, f"{PREFIX}{self.count}")
        named = self._named(None, names)
        named["bool"]["must"] = [self.of(clause, factor)]
        self.within = outer
        return named

    def _boosting(self, content: Mapping[str, Any], factor: float) -> dict[str, Any]:
        names = list[str]()
        positive = self.of(content["positive"], factor)
        negative = self._named(content["negative"], names)
        self.steps.append(Step("multiply", tuple(names), instead=float(content["negative_boost"]), within=self.within))
        return {**content, "positive": positive, "negative": negative}


def _listed(clauses: Any) -> list[Any]:
    return clauses if isinstance(clauses, list) else [clauses]


def _functions(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the functions of a ``function_score``, which may have one without a list around it."""
    single = {key: value for key, value in content.items() if key not in _OPTIONS and key != "functions"}
    return [*_listed(content.get("functions") or []), *([single] if single else [])]


def _check(part: Any) -> None:
    """Raise `_Tangled` if a function in a query would not have the same value without the query, or a second time."""
    for value in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        _check(value)
    if not isinstance(part, Mapping):
        return
    if "random_score" in part and "seed" not in (part["random_score"] or {}):
        raise _Tangled("random_score has no seed, so that it is drawn anew each time")
    if "script_score" in part:
        script = part["script_score"].get("script")
        source = script.get("source") if isinstance(script, Mapping) else script
        if not isinstance(source, str) or "_score" in source:
            raise _Tangled("a script reads _score, or is stored under an id")


def told(response: Mapping[str, Any], boosts: Boosts) -> tuple[tuple[Parts, ...] | Reason, dict[str, Any]]:
    """Return the parts of each hit's score, or why they are not known; and the response without our names.

    Combined as the query says, the parts must give each hit's ``_score``, to the last places of float32.

    Args:
        response: to the query that has names.
        boosts: that query.

    Raises:
        ResponseFormatError: it is not a search response.
    """
    raw = hits_of(response)
    answer = with_own_names(response, has_scores=boosts.has_scores)
    parts = []
    for rank, hit in enumerate(raw, start=1):
        score, matched = hit.get("_score"), hit.get("matched_queries")
        if not isinstance(score, int | float):
            return _untold("a hit has no score"), answer
        matched = matched if isinstance(matched, Mapping) else {}
        try:
            text = boosts.text(matched)
            values = [step.of(matched) for step in boosts.steps]
            made = combined(text, values, boosts.steps)
        except TypeError:  # "NaN"
            made = math.nan
        if not abs(made - score) <= ULPS * float(np.spacing(np.float32(score))):
            which = f"the hit at rank {rank} has the _score {score:.7g}, and its parts make {made:.7g}"
            return _untold(which), answer
        parts.append({TEXT: text, **{_name(number): value for number, value in enumerate(values, start=1)}})
    return tuple(parts), answer


def with_own_names(response: Mapping[str, Any], *, has_scores: bool) -> dict[str, Any]:
    """Return a response whose hits have the caller's own ``matched_queries``, and their scores only if asked for."""
    hits = response["hits"]
    answer = {**response, "hits": {**hits, "hits": [_own(hit, has_scores) for hit in hits["hits"]]}}
    if "aggregations" in response:
        answer["aggregations"] = _everywhere(response["aggregations"], has_scores)
    return answer


def _name(number: int) -> str:
    return f"boost_{number}" if number > 1 else "boost"


def _own(hit: Mapping[str, Any], has_scores: bool) -> dict[str, Any]:  # noqa: FBT001 - as in the response
    """Return a hit with the caller's own ``matched_queries``: as a list, unless he asked for their scores."""
    matched = hit.get("matched_queries") or {}
    if not isinstance(matched, Mapping):  # an engine that does not tell scores
        matched = dict.fromkeys(matched)
    own = {name: score for name, score in matched.items() if not name.startswith(PREFIX)}
    rest = {name: value for name, value in hit.items() if name != "matched_queries"}
    if "inner_hits" in rest:
        rest["inner_hits"] = _everywhere(rest["inner_hits"], has_scores)
    return {**rest, "matched_queries": own if has_scores else list(own)} if own else rest


def _everywhere(part: Any, has_scores: bool) -> Any:  # noqa: FBT001 - as in the response
    """Return a part of a response whose hits, at any depth, have the caller's own ``matched_queries``."""
    if isinstance(part, list):
        return [_everywhere(item, has_scores) for item in part]
    if not isinstance(part, Mapping):
        return part
    found = {name: value if name == "_source" else _everywhere(value, has_scores) for name, value in part.items()}
    return _own(found, has_scores) if "matched_queries" in found else found


def with_parts(ranking: Ranking, parts: Sequence[Parts]) -> Ranking:
    """Return a first pass's ranking with the parts of each hit's score; they are in the order of the hits."""
    pairs = zip(ranking.candidates, parts, strict=True)
    return replace(ranking, candidates=tuple(candidate.with_first_parts(own) for candidate, own in pairs))


def combined(text: float, boosts: Sequence[float], steps: Sequence[Step]) -> float:
    """Return the score that a text score and boosts make, from the text outwards."""
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


def boosted(ranking: Ranking, boosts: Boosts | Reason) -> Ranking:
    """Return a reranked ranking in which the boosts of the query count, or with the reason why they do not.

    The reranked candidates receive their own text scores anew: the model's best one the highest, and so on. Each is
    then combined with the candidate's boosts as the query says. Where the model agrees with the text score, this is the
    first pass's order. Candidates that were not reranked stay below, in their order.

    Args:
        ranking: after the stages.
        boosts: how the boosts count, or why they do not.
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
        key=lambda item: (-item[0], item[2].trace[0].rank),
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
    rest = [candidate for candidate in ranking.candidates if not candidate.trace[-1].level]
    took_ms = (time.perf_counter() - started) * 1000
    report = StageReport(STAGE, applied=True, candidates=len(block), took_ms=took_ms)
    return ranking.reordered((*ranked, *rest), report)


def _scores(block: Sequence[Candidate], texts: Sequence[float], steps: Sequence[Step]) -> Iterator[float]:
    """Yield each candidate's score with its new text score; with its own one, it is the first pass's to the bit."""
    for candidate, text in zip(block, texts, strict=True):
        first = candidate.trace[0]
        if text == candidate.text_score:
            yield first.score
        else:
            yield combined(text, [first.parts[_name(number)] for number in range(1, len(steps) + 1)], steps)
