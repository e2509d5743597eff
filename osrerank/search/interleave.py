"""Interleave two rankings on one page, so that clicks show which ranking users prefer.

Team-draft interleaving: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, CIKM 2008,
section 4. In each round a coin decides which team picks first; each team picks its best hit that is not yet listed.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from osrerank.options.interleave import Interleave
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.pipeline import applied, reasons
from osrerank.response import Page, candidate_ids, merged_hit
from osrerank.search.shadow import digest_of
from osrerank.types import Candidate, Ranking, StageReport
from osrerank.types.reasons import Warned

logger = logging.getLogger(__name__)

Team = Literal["A", "B"]
OWN: Team = "A"
"""The team of the search's own options; the other team has those of ``with``."""
OTHER: Team = "B"


class Pick(NamedTuple):
    """An entry of the interleaved list.

    Attributes:
        doc_id: the document's id.
        team: the team that picked it; a click on it counts for that team's ranking.
    """

    doc_id: str
    team: Team


def team_draft(own: Sequence[str], others: Sequence[str], seed: str) -> list[Pick]:
    """Interleave two rankings of document ids into one list without duplicates; the same seed gives the same list.

    A prefix of the list depends only on prefixes of the rankings, so longer rankings continue the same list.
    """
    coin = random.Random(seed.encode("utf-8", "surrogatepass"))  # noqa: S311 - a repeatable draw, no secret
    left = {OWN: iter(own), OTHER: iter(others)}
    picked: dict[str, Team] = {}
    while left:
        order = (OWN, OTHER) if coin.random() < 0.5 else (OTHER, OWN)
        for team in order:
            doc_id = next((candidate for candidate in left.get(team, ()) if candidate not in picked), None)
            if doc_id is None:
                left.pop(team, None)
            else:
                picked[doc_id] = team
    return [Pick(doc_id, team) for doc_id, team in picked.items()]


def seed_of(interleave: Interleave, query: str) -> str:
    """Return the seed of a draw, made of the reader's key, the experiment's name and the query."""
    return f"{interleave.key}\0{interleave.name}\0{query}"


def session_of(interleave: Interleave) -> str:
    """Return the digest that identifies the reader in records; the key itself is not recorded."""
    return digest_of(interleave.key)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The interleaved list of a search, or why there is none.

    Attributes:
        name: the experiment's name.
        obstacle: why the page is team A's own, or the first pass's; None if the list was drawn.
        hits: the page.
        teams: a letter for each hit of the page.
        stages: what the stages of team B did.
        warnings: the warnings of both rankings.
        candidates: those of team B.
        max_score: the highest ``_score``.
    """

    name: str
    obstacle: str | None
    hits: Sequence[Mapping[str, Any]] = ()
    teams: str = ""
    stages: tuple[StageReport, ...] = ()
    warnings: tuple[Warned, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    max_score: float | None = None


def drawn_list(
    interleave: Interleave,
    asked: Sequence[Rerank],
    teams: tuple[Ranking, Ranking],
    response: Mapping[str, Any],
    page: Page,
) -> Drawn:
    """Return a page of the list that interleaves both teams' rankings.

    If a team's ranking is incomplete, a comparison would be unfair to it, and there is no such list.

    Args:
        interleave: the interleaving that the options ask for.
        asked: the options of each team.
        teams: the ranking of each team.
        response: the first pass's response.
        page: which part of the list to return.
    """
    own, other = teams
    each = zip((OWN, OTHER), teams, asked, strict=True)
    missing = [f"team {team}: {_reason(ranking)}" for team, ranking, wanted in each if not _is_whole(ranking, wanted)]
    if missing:
        reason = "; ".join(missing)
        logger.warning("[not-interleaved] a search was not interleaved: %s", reason)
        return Drawn(interleave.name, reason, candidates=other.candidates)
    picks = team_draft(_ids(own), _ids(other), seed_of(interleave, own.query.text))
    ids = candidate_ids(response["hits"]["hits"])
    raw = dict(zip(ids, response["hits"]["hits"], strict=True))
    by_team = {
        team: {candidate.doc_id: candidate for candidate in ranking.candidates}
        for team, ranking in zip((OWN, OTHER), teams, strict=True)
    }
    hits = []
    start = page.start([doc_id for doc_id, _ in picks], ids)
    shown = picks[start : start + page.size]
    for rank, (doc_id, team) in enumerate(shown, start=start + 1):
        if doc_id not in raw:  # it was in the list when the first page was made, and is no longer found
            continue
        candidate = by_team[team][doc_id]
        hit = merged_hit(raw[doc_id], candidate, page, teams[team == OTHER].reports)
        ranks = {name: candidates[doc_id].rank for name, candidates in by_team.items()}
        hits.append(_as_picked(hit, rank, team, ranks, candidate))
    return Drawn(
        interleave.name,
        None,
        hits,
        "".join(team for _, team in shown),
        other.reports,
        tuple(dict.fromkeys([*own.warnings, *other.warnings])),
        other.candidates,
        1.0 if picks else None,
    )


def _ids(ranking: Ranking) -> list[str]:
    return [candidate.doc_id for candidate in ranking.candidates]


def _is_whole(ranking: Ranking, options: Rerank) -> bool:
    """Return whether all that its options ask for was applied to a ranking."""
    return options.pipeline == NO_STAGES or applied(ranking.reports) is True


def _reason(ranking: Ranking) -> str:
    return reasons(ranking.reports) or "it was not reranked"


def _as_picked(
    hit: Mapping[str, Any], rank: int, team: Team, ranks: Mapping[Team, int], candidate: Candidate
) -> dict[str, Any]:
    """Mark a hit with its team; its ``_score`` is 1 / rank, because scores of two rankings are not comparable."""
    marks = {**hit["_rerank"], "team": team, "team_ranks": dict(ranks)}
    if "explanation" in marks:
        sentence = f"picked by team {team}, which has it at rank {candidate.rank}; _score {1 / rank:.6f} = 1 / {rank}"
        marks["explanation"] = [*marks["explanation"][:-1], sentence]
    return {**hit, "_score": 1 / rank, "_rerank": marks}
