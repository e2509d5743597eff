"""``osrerank judgments``: from clicks, and to and from OpenSearch's Search Relevance plugin."""

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import shown_pages, ubi_options, wants_json

if TYPE_CHECKING:
    from osrerank.decision.use.judgments import JudgmentList

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def judgments() -> None:
    """Judgments from use, as queries.tsv and qrels.txt, and the Search Relevance plugin's lists."""


@judgments.command()
@click.argument("clicks", required=False, type=FILE)
@click.option("--output", "-o", type=FOLDER, required=True, help="Folder for queries.tsv and qrels.txt.")
@click.option(
    "--model", "click_model", type=click.Choice(["pbm", "coec"]), default="pbm", show_default=True, help="Click model."
)
@click.option("--least-impressions", type=click.IntRange(1), default=10, show_default=True, help="Of a document.")
@click.option("--least-sessions", type=click.IntRange(1), default=3, show_default=True, help="That asked a query.")
@click.option("--least-clicks", type=click.IntRange(0), default=1, show_default=True, help="On a query's pages.")
@ubi_options
@click.pass_context
def learn(context: click.Context, /, *, clicks: Path | None, output: Path, click_model: Any, **options: Any) -> None:
    """Learn judgments from what was shown and clicked: UBI's indexes, or a file.

    \b
    osrerank --url https://localhost:9200 judgments learn --output judged
    osrerank judgments learn clicks.jsonl --output judged --model coec

    What is written are texts of queries, ids of documents and grades: no user's ids, and no query that fewer sessions
    asked.
    """
    from osrerank.decision.use.judgments import Evidence, judge  # noqa: PLC0415 - keeps the command's help quick
    from osrerank.decision.use.lists import write_folder  # noqa: PLC0415 - likewise

    least = {one.name: options.pop(f"least_{one.name}") for one in fields(Evidence)}
    pages, unmatched = shown_pages(context, clicks, options)
    judged = judge(pages, click_model, Evidence(**least))
    write_folder(judged, output)
    found = {**_summary(judged), "pages": len(pages), "unmatched": unmatched}
    if wants_json(context):
        click.echo(json.dumps(found))
        return
    click.echo(f"{output}: {found['judgments']:,} judgments of {found['queries']:,} queries from {len(pages):,} pages")
    click.echo(f"left out for lack of evidence: {judged.left_out[0]:,} queries, {judged.left_out[1]:,} documents")
    if unmatched:
        click.echo(f"{unmatched:,} clicks belong to no page that was read")


@judgments.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON file.")
@click.option("--name", required=True, help="Of the list in the plugin, at most 50 characters.")
@click.option("--queries-only", is_flag=True, help="Write a query set instead of a judgment list.")
def export(folder: Path, output: Path, *, name: str, queries_only: bool) -> None:
    """Write a folder of queries.tsv and qrels.txt as a list of the Search Relevance plugin.

    \b
    osrerank serve --ui --save-judgments judged
    osrerank judgments export judged --name people --output list.json
    curl -X PUT localhost:9200/_plugins/_search_relevance/judgments -H 'Content-Type: application/json' -d @list.json

    The folder is one of `judgments learn`, or what people judged by click on the comparison page.
    """
    from osrerank.decision.use.lists import (  # noqa: PLC0415 - keeps the command's help quick
        MOST_NAME,
        judgment_list,
        query_set,
        read_folder,
        write_json,
    )

    if not 0 < len(name) <= MOST_NAME:
        raise click.BadParameter(
            f"it has {len(name)} characters; the plugin takes 1 to {MOST_NAME}", param_hint="--name"
        )
    judged = read_folder(folder)
    if not queries_only and not any(judged.ratings.values()):
        raise click.UsageError(f"{folder} has no judgments: give --queries-only for a query set")
    write_json(query_set(judged.queries, name) if queries_only else judgment_list(judged, name), output)
    click.echo(f"{output}: {len(judged.queries):,} queries")


@judgments.command("import")
@click.argument("file", type=FILE)
@click.option("--output", "-o", type=FOLDER, required=True, help="Folder for queries.tsv and qrels.txt.")
@click.pass_context
def import_list(context: click.Context, /, *, file: Path, output: Path) -> None:
    """Read a query set or judgment list of the Search Relevance plugin.

    \b
    curl localhost:9200/_plugins/_search_relevance/judgments/ID > list.json
    osrerank judgments import list.json --output judged

    Ratings that are not whole numbers become grades from 0 to 3 by their share of the query's best.
    """
    from osrerank.decision.use.lists import read_list, write_folder  # noqa: PLC0415 - keeps the command's help quick

    judged = read_list(file)
    write_folder(judged, output)
    found = _summary(judged)
    if wants_json(context):
        click.echo(json.dumps(found))
        return
    click.echo(f"{output}: {found['queries']:,} queries, {found['judgments']:,} judgments")


def _summary(judged: "JudgmentList") -> dict[str, Any]:
    count = sum(map(len, judged.ratings.values()))
    found: dict[str, Any] = {"queries": len(judged.queries), "judgments": count}
    if judged.learnt is not None:
        left_out = {"left_out_queries": judged.left_out[0], "left_out_documents": judged.left_out[1]}
        learnt = judged.learnt
        found |= {**left_out, "model": learnt.model, "by_rank": learnt.by_rank, "moved": learnt.moved}
    return found
