"""``osrerank interleave``: report from users' clicks which of two interleaved rankings they prefer."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client, wants_json
from osrerank.cli.path_types import FILE

if TYPE_CHECKING:
    from osrerank.decision.use.clicks import ShownPage
    from osrerank.decision.use.interleaving import Preference


@click.group()
def interleave() -> None:
    """Compare two rankings by users' clicks.

    A search mixes two rankings with rerank={"interleave": {"with": {...}, "key": session_id}}.
    """


@interleave.command()
@click.argument("clicks", required=False, type=FILE)
@click.option("--queries-index", "queries", default="ubi_queries", show_default=True, help="UBI's index of queries.")
@click.option("--events-index", "events", default="ubi_events", show_default=True, help="UBI's index of events.")
@click.option(
    "--action",
    "actions",
    multiple=True,
    default=("click", "click_through"),
    show_default=True,
    help="action_name of events that count as clicks; repeatable.",
)
@click.option("--application", default="", help="Only count the searches of this application.")
@click.option("--since", default="", help="ISO 8601 time of the first search and event that count.")
@click.option("--until", default="", help="ISO 8601 time of the last search and event that count.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.95,
    show_default=True,
    help="Confidence level of the interval.",
)
@click.option(
    "--least-share",
    type=click.FloatRange(0.5, 1, min_open=True),
    default=0.55,
    show_default=True,
    help="Smallest share of preferences to detect; the report says how many sessions that requires.",
)
@click.pass_context
def report(
    context: click.Context, /, *, clicks: Path | None, confidence: float, least_share: float, **ubi_options: Any
) -> None:
    """Report which ranking users prefer: A, made with the search's options, or B, made with the options in "with".

    \b
    osrerank --url https://localhost:9200 interleave report
    osrerank interleave report clicks.jsonl

    The clicks come from UBI's indices, or from a file with one JSON object per page. Decide beforehand how many
    sessions to collect: if you check every day and stop at the first winner, you declare winners too often.
    """
    from osrerank.decision.use.interleaving import measure_preferences

    pages, n_unmatched = _read_pages(context, clicks, ubi_options)
    outcomes = measure_preferences(pages, confidence=confidence, least_share=least_share)
    if wants_json(context):
        click.echo(json.dumps({"unmatched": n_unmatched, "experiments": [asdict(outcome) for outcome in outcomes]}))
        return
    for outcome in outcomes:
        click.echo(_describe(outcome, confidence))
    if n_unmatched:
        click.echo(f"{n_unmatched:,} clicks were left out, because their searches or documents were not recorded")


def _read_pages(
    context: click.Context, clicks: Path | None, ubi_options: dict[str, Any]
) -> "tuple[list[ShownPage], int]":
    """Return the pages with their clicks, and the number of clicks that belong to none of the pages."""
    if clicks is not None:
        from osrerank.decision.use.clicks import read_clicks

        return list(read_clicks(clicks)), 0
    from osrerank.decision.use.ubi import UbiSource, read_ubi

    with closing(open_client(context)) as client:
        shown = read_ubi(client, UbiSource(**ubi_options))
    return list(shown.pages), shown.unmatched


def _describe(outcome: "Preference", confidence: float) -> str:
    """Describe an experiment's result in up to four lines, such as "depth: B wins. B has 61.0% of the ..."."""
    name = f"{outcome.experiment}: " if outcome.experiment else ""
    verdict = f"{outcome.winner} wins" if outcome.winner else "undecided"
    interval = f"{confidence:.0%} interval {outcome.low:.1%} to {outcome.high:.1%}, p = {outcome.p_value:.3g}"
    share = f"B has {outcome.share_b:.1%} of the preferences ({interval})."
    counts = f"{outcome.sessions:,} sessions: A {outcome.wins_a:,}, B {outcome.wins_b:,}, ties {outcome.ties:,}"
    lines = [f"{name}{verdict}. {share}", f"{counts}, without a click {outcome.silent:,}."]
    if outcome.needed is not None:
        lines.append(f"Detecting a share of {outcome.least_share:.0%} takes about {outcome.needed:,} sessions.")
    if not outcome.winner and outcome.needed_as_seen is not None:
        lines.append(f"If the share seen so far is the true one, detecting it takes about {outcome.needed_as_seen:,}.")
    return "\n".join(lines)
