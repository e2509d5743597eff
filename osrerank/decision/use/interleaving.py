"""Test which of two interleaved rankings users prefer, and estimate how many sessions a decision needs.

Each document of an interleaved page comes from ranking A or ranking B. The documents from a ranking are its *team*. A
session prefers the team whose documents get more of its clicks (Radlinski, Kurup, Joachims: How does clickthrough data
reflect retrieval quality?, CIKM 2008, section 4). Under the null hypothesis, half of the sessions with a preference
prefer B. The share of sessions that prefer B has an exact binomial interval (Clopper, Pearson: Biometrika 1934).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from osrerank._optional import require
from osrerank.decision.use.clicks import ShownPage
from osrerank.errors import EvaluationError

LEAST_SHARE = 0.55
"""The default of `Preference.least_share`."""
POWER = 0.8
"""The probability that an experiment with the needed number of sessions has a winner."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Which team the sessions of an experiment prefer, with confidence interval and p-value.

    Attributes:
        experiment: the experiment's name.
        sessions: the number of sessions with interleaved pages. A page without a session id counts as a session.
        wins_a, wins_b: the numbers of sessions with more clicks on team A's documents, and on team B's.
        ties: the number of sessions with as many clicks on team A's documents as on team B's, and at least one on each.
        silent: the number of sessions without a click on an interleaved page.
        share_b: the fraction of sessions with a preference that prefer B, in [0, 1]. It is 0.5 if no session has one.
        low, high: the bounds of the confidence interval of ``share_b``.
        p_value: the two-tailed p-value of the exact binomial test of no preference.
        winner: ``A`` or ``B``, or "" if the interval contains 0.5.
        needed: the number of sessions needed to detect a share of ``least_share`` with a power of 0.8, or None if no
            session has a preference.
        needed_as_seen: the number of sessions needed to detect the measured share, or None if that is 0.5.
        least_share: the smallest share of the preferences that is worth detecting if one team gets it, such as 0.55.
    """

    experiment: str
    sessions: int
    wins_a: int
    wins_b: int
    ties: int
    silent: int
    share_b: float
    low: float
    high: float
    p_value: float
    winner: str
    needed: int | None
    needed_as_seen: int | None
    least_share: float


def measure_preferences(
    pages: Iterable[ShownPage], *, confidence: float = 0.95, least_share: float = LEAST_SHARE
) -> list[Preference]:
    """Return the preference in each experiment, sorted by the experiments' names.

    Args:
        pages: the pages that users saw. Pages that are not interleaved are ignored.
        confidence: the confidence level of the intervals, in (0, 1).
        least_share: as in `Preference`, in (0.5, 1].

    Raises:
        EvaluationError: no page is interleaved.
        MissingDependencyError: scipy is not installed.
    """
    clicks: defaultdict[str, dict[object, list[int]]] = defaultdict(dict)  # experiment -> session -> clicks on [A, B]
    for number, page in enumerate(pages):
        if page.teams:
            session: object = page.session or number  # without an id, the page is a session by itself
            team_by_document = zip(page.doc_ids, page.teams, strict=True)
            clicked_teams = [team for doc_id, team in team_by_document if doc_id in page.clicked]
            counts = clicks[page.experiment].setdefault(session, [0, 0])
            counts[0] += clicked_teams.count("A")
            counts[1] += clicked_teams.count("B")
    if not clicks:
        fix = "search with rerank={'interleave': ...} and ext.ubi, or pass lines with the field teams"
        raise EvaluationError(f"no page is interleaved, so there are no teams to compare; {fix}")
    return [
        _measure_preference(experiment, clicks[experiment], confidence=confidence, least_share=least_share)
        for experiment in sorted(clicks)
    ]


def _measure_preference(
    experiment: str, clicks: Mapping[object, list[int]], *, confidence: float, least_share: float
) -> Preference:
    wins_a = sum(a > b for a, b in clicks.values())
    wins_b = sum(b > a for a, b in clicks.values())
    silent = sum(a == b == 0 for a, b in clicks.values())
    n_decided, n_sessions = wins_a + wins_b, len(clicks)
    share_b = wins_b / n_decided if n_decided else 0.5
    low, high = binomial_interval(wins_b, n_decided, confidence)
    winner = ""
    if low > 0.5:
        winner = "B"
    elif high < 0.5:
        winner = "A"
    p_value = 1.0
    if n_decided:
        p_value = float(require("scipy.stats", extra="eval").binomtest(wins_b, n_decided).pvalue)
    preference_rate = n_decided / n_sessions
    return Preference(
        experiment=experiment,
        sessions=n_sessions,
        wins_a=wins_a,
        wins_b=wins_b,
        ties=n_sessions - n_decided - silent,
        silent=silent,
        share_b=share_b,
        low=low,
        high=high,
        p_value=p_value,
        winner=winner,
        needed=needed_sessions(least_share, preference_rate, confidence=confidence),
        needed_as_seen=needed_sessions(share_b, preference_rate, confidence=confidence),
        least_share=least_share,
    )


def binomial_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact confidence interval of the fraction of trials that succeed, or [0, 1] if there are no trials."""
    if not trials:
        return 0.0, 1.0
    stats = require("scipy.stats", extra="eval")
    interval = stats.binomtest(successes, trials).proportion_ci(confidence)
    return float(interval.low), float(interval.high)


def needed_sessions(share: float, preference_rate: float, *, confidence: float = 0.95) -> int | None:
    """Return the number of sessions needed to detect a share of preferences, or None if no number is enough.

    For a share p, the normal approximation of the binomial test needs
    ``n = ((z_confidence / 2 + z_power sqrt(p (1 - p))) / (p - 1/2))^2`` sessions with a preference, which takes
    ``n / preference_rate`` sessions.

    Args:
        share: the fraction of preferences that are for one team, in [0, 1].
        preference_rate: the fraction of sessions that have a preference, in [0, 1].
        confidence: the confidence level of the interval.
    """
    if share == 0.5 or not preference_rate:
        return None
    stats = require("scipy.stats", extra="eval")
    z_confidence = float(stats.norm.ppf(1 - (1 - confidence) / 2))
    z_power = float(stats.norm.ppf(POWER))
    root_n = (z_confidence / 2 + z_power * math.sqrt(share * (1 - share))) / abs(share - 0.5)
    return math.ceil(root_n**2 / preference_rate)
