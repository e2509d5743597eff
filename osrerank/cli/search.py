"""``osrerank search``: search an index, and print the hits as a table or as JSON."""

import codecs
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from osrerank.cli.options import INDEX, build_rerank_argument, open_client, rerank_options, search_options, wants_json
from osrerank.response import read_hit_text

MAX_SNIPPET_CHARACTERS = 160


@click.command()
@click.argument("query")
@click.option("--index", "-i", type=INDEX, required=True, help="Index to search.")
@click.option("--size", default=10, show_default=True, type=click.IntRange(0, 10_000), help="Hits to show.")
@click.option("--from", "offset", default=0, show_default=True, type=click.IntRange(0), help="Hits to skip.")
@search_options("min_score", "min_probability", "cutoff", "explain")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON.")
@rerank_options
@click.pass_context
def search(context: click.Context, /, query: str, index: str, **options: Any) -> None:
    """Search an index for QUERY, and rerank the hits."""
    arguments = build_rerank_argument(options)
    with closing(open_client(context)) as client:
        response = client.search(query, index=index, size=options["size"], from_=options["offset"], rerank=arguments)
    if options["as_json"] or wants_json(context):
        is_utf8 = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
        click.echo(json.dumps(response, ensure_ascii=not is_utf8, indent=2))
    else:
        _print_hits(response, options["offset"])


def _print_hits(response: dict[str, Any], offset: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    report = response.get("rerank") or {}
    fields = report.get("fields") or ()
    table = Table("rank", "was", "_score", "id", "text", box=None, header_style="bold")
    for rank, hit in enumerate(response["hits"]["hits"], start=offset + 1):
        trace = hit.get("_rerank") or {}
        first_pass_rank = str(trace["first_pass"]["rank"]) if trace else ""
        lines = [_format_snippet(hit, fields), *trace.get("explanation", [])]
        text = "\n".join(map(escape, lines))
        table.add_row(str(rank), first_pass_rank, f"{hit['_score'] or 0:.4f}", escape(hit["_id"]), text)
    console = Console()
    console.print(table)
    console.print(escape(_summarize(response)), style="dim", highlight=False)
    for warning in report.get("warnings", ()):
        console.print(f"warning: {escape(warning)}", style="yellow", highlight=False)


def _format_snippet(hit: dict[str, Any], fields: Sequence[str]) -> str:
    text = read_hit_text(hit, fields) or json.dumps(hit.get("_source") or {}, ensure_ascii=False)
    return text if len(text) <= MAX_SNIPPET_CHARACTERS else f"{text[:MAX_SNIPPET_CHARACTERS].rstrip()}…"


def _summarize(response: dict[str, Any]) -> str:
    """Describe a search in one line: the number of hits, the time, and the stages that reranked them."""
    summary = f"{_count_hits(response)} in {response['took']} ms"
    report = response.get("rerank")
    if report is None:
        return f"{summary}, first pass only"
    if report["applied"] is False:
        return f"{summary}, not reranked: {report['reason']}"
    below_min_score = report.get("below_min_score")
    if below_min_score:
        summary += f"; {below_min_score:,} of them below --min-score"
    for cut in report.get("cuts", []):
        if cut["applied"]:
            summary += f"; {cut['hits']:,} removed by {cut['by']}"
        else:
            summary += f"; {cut['by']}: {cut['reason']}"
    stages = []
    for stage in report["stages"]:
        description = stage["name"]
        if stage["model"]:
            description += f" {stage['inferences']} inferences in {stage['took_ms']:.0f} ms by {stage['model']}"
        stages.append(description)
    reason = f" ({report['reason']})" if report["reason"] else ""
    return f"{summary}; {', '.join(stages)}{reason}"


def _count_hits(response: dict[str, Any]) -> str:
    total = response["hits"].get("total")
    if not total:  # a search can leave hits uncounted
        return "hits"
    at_least = "+" if total.get("relation") == "gte" else ""
    return f"{total['value']:,}{at_least} hits"
