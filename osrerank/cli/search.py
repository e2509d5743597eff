"""``osrerank search``: search an index once, and print the hits as a table or as JSON."""

import json
from collections.abc import Sequence
from typing import Any

import click

from osrerank.cli.options import open_client, rerank_arguments, rerank_options, search_options, wants_json
from osrerank.response import hit_text

SNIPPET = 160
"""Maximum number of characters shown of a text."""


@click.command()
@click.argument("query")
@click.option("--index", "-i", required=True, help="Index to search.")
@click.option("--size", default=10, show_default=True, type=click.IntRange(0, 10_000), help="Hits to show.")
@click.option("--from", "offset", default=0, show_default=True, type=click.IntRange(0), help="Hits to skip.")
@search_options("min_score", "min_probability", "cutoff", "explain")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON.")
@rerank_options
@click.pass_context
def search(context: click.Context, /, query: str, index: str, **options: Any) -> None:
    """Search an index for QUERY, and rerank the hits."""
    arguments = rerank_arguments(options)
    client = open_client(context)
    try:
        response = client.search(query, index=index, size=options["size"], from_=options["offset"], rerank=arguments)
    finally:
        client.close()
    if options["as_json"] or wants_json(context):
        click.echo(json.dumps(response, ensure_ascii=False, indent=2))
    else:
        _show(response, options["offset"])


def _show(response: dict[str, Any], offset: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    fields = (response.get("rerank") or {}).get("fields") or ()
    table = Table("rank", "was", "_score", "id", "text", box=None, header_style="bold")
    for rank, hit in enumerate(response["hits"]["hits"], start=offset + 1):
        marks = hit.get("_rerank")
        before = str(marks["first_pass"]["rank"]) if marks else ""
        lines = [escape(_snippet(hit, fields)), *(escape(line) for line in (marks or {}).get("explanation", []))]
        table.add_row(str(rank), before, f"{hit['_score'] or 0:.4f}", escape(hit["_id"]), "\n".join(lines))
    console = Console()
    console.print(table)
    console.print(escape(_status(response)), style="dim", highlight=False)
    for warning in (response.get("rerank") or {}).get("warnings", ()):
        console.print(f"warning: {escape(warning)}", style="yellow", highlight=False)


def _snippet(hit: dict[str, Any], fields: Sequence[str]) -> str:
    text = hit_text(hit, fields) or json.dumps(hit.get("_source") or {}, ensure_ascii=False)
    return text if len(text) <= SNIPPET else f"{text[:SNIPPET].rstrip()}…"


def _status(response: dict[str, Any]) -> str:
    total = response["hits"].get("total", {})
    count = f"{total['value']:,}{'+' if total.get('relation') == 'gte' else ''} hits" if total else "hits"
    marks = response.get("rerank")
    if marks is None:
        return f"{count} in {response['took']} ms, first pass only"
    if marks["applied"] is False:
        return f"{count} in {response['took']} ms, not reranked: {marks['reason']}"
    stages = ", ".join(
        f"{stage['name']} {stage['inferences']} inferences in {stage['took_ms']:.0f} ms by {stage['model']}"
        if stage["model"]
        else stage["name"]
        for stage in marks["stages"]
    )
    note = f" ({marks['reason']})" if marks["reason"] else ""
    below = marks.get("below_min_score")
    removed = f"; {below:,} of them below --min-score" if below else ""
    for cut in marks.get("cuts", []):
        removed += f"; {cut['hits']:,} removed by {cut['by']}" if cut["applied"] else f"; {cut['by']}: {cut['reason']}"
    return f"{count} in {response['took']} ms{removed}; {stages}{note}"
