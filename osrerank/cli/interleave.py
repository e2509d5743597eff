"""``osrerank interleave``: report which of two interleaved rankings users prefer, by their clicks."""

import json
from contextlib import closing
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
    """Interleave two rankings in a search: rerank={"interleave": {"with": {...}, "key": session_id}}."""


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
@click.option("--confidence", type=click.FloatRange(0.5, 1, max_open=True), default=0.95, show_default=True)
@click.option(
    "--least-share",
    type=click.FloatRange(0.5, 1, min_open=True),
    default=0.55,
    show_default=True,
    help="Smallest share of preferences to detect; the report says how many sessions that requires.",
)
@click.pass_context
def report(
    context: click.Context, /, *, clicks: Path | None, confidence: float, least_share: float, **ubi: Any
) -> None:
    """Report which ranking users prefer: A, by the options of the search, or B, by the options in "with".

    \b
    osrerank --url https://localhost:9200 interleave report
    osrerank interleave report clicks.jsonl

    The clicks come from UBI's indices, or from a file with one JSON object per page. Decide beforehand how many
    sessions to collect: if you check every day and stop at the first winner, you declare winners too often.
    """
    from osrerank.decision.use.interleaving import preferences

    pages, n_unmatched = _read_pages(context, clicks, ubi)
    rows = preferences(pages, confidence=confidence, least_share=least_share)
    if wants_json(context):
        click.echo(json.dumps({"unmatched": n_unmatched, "experiments": [row.as_json() for row in rows]}))
        return
    for row in rows:
        click.echo(_describe(row, confidence))
    if n_unmatched:
        click.echo(f"{n_unmatched:,} clicks belong to pages that are not in the data")


def _read_pages(context: click.Context, clicks: Path | None, ubi: dict[str, Any]) -> "tuple[list[ShownPage], int]":
    if clicks is not None:
        from osrerank.decision.use.clicks import read_clicks

        return list(read_clicks(clicks)), 0
    from osrerank.decision.use.ubi import UbiSource, read_ubi

    with closing(open_client(context)) as client:
        shown = read_ubi(client, UbiSource(**ubi))
    return list(shown.pages), shown.unmatched


def _describe(row: "Preference", confidence: float) -> str:
    name = f"{row.experiment}: " if row.experiment else ""
    verdict = f"{row.winner} wins" if row.winner else "undecided"
    interval = f"{confidence:.0%} interval {row.low:.1%} to {row.high:.1%}, p = {row.p_value:.3g}"
    share = f"B has {row.share_b:.1%} of the preferences ({interval})."
    counts = f"{row.sessions:,} sessions: A {row.wins_a:,}, B {row.wins_b:,}, ties {row.ties:,}"
    lines = [f"{name}{verdict}. {share}", f"{counts}, without a click {row.silent:,}."]
    if row.needed is not None:
        lines.append(f"To detect a share of {row.least_share:.0%} takes about {row.needed:,} sessions.")
    if not row.winner and row.needed_as_seen is not None:
        lines.append(f"To detect the share seen so far, if it is the true one, takes about {row.needed_as_seen:,}.")
    return "\n".join(lines)
