"""``osrerank vectors``: compute document vectors beforehand, look at them, prune or drop them."""

import json
import signal
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import client_of, wants_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from osrerank.indexing.estimate import Estimate
    from osrerank.vectors.store import VectorStore


BY_NUMBER = "_seq_no"
"""What ``--follow`` is without a field: changes are followed by the sequence numbers of their writes."""


@click.group()
def vectors() -> None:
    """Document vectors, with which a bi-encoder scores a known document in microseconds."""


@vectors.command()
@click.option("--index", "-i", required=True, help="Index whose document vectors are computed.")
@click.option(
    "--to",
    type=click.Choice(["file", "redis", "index"]),
    help="Where they are stored.  [default: the side index if OSRERANK_VECTORS is index, else as it says]",
)
@click.option(
    "--follow",
    is_flag=False,
    flag_value=BY_NUMBER,
    metavar="[DATE_FIELD]",
    help="Go on with each change until Ctrl-C. Name a date field that each change sets where the service gives no"
    " sequence numbers.",
)
@click.pass_context
def build(context: click.Context, /, *, index: str, to: Any, follow: str | None) -> None:
    """Compute the vectors of an index's documents beforehand, as searches read them.

    \b
    osrerank --url https://localhost:9200 --model ./reranker vectors build --index articles
    osrerank --url https://localhost:9200 vectors build --index articles --follow

    Only documents that changed since the last build are read. An interrupted build can be started again, and builds on
    several machines share an index.
    """
    from osrerank.indexing.build import Builder, build_on_screen, follow_vectors

    field = "" if follow in (None, BY_NUMBER) else follow
    client = client_of(context)
    try:
        if follow:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if not field:
                Builder(client, index, to).heads()  # or the reason why it cannot be followed
        done = build_on_screen(client, index, to=to, date_field=field)
        if follow:
            click.echo(f"{index}: {done}", err=True)
            follow_vectors(
                client, index, to=to, date_field=field, report=lambda built: click.echo(f"{index}: {built}", err=True)
            )
        to_index = to == "index" or (to is None and client.searcher.vectors is not None)
        kept = _summary(_stores_of(client, index, beside=to_index))
    finally:
        client.close()
    if wants_json(context):
        click.echo(json.dumps({"documents": done.documents, "texts": done.texts, "encoded": done.encoded, **kept}))
        return
    click.echo(f"{index}: {done}")


@vectors.command()
@click.option("--index", "-i", help="Index whose documents to examine, too; on a cluster, its side index is shown.")
@click.option(
    "--at-least",
    type=click.FloatRange(0, 1),
    help="With --index: exit code 1 if a smaller share of its documents has vectors; the time is not estimated.",
)
@click.pass_context
def status(context: click.Context, /, *, index: str | None, at_least: float | None) -> None:
    """Show where vectors are stored and how many. With --index, also how many are missing and how long they take.

    \b
    osrerank --model ./new vectors build --index articles &
    osrerank --model ./new vectors status --index articles --at-least .99 && switch

    This builds a new model's vectors while the old model serves, and switches when they are complete.
    """
    if index is None and at_least is not None:
        raise click.UsageError("--at-least needs an index: name it with --index")
    found, known = _status(context, index, measured=at_least is None)
    if wants_json(context):
        click.echo(json.dumps({**found, **({} if known is None else known.as_json())}))
    else:
        _show(found)
        if known is not None:
            click.echo(f"{known}" if at_least is None else f"{index}: {known.coverage}")
    if known is not None and at_least is not None and known.coverage.share < at_least:
        context.exit(1)


def _status(context: click.Context, index: str | None, *, measured: bool) -> "tuple[dict[str, Any], Estimate | None]":
    """Return the sizes of the stores, and for an index how many vectors it lacks."""
    from osrerank.errors import ConfigError
    from osrerank.indexing.estimate import Estimate, estimate

    if index is None:
        with _stores(context, None) as stores:
            return _summary(stores), None
    with closing(client_of(context)) as client:
        found = _summary(_stores_of(client, index, beside=client.searcher.vectors is not None))
        try:
            return found, estimate(client, index) if measured else Estimate(client.coverage(index))
        except ConfigError as error:
            if not measured:
                raise
            click.echo(f"{index}: {error}", err=True)
            return found, None


def _show(found: dict[str, Any]) -> None:
    most = f" of at most {found['most'] / 1e6:,.0f} MB" if found["most"] else ""
    click.echo(f"{found['store']}: {found['records']:,} records, {found['stored'] / 1e6:,.1f} MB{most}")
    for model, count in found["models"].items():
        click.echo(f"{model}: {count:,} of them")


@vectors.command()
@click.option("--index", "-i", "indexes", multiple=True, help="Index whose side index is pruned; may be repeated.")
@click.option("--all", "every", is_flag=True, help="Prune all side indices, and this machine's file or Redis.")
@click.pass_context
def prune(context: click.Context, /, *, indexes: tuple[str, ...], every: bool) -> None:
    """Delete the vectors that no document of an index needs: of deleted and changed texts, and of other models.

    \b
    osrerank --url https://localhost:9200 vectors prune --index articles
    osrerank --url https://localhost:9200 vectors prune --all

    With --all, the file or the Redis that other indexes and clusters may share keeps only the vectors of this
    cluster's indexes; on a cluster, of those with a side index.
    """
    from osrerank.indexing.prune import prune_everything, prune_indexes

    if every == bool(indexes):
        raise click.UsageError("name indexes with --index, or give --all")
    with closing(client_of(context)) as client:
        count = prune_everything(client) if every else prune_indexes(client, indexes)
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
    from osrerank.errors import ConfigError
    from osrerank.indexing.side_index import side_stores
    from osrerank.settings import Settings

    if index is not None:
        with closing(client_of(context)) as client:
            yield side_stores(client, [index])
        return
    store = _store_of(Settings.load())
    if store is None:
        raise ConfigError(
            "vectors are off: set OSRERANK_VECTORS=file, index or redis", setting="vectors", source="environment"
        )
    with closing(store):
        yield [store]


def _stores_of(client: Any, index: str, *, beside: bool) -> "Sequence[VectorStore]":
    """Return the stores of an index's vectors: those beside its indices, or if there is one, that of the settings."""
    from osrerank.indexing.side_index import side_stores

    store = _store_of(client.searcher.service.settings)
    return side_stores(client, [index]) if beside or store is None else [store]


def _store_of(settings: Any) -> "VectorStore | None":
    from osrerank.vectors.configured import VectorStorage

    return VectorStorage.of(settings).store


def _summary(stores: "Sequence[VectorStore]") -> dict[str, Any]:
    """Return the sizes of stores of one kind, added up."""
    sizes = [store.size() for store in stores]
    records, stored, most = (sum(part) for part in zip(*sizes, strict=True)) if sizes else (0, 0, 0)
    found = {"store": stores[0].name if stores else "index", "records": records, "stored": stored, "most": most}
    models: Counter[str] = Counter()
    for store in stores:
        models.update(getattr(store, "models", dict)())  # of a side index
    return {**found, "models": dict(models)}
