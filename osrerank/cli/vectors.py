"""``osrerank vectors``: compute document vectors before searches need them, count them, prune them or drop them.

Vectors are stored in a file on this machine, in Redis, or on the cluster: in a *side index* beside each index.
"""

import json
from collections import Counter
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from osrerank._signals import end_on_signals
from osrerank.cli.options import INDEX, open_client, wants_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from osrerank.indexing.estimate import Estimate
    from osrerank.vectors.store import VectorStore

SEQUENCE_NUMBER = "_seq_no"
"""The value of ``--follow`` without a date field. Changed documents are then found by their sequence numbers."""


@click.group()
def vectors() -> None:
    """Document vectors, with which a bi-encoder scores a document in microseconds."""


@vectors.command()
@click.option("--index", "-i", type=INDEX, required=True, help="Index with the documents.")
@click.option(
    "--to",
    type=click.Choice(["file", "redis", "index"]),
    help="Store to fill.  [default: the store in OSRERANK_VECTORS]",
)
@click.option(
    "--follow",
    is_flag=False,
    flag_value=SEQUENCE_NUMBER,
    metavar="[DATE_FIELD]",
    help="Then follow the changes of the index until Ctrl-C. If the service has no sequence numbers, name a date field"
    " that every change sets.",
)
@click.pass_context
def build(context: click.Context, /, *, index: str, to: Any, follow: str | None) -> None:
    """Compute the vectors of an index's documents, so that searches need not compute them.

    \b
    osrerank --url https://localhost:9200 --model ./reranker vectors build --index articles
    osrerank --url https://localhost:9200 vectors build --index articles --follow

    A build reads only the documents that changed since the last build. It can be interrupted and started again, and
    several machines can share it. With --follow, SIGTERM ends it with exit code 0, as it ends workers and servers.
    """
    from osrerank.indexing.build import Builder, build_on_screen, follow_vectors

    def report(progress: object) -> None:
        click.echo(f"{index}: {progress}", err=True)

    date_field = "" if follow in (None, SEQUENCE_NUMBER) else follow
    client = open_client(context)
    try:
        with end_on_signals() if follow else nullcontext():
            if follow == SEQUENCE_NUMBER:
                Builder(client, index, to).read_heads()  # raises an error if sequence numbers cannot be followed
            result = build_on_screen(client, index, to=to, date_field=date_field)
            if follow:
                report(result)
                follow_vectors(client, index, to=to, date_field=date_field, report=report)
        uses_side_index = to == "index" or (to is None and client.searcher.vectors is not None)
        sizes = _sum_sizes(_select_stores(client, index, uses_side_index=uses_side_index))
    finally:
        client.close()
    if wants_json(context):
        counts = {"documents": result.documents, "texts": result.texts, "encoded": result.encoded}
        click.echo(json.dumps({**counts, **sizes}))
        return
    click.echo(f"{index}: {result}")


@vectors.command()
@click.option("--index", "-i", type=INDEX, help="Also check this index's documents; on a cluster, show its side index.")
@click.option(
    "--at-least",
    type=click.FloatRange(0, 1),
    help="With --index: exit with 1 if a smaller fraction of its documents has vectors; do not estimate the time.",
)
@click.pass_context
def status(context: click.Context, /, *, index: str | None, at_least: float | None) -> None:
    """Show where and how many vectors are stored. With --index, also estimate the time to build missing ones.

    \b
    osrerank --model ./new vectors build --index articles &
    osrerank --model ./new vectors status --index articles --at-least .99 && switch

    This example builds the vectors of a new model while the old model is used, and switches when almost all are stored.
    """
    if index is None and at_least is not None:
        raise click.UsageError("--at-least needs an index: set --index")
    sizes, estimate = _read_status(context, index, estimates_time=at_least is None)
    if wants_json(context):
        index_report = {} if estimate is None else estimate.as_json()
        click.echo(json.dumps({**sizes, **index_report}))
    else:
        _print_sizes(sizes)
        if estimate is not None:
            click.echo(str(estimate) if at_least is None else f"{index}: {estimate.coverage}")
    if estimate is not None and at_least is not None and estimate.coverage.share < at_least:
        context.exit(1)


def _read_status(
    context: click.Context, index: str | None, *, estimates_time: bool
) -> "tuple[dict[str, Any], Estimate | None]":
    """Return the sizes of the stores, and an estimate for the index, or None if there is no index or no estimate.

    If ``estimates_time`` is false, the estimate contains only how many documents have vectors.
    """
    from osrerank.errors import ConfigError
    from osrerank.indexing.estimate import Estimate, estimate

    if index is None:
        with _open_stores(context, None) as stores:
            return _sum_sizes(stores), None
    with closing(open_client(context)) as client:
        sizes = _sum_sizes(_select_stores(client, index, uses_side_index=client.searcher.vectors is not None))
        try:
            index_estimate = estimate(client, index) if estimates_time else Estimate(client.coverage(index))
        except ConfigError as error:
            if not estimates_time:
                raise
            click.echo(f"{index}: {error}", err=True)
            return sizes, None
        return sizes, index_estimate


