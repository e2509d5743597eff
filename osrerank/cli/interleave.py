"""``osrerank interleave``: find out which of two interleaved rankings users prefer."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client, wants_json

if TYPE_CHECKING:
    from osrerank.decision.use.clicks import ShownPage
    from osrerank.decision.use.interleaving import Preference


@click.group()
def interleave() -> None:
    """Interleave two rankings in a search: rerank={"interleave": {"with": {...}, "key": session_id}}."""


@interleave.command()
@click.argument("clicks", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--queries-index", "queries", default="ubi_queries", show_default=True, help="UBI's index of queries.")
@click.option("--events-index", "events", default="ubi_events", show_default=True, help="UBI's index of events.")
@click.option(
    "--action",
    "actions",
    multiple=True,
    default=("click", "click_through"),
    show_default=True,
    help="action_name of an event that counts as a click; may be repeated.",
)
@click.option("--application", default="", help="Application whose searches count.  [default: all]")
@click.option("--since", default="", help="ISO 8601 time of the first search and event that count.")
@click.option("--until", default="", help="ISO 8601 time of the last search and event that count.")
@click.option("--confidence", type=click.FloatRange(0.5, 1, max_open=True), default=0.95, show_default=True)
@click.option(
    "--least-share",
    type=click.FloatRange(0.5, 1, min_open=True),
    default=0.55,
    show_default=True,
    help="Smallest share of preferences to detect; the report says how many sessions that takes.",
)
@click.pass_context
def report(
    context: click.Context, /, *, clicks: Path | None, confidence: float, least_share: float, **ubi: Any
) -> None:
    """Say which ranking users prefer: A, the search's own options, or B, those of "with".

    \b
    osrerank --url https://localhost:9200 interleave report
    osrerank interleave report clicks.jsonl

    The clicks come from UBI's indexes, or from a file with one JSON object per page. Decide beforehand how many
    sessions to collect: whoever checks every day and stops at the first winner declares winners too often.
    """
    from osrerank.decision.use.interleaving import preferences

    pages, unmatched = _shown_pages(context, clicks, ubi)
    rows = preferences(pages, confidence=confidence, least_share=least_share)
    if wants_json(context):
        click.echo(json.dumps({"unmatched": unmatched, "experiments": [row.as_json() for row in rows]}))
        return
    for row in rows:
        click.echo(_sentences(row, confidence))
    if unmatched:
        click.echo(f"{unmatched:,} clicks belong to no page that was read")


def _shown_pages(context: click.Context, clicks: Path | None, ubi: dict[str, Any]) -> "tuple[list[ShownPage], int]":
    """Read the pages from a file or UBI's indexes; return them with the number of clicks on none of them."""
    if clicks is not None:
        from osrerank.decision.use.clicks import read_clicks

        return list(read_clicks(clicks)), 0
    from osrerank.decision.use.ubi import UbiSource, read_ubi

    with closing(open_client(context)) as client:
        shown = read_ubi(client, UbiSource(**ubi))
    return list(shown.pages), shown.unmatched


def _sentences(row: "Preference", confidence: float) -> str:
    name = f"{row.experiment}: " if row.experiment else ""
    verdict = f"{row.winner} wins" if row.winner else "undecided"
    share = f"B has {row.share_b:.1%} of the preferences ({confidence:.0%} interval {row.low:.1%} to {row.high:.1%}"
    counts = f"{row.sessions:,} sessions: A {row.wins_a:,}, B {row.wins_b:,}, ties {row.ties:,}"
    lines = [f"{name}{verdict}. {share}, p = {row.p_value:.3g}).", f"{counts}, without a click {row.silent:,}."]
    if row.needed is not None:
        lines.append(f"To detect a share of {row.least_share:.0%} takes about {row.needed:,} sessions.")
    if not row.winner and row.needed_as_seen is not None:
        lines.append(f"To detect the share seen so far, if it is the true one, takes about {row.needed_as_seen:,}.")
    return "\n".join(lines)
