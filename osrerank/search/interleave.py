"""One page of two rankings, so that clicks on it say which ranking people prefer.

Team-draft interleaving: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, CIKM 2008,
section 4. In each round a coin decides which team picks first; each team picks its best hit that is not on the list.
"""

import hashlib
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from osrerank.metrics import NOT_INTERLEAVED
from osrerank.options.interleave import Interleave
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.pipeline import applied
from osrerank.response import Page, candidate_ids, merge, merged_hit, reasons, summary, unchanged
from osrerank.types import Candidate, Ranking

logger = logging.getLogger(__name__)

Team = Literal["A", "B"]
OWN: Team = "A"
"""The team of the search's own options; the other team has those of ``with``."""
OTHER: Team = "B"


class Pick(NamedTuple):
    """A place of the interleaved list.

    Attributes:
        doc_id: the document's.
        team: which ranking it counts for.
    """

    doc_id: str
    team: Team


def team_draft(own: Sequence[str], others: Sequence[str], seed: str) -> list[Pick]:
    """Return two rankings of document ids as one list, each document once; the same seed gives the same list.

    A prefix of the list depends on prefixes of the rankings alone, so that longer rankings continue the same list.
    """
    coin = random.Random(seed)  # noqa: S311 - a repeatable draw, no secret
    left = {OWN: iter(own), OTHER: iter(others)}
    picked: dict[str, Team] = {}
    while left:
        order = (OWN, OTHER) if coin.random() < 0.5 else (OTHER, OWN)
        for team in order:
            doc_id = next((one for one in left.get(team, ()) if one not in picked), None)
            if doc_id is None:
                left.pop(team, None)
            else:
                picked[doc_id] = team
    return [Pick(doc_id, team) for doc_id, team in picked.items()]


def seed_of(interleave: Interleave, query: str) -> str:
    """Return the seed of a list's draw: of its reader, the experiment and the query."""
    return f"{interleave.key}\0{interleave.name}\0{query}"


def session_of(interleave: Interleave) -> str:
    """Return a digest that stands for the reader where the draw is recorded."""
    return hashlib.sha256(interleave.key.encode()).hexdigest()[:16]


def interleaved(
    options: Rerank,
    interleave: Interleave,
    teams: tuple[Ranking, Ranking],
    response: Mapping[str, Any],
    page: Page,
    took_ms: float,
) -> dict[str, Any]:
    """Return a page of both teams' rankings interleaved.

    A page on which one team had only part of its ranking would be unfair to it: then the page is team A's own, or the
    first pass's, and ``response["rerank"]["interleave"]`` says why.

    Args:
        options: of the search.
        interleave: of the options.
        teams: the ranking of each team.
        response: of the first pass.
        page: which part of the list.
        took_ms: time that the rankings took, in milliseconds.
    """
    own, other = teams
    whole = zip((OWN, OTHER), teams, options.rankings, strict=True)
    missing = [f"team {team}: {_reason(ranking)}" for team, ranking, one in whole if not _is_whole(ranking, one)]
    if missing:
        answer = _own_alone(own, response, page, took_ms)
        reason = "; ".join(missing)
        answer["rerank"]["interleave"] = {"applied": False, "reason": reason}
        NOT_INTERLEAVED.inc()
        logger.warning("[not-interleaved] a search was not interleaved: %s", reason)
        return answer
    picks = team_draft(_ids(own), _ids(other), seed_of(interleave, own.query.text))
    answer = _drafted(response, (own, other), picks, page, took_ms)
    answer["rerank"]["interleave"]["name"] = interleave.name
    return answer


def _ids(ranking: Ranking) -> list[str]:
    return [candidate.doc_id for candidate in ranking.candidates]


def _is_whole(ranking: Ranking, options: Rerank) -> bool:
    """Return whether a ranking is all that its options ask for."""
    return options.pipeline == NO_STAGES or applied(ranking.reports) is True


def _reason(ranking: Ranking) -> str:
    return reasons(ranking.reports) or "it was not reranked"


def _own_alone(own: Ranking, response: Mapping[str, Any], page: Page, took_ms: float) -> dict[str, Any]:
    """Return the page of team A's ranking, as without interleaving."""
    if applied(own.reports):
        return merge(response, own, page, rerank_ms=took_ms)
    return unchanged(response, _reason(own), reports=own.reports, page=page, rerank_ms=took_ms)


def _drafted(
    response: Mapping[str, Any], teams: tuple[Ranking, Ranking], picks: Sequence[Pick], page: Page, took_ms: float
) -> dict[str, Any]:
    """Return the response with the page of the drafted list."""
    raw = dict(zip(candidate_ids(response["hits"]["hits"]), response["hits"]["hits"], strict=True))
    by_team = {
        team: {one.doc_id: one for one in ranking.candidates} for team, ranking in zip((OWN, OTHER), teams, strict=True)
    }
    hits = []
    shown = picks[page.offset : page.offset + page.size]
    for rank, (doc_id, team) in enumerate(shown, start=page.offset + 1):
        if doc_id not in raw:  # it was on the first page's list, and is not found any more
            continue
        candidate = by_team[team][doc_id]
        hit = merged_hit(raw[doc_id], candidate, page, teams[team == OTHER].reports)
        ranks = {name: candidates[doc_id].rank for name, candidates in by_team.items()}
        hits.append(_as_picked(hit, rank, team, ranks, candidate))
    took = response.get("took", 0)
    marks = summary(teams[0].reports, took, explain=page.explain)
    second = summary(teams[1].reports, took, explain=page.explain)["stages"]
    drawn = {"applied": True, "reason": None, "teams": "".join(team for _, team in shown), "stages": second}
    return {
        **response,
        "took": int(took + round(took_ms)),
        "hits": {**response["hits"], "max_score": 1.0 if picks else None, "hits": hits},
        "rerank": {**marks, "applied": True, "reason": None, "interleave": drawn},
    }


def _as_picked(
    hit: Mapping[str, Any], rank: int, team: Team, ranks: Mapping[Team, int], candidate: Candidate
) -> dict[str, Any]:
    """Return a hit with its team; its ``_score`` is 1 / rank, because the two rankings' scores do not compare."""
    marks = {**hit["_rerank"], "team": team, "team_ranks": dict(ranks)}
    if "explanation" in marks:
        sentence = f"picked by team {team}, which has it at rank {candidate.rank}; _score {1 / rank:.6f} = 1 / {rank}"
        marks["explanation"] = [*marks["explanation"][:-1], sentence]
    return {**hit, "_score": 1 / rank, "_rerank": marks}