def _print_sizes(sizes: dict[str, Any]) -> None:
    limit = f" of at most {sizes['most'] / 1e6:,.0f} MB" if sizes["most"] else ""
    click.echo(f"{sizes['store']}: {sizes['records']:,} records, {sizes['stored'] / 1e6:,.1f} MB{limit}")
    for model, count in sizes["models"].items():
        click.echo(f"{model}: {count:,} records")


@vectors.command()
@click.option(
    "--index", "-i", "indexes", multiple=True, type=INDEX, help="Index whose side index is pruned; repeatable."
)
@click.option("--all", "all_indexes", is_flag=True, help="Prune all side indices, and the file or Redis.")
@click.pass_context
def prune(context: click.Context, /, *, indexes: tuple[str, ...], all_indexes: bool) -> None:
    """Delete the vectors that no document needs: those of deleted or changed texts, and of other models.

    \b
    osrerank --url https://localhost:9200 vectors prune --index articles
    osrerank --url https://localhost:9200 vectors prune --all

    With --all, vectors in the file or Redis are also deleted, unless an index of this cluster with a side index needs
    them. Other clusters that share the file or Redis lose their vectors.
    """
    from osrerank.indexing.prune import prune_everything, prune_indices

    if all_indexes == bool(indexes):  # both or neither
        raise click.UsageError("pass either --index or --all")
    with closing(open_client(context)) as client:
        count = prune_everything(client) if all_indexes else prune_indices(client, indexes)
    click.echo(json.dumps({"records": count}) if wants_json(context) else f"{count:,} records remain")


@vectors.command()
@click.option("--index", "-i", type=INDEX, help="Drop the side index of this index, instead of the file or Redis.")
@click.confirmation_option(prompt="Drop all document vectors?")
@click.pass_context
def drop(context: click.Context, /, *, index: str | None) -> None:
    """Delete all vectors. Later searches compute them again."""
    with _open_stores(context, index) as stores:
        count = sum(store.drop() for store in stores)
    click.echo(json.dumps({"dropped": count}) if wants_json(context) else f"{count:,} records dropped")


@contextmanager
def _open_stores(context: click.Context, index: str | None) -> "Iterator[Sequence[VectorStore]]":
    """Yield the side indices of an index, or the store in the settings if ``index`` is None.

    Side indices are found even if the settings name another store.

    Raises:
        ConfigError: ``index`` is None, and the settings turn vectors off.
    """
    from osrerank.errors import ConfigError
    from osrerank.indexing.side_index import find_side_indices
    from osrerank.settings import Settings

    if index is not None:
        with closing(open_client(context)) as client:
            yield find_side_indices(client, [index])
        return
    store = _open_configured_store(Settings.load())
    if store is None:
        raise ConfigError(
            "vectors are off: set OSRERANK_VECTORS to file, index or redis", setting="vectors", source="environment"
        )
    with closing(store):
        yield [store]


def _select_stores(client: Any, index: str, *, uses_side_index: bool) -> "Sequence[VectorStore]":
    """Return the side indices of an index if it uses them or no other store is set, otherwise the file or Redis."""
    from osrerank.indexing.side_index import find_side_indices

    store = _open_configured_store(client.searcher.service.settings)
    if uses_side_index or store is None:
        return find_side_indices(client, [index])
    return [store]


def _open_configured_store(settings: Any) -> "VectorStore | None":
    from osrerank.vectors.storage import VectorStorage

    return VectorStorage.from_settings(settings).store


def _sum_sizes(stores: "Sequence[VectorStore]") -> dict[str, Any]:
    """Return the total contents of stores of one kind, such as ``{"store": "file", "records": 2, "stored": 800, ...}``.

    ``stored`` is their size, and ``most`` their maximum size, in bytes. The maximum is 0 if it is unlimited.
    """
    totals: dict[str, Any] = {"store": "index", "records": 0, "stored": 0, "most": 0}
    models: Counter[str] = Counter()
    for store in stores:
        records, stored_bytes, max_bytes = store.size()
        totals["store"] = store.name
        totals["records"] += records
        totals["stored"] += stored_bytes
        totals["most"] += max_bytes
        if hasattr(store, "models"):  # only side indices count records per model
            models.update(store.models())
    return {**totals, "models": dict(models)}
