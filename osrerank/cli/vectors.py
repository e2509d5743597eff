"""``osrerank vectors``: documents' vectors in an index, which find what BM25 does not."""

import json
from contextlib import closing
from dataclasses import asdict

import click

from osrerank.cli.options import client_of, wants_json

FIELD = click.option("--vector-field", help="Name of the field; the index's own, else osrerank_vector, when absent.")


@click.group()
def vectors() -> None:
    """Documents' vectors, by which a search finds documents that share no word with it."""


@vectors.command()
@click.option("--index", "-i", required=True, help="Index whose documents get vectors.")
@FIELD
@click.pass_context
def build(context: click.Context, /, *, index: str, vector_field: str | None) -> None:
    """Give an index's documents the vectors of their texts, by the model that reranks.

    \b
    osrerank --url https://localhost:9200 vectors build --index articles

    Documents that have the vector of their text are only read, so that the same command goes on where it was
    interrupted, and makes what is lacking after documents were changed. The index must have been made with
    index.knn: true.
    """
    from osrerank.vectors import build_on_screen  # noqa: PLC0415 - the client

    with closing(client_of(context)) as client:
        built = build_on_screen(client, index, vector_field)
    if wants_json(context):
        made = {"made": built.made, "conflicts": built.conflicts}
        click.echo(json.dumps({**made, **asdict(built.counts), "share": built.counts.share}))
        return
    meanwhile = f"; {built.conflicts:,} documents were changed meanwhile: build again" if built.conflicts else ""
    click.echo(f"{index}: {built.made:,} vectors made; {built.counts}{meanwhile}")


@vectors.command()
@click.option("--index", "-i", required=True, help="Index whose documents are read.")
@FIELD
@click.option("--at-least", type=click.FloatRange(0, 1), help="Share that must be current; else the exit code is 1.")
@click.pass_context
def status(context: click.Context, /, *, index: str, vector_field: str | None, at_least: float | None) -> None:
    """Say how many of an index's documents have the vector of their text today."""
    from osrerank.vectors import count_vectors  # noqa: PLC0415 - the client

    with closing(client_of(context)) as client:
        counts = count_vectors(client, index, name=vector_field)
    if wants_json(context):
        click.echo(json.dumps({**asdict(counts), "share": counts.share}))
    else:
        click.echo(f"{index}: {counts} ({counts.share:.1%})")
    if at_least is not None and counts.share < at_least:
        context.exit(1)
