"""``osrerank vectors``: compute document vectors beforehand, look at them, prune or drop them."""

import json
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import client_of, wants_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from osrerank.vectors.store import VectorStore


@click.group()
def vectors() -> None:
    """Document vectors, with which a bi-encoder scores a known document in microseconds."""


@vectors.command()
@click.option("--index", "-i", required=True, help="Index whose document vectors are computed.")
@click.option(
    "--to",
    type=click.Choice(["file", "redis", "index"]),
    help="Where they are stored.  [default: on a cluster the side index, else as OSRERANK_VECTORS says]",
)
@click.option("--since", default="", help="Date or number field that grows with each change: read only newer ones.")
@click.option("--watch", type=click.FloatRange(1), help="Repeat after this many seconds, until Ctrl-C.")
@click.pass_context
def build(context: click.Context, /, *, index: str, to: Any, since: str, watch: float | None) -> None:
    """Compute the vectors of an index's documents beforehand, as searches read them.

    \b
    osrerank --url https://localhost:9200 --model ./reranker vectors build --index articles
    osrerank --url https://localhost:9200 vectors build --index articles --since changed --watch 60

    Documents that have vectors are only read, so an interrupted build can be started again.
    """
    from osrerank.indexing.build import build_on_screen, build_vectors  # noqa: PLC0415 - for quick help
    from osrerank.indexing.side_index import side_stores  # noqa: PLC0415 - likewise
    from osrerank.vectors.configured import VectorStorage  # noqa: PLC0415 - likewise

    client = client_of(context)
    try:
        done = build_on_screen(client, index, to=to, since=since)
        while watch:
            click.echo(f"{index}: {done}", err=True)
            time.sleep(watch)
            done = build_vectors(client, index, to=to, since=since)
        store = VectorStorage.of(client.searcher.service.settings).store
        to_index = to == "index" or (to is None and client.searcher.vectors is not None)
        kept = _summary(side_stores(client, [index]) if to_index or store is None else [store])
    finally:
        client.close()
    if wants_json(context):
        click.echo(json.dumps({"documents": done.documents, "texts": done.texts, "encoded": done.encoded, **kept}))
        return
    click.echo(f"{index}: {done}")


@vectors.command()
@click.option("--index", "-i", help="Index whose side index is shown, instead of the store.")
@click.pass_context
def status(context: click.Context, /, *, index: str | None) -> None:
    """Say where vectors are kept, how many there are and what they take."""
    with _stores(context, index) as stores:
        found = _summary(stores)
    if wants_json(context):
        click.echo(json.dumps(found))
        return
    most = f" of at most {found['most'] / 1e6:,.0f} MB" if found["most"] else ""
    click.echo(f"{found['store']}: {found['records']:,} records, {found['stored'] / 1e6:,.1f} MB{most}")
    for model, count in found["models"].items():
        click.echo(f"{model}: {count:,} of them")
    if found["older"]:
        click.echo(f"{found['older']:,} unread records of 0.2 are left: osrerank vectors drop deletes them")


@vectors.command()
@click.option("--index", "-i", required=True, help="Index whose documents are looked at.")
@click.option("--most", type=click.IntRange(1), default=1000, show_default=True, help="Documents to look at.")
@click.option("--at-least", type=click.FloatRange(0, 1), help="Share that must have vectors; else the exit code is 1.")
@click.pass_context
def coverage(context: click.Context, /, *, index: str, most: int, at_least: float | None) -> None:
    """Estimate how much of an index has a model's vectors, and what all would cost.

    \b
    osrerank --model ./new vectors build --index articles &
    osrerank --model ./new vectors coverage --index articles --at-least .99 && switch

    So a new model's vectors are built while the old model serves, and searches switch when it has them.
    """
    from osrerank.indexing.status import coverage as coverage_of  # noqa: PLC0415 - the client

    client = client_of(context)
    try:
        found = coverage_of(client, index, most=most)
    finally:
        client.close()
    if wants_json(context):
        click.echo(json.dumps({**asdict(found), "share": found.share}))
    else:
        click.echo(f"{index}: {found.known:,} of a sample of {found.texts:,} texts have vectors ({found.share:.1%})")
        size = f"{found.seconds:,.0f} s and {found.stored / 1e6:,.1f} MB"
        click.echo(f"those of all {found.documents:,} documents take about {size}")
    if at_least is not None and found.share < at_least:
        context.exit(1)


@vectors.command()
@click.option(
    "--index",
    "-i",
    "indexes",
    required=True,
    multiple=True,
    help="Index that still needs its vectors; may be repeated.",
)
@click.pass_context
def prune(context: click.Context, /, *, indexes: tuple[str, ...]) -> None:
    """Delete all vectors but those of these indexes' texts.

    \b
    osrerank --url https://localhost:9200 vectors prune --index articles --index notes

    This deletes the vectors of deleted and changed texts, of other models and, in the store, of other indexes.
    """
    from osrerank.indexing.prune import prune_vectors  # noqa: PLC0415 - the client

    client = client_of(context)
    try:
        count = prune_vectors(client, indexes)
    finally:
        client.close()
    click.echo(json.dumps({"records": count}) if wants_json(context) else f"{count:,} records are left")


@vectors.command()
@click.option("--index", "-i", help="Index whose side index is dropped, instead of the store.")
@click.confirmation_option(prompt="Drop all document vectors?")
@click.pass_context
def drop(context: click.Context, /, *, index: str | None) -> None:
    """Delete all vectors; searches compute them again."""
    with _stores(context, index) as stores:
        count = sum(store.drop() for store in stores)
    click.echo(json.dumps({"dropped": count}) if wants_json(context) else f"{count:,} records dropped")


@contextmanager
def _stores(context: click.Context, index: str | None) -> "Iterator[Sequence[VectorStore]]":
    """Yield the store of the settings, or an index's side indices, even if searches do not use them."""
    from osrerank.errors import ConfigError  # noqa: PLC0415 - with the rest
    from osrerank.indexing.side_index import side_stores  # noqa: PLC0415 - the client
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic
    from osrerank.vectors.configured import VectorStorage  # noqa: PLC0415 - numpy

    if index is not None:
        with closing(client_of(context)) as client:
            yield side_stores(client, [index])
        return
    store = VectorStorage.of(Settings.load()).store
    if store is None:
        raise ConfigError(
            "vectors are off: set OSRERANK_VECTORS=file or redis", setting="vectors", source="environment"
        )
    with closing(store):
        yield [store]


def _summary(stores: "Sequence[VectorStore]") -> dict[str, Any]:
    """Return the sizes of stores of one kind, added up."""
    sizes = [store.size() for store in stores]
    records, stored, most = (sum(part) for part in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
    found = {"store": stores[0].name if stores else "index", "records": records, "stored": stored, "most": most}
    models: Counter[str] = Counter()
    for store in stores:
        models.update(getattr(store, "models", dict)())  # of a side index
    return {**found, "models": dict(models), "older": sum(store.older() for store in stores)}
