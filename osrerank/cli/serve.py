"""``osrerank serve``: serve the rerank API over HTTP, with ``--ui`` also the comparison page."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank._optional import require
from osrerank._signals import end_on_signals
from osrerank.cli.options import DURATION_MS, INDEX, open_client, open_reranker
from osrerank.cli.path_types import FOLDER
from osrerank.errors import ConfigError
from osrerank.options.rerank import MAX_MS

if TYPE_CHECKING:
    from osrerank.server.api.limits import ServerLimits
    from osrerank.server.page.judgments import Judgments
    from osrerank.server.run import Access

PAGE_OPTIONS = {"hosts": "allow-host", "queries": "queries", "qrels": "qrels", "save_judgments": "save-judgments"}
"""The options that need ``--ui``: argument of `serve` -> option."""
FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--max-documents", type=click.IntRange(1), help="Maximum documents per request.  [default: 10000]")
@click.option("--max-body-mb", type=click.IntRange(1), help="Maximum size of a request in megabytes.  [default: 32]")
@click.option(
    "--max-queue", type=click.IntRange(1), help="Maximum documents waiting or being scored.  [default: 20000]"
)
@click.option("--timeout-ms", type=DURATION_MS, help="Time limit; clients can set a shorter one.  [default: 30000]")
@click.option(
    "--max-wait",
    type=click.FloatRange(0, MAX_MS / 1000),
    metavar="SECONDS",
    help="Refuse requests (429) that would wait longer than this.  [default: their time limit]",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    help="Web site whose pages can call this server, such as https://example.org; repeatable.",
)
@click.option("--allow-host", "hosts", multiple=True, help="With --ui: another host name of the server; repeatable.")
@click.option("--access-log", metavar="FILE", help="Write a JSON line for each request; - for standard output.")
@click.option("--log-texts", is_flag=True, help="With --access-log: also write queries and documents.")
@click.option("--ui", is_flag=True, help="Also serve the comparison page, for the engine at --url.")
@click.option(
    "--index",
    "-i",
    "indexes",
    multiple=True,
    type=INDEX,
    help="Index at --url whose stored vectors are used; with --ui, an index to offer; repeatable.",
)
@click.option("--queries", type=FILE, help="With --ui: queries to choose from, as TSV, JSON lines or TREC topics.")
@click.option("--qrels", type=FILE, help="With --ui and --queries: TREC judgments to show on the page.")
@click.option(
    "--save-judgments",
    type=FOLDER,
    help="With --ui: let users judge documents, and write qrels.txt and queries.tsv into this folder.",
)
@click.pass_context
@end_on_signals()
def serve(context: click.Context, /, host: str, port: int, **options: Any) -> None:
    """Serve rerank requests over HTTP, in the dialects of Cohere, Voyage, Mixedbread, vLLM, TEI and others.

    If OSRERANK_SERVER_TOKEN is set, clients must send it as a bearer token. After SIGTERM, SIGINT or SIGHUP, the server
    finishes the requests that it has accepted.

    With --ui, http://HOST:PORT/ui shows the hits of a search in BM25's order and in the model's order, side by side.
    All users of the server can then read the indices at --url, or only those in --index.

    With --index, the server uses the vectors that "osrerank vectors build --index" stored on the cluster, instead of
    encoding those documents again. Set --index if a search pipeline of that index calls this server.
    """
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    if options["ui"]:
        judgments = _read_judgments(options["queries"], options["qrels"], options["save_judgments"])
        limits = _create_limits(options)
        access = _create_access(options)
        serve_page(context, options["indexes"], judgments, host=host, port=port, limits=limits, access=access)
        return
    for name, option in PAGE_OPTIONS.items():
        if options[name]:
            raise ConfigError(f"--{option} belongs to the comparison page: add --ui", setting=option, source="flag")
    from osrerank.server.run import bind, run

    with bind(host, port) as listener, _open_server_reranker(context, host, options["indexes"]) as reranker:
        _warm_up(reranker)
        _listen(reranker, host, port, listener)
        run(reranker, _create_limits(options), host=host, listener=listener, access=_create_access(options))


def serve_page(
    context: click.Context,
    indexes: tuple[str, ...],
    judgments: "Judgments",
    *,
    host: str,
    port: int,
    limits: "ServerLimits | None" = None,
    access: "Access | None" = None,
) -> None:
    """Serve the rerank API and the comparison page. If ``indexes`` is empty, the page offers all readable indices."""
    from osrerank.server.api.limits import ServerLimits
    from osrerank.server.page.routes import ComparisonPage, check_pipelines
    from osrerank.server.run import bind, run, server_url

    with bind(host, port) as listener, closing(open_client(context)) as client:
        reranker = client.searcher.service
        if indexes:
            _use_stored_vectors(reranker, client, indexes)
        _warn_if_unprotected(reranker, host)
        _warm_up(reranker)
        comparison = ComparisonPage(client, check_pipelines(reranker), indexes, judgments)
        _listen(reranker, host, port, listener)
        click.echo(f"The comparison page is on {server_url(host, port)}/ui", err=True)
        run(reranker, limits or ServerLimits(), host=host, listener=listener, access=access, comparison=comparison)


def _read_judgments(queries: str | None, qrels: str | None, folder: Path | None = None) -> "Judgments":
    """Return the judgments in files, and those that users of the page have saved in a folder."""
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels
    from osrerank.server.page.judgments import Judgments

    if qrels is not None and queries is None:
        message = "--qrels contains only query ids: pass the queries' texts with --queries"
        raise ConfigError(message, setting="qrels", source="flag")
    query_set = () if queries is None else read_queries(queries)
    judgments = None if qrels is None else read_qrels(qrels)
    return Judgments(query_set, judgments, folder)


@contextmanager
def _open_server_reranker(context: click.Context, host: str, indexes: tuple[str, ...] = ()) -> Iterator[Any]:
    """Open the reranker, let it read the indices' stored vectors, and warn if the server is unprotected."""
    with ExitStack() as stack:
        reranker = open_reranker(context)
        stack.callback(reranker.close)
        if indexes:
            _use_stored_vectors(reranker, stack.enter_context(closing(open_client(context))), indexes)
        _warn_if_unprotected(reranker, host)
        yield reranker


def _use_stored_vectors(reranker: Any, client: Any, indexes: tuple[str, ...]) -> None:
    """Let the reranker read the vectors that are stored on the cluster for these indices."""
    from osrerank.indexing.side_index import find_side_indices

    reranker.set_side_index_stores(find_side_indices(client, indexes))


def _warn_if_unprotected(reranker: Any, host: str) -> None:
    if reranker.settings.server_token is None and not _is_loopback(host):
        click.echo(f"Anyone who reaches {host} can use this server: set OSRERANK_SERVER_TOKEN.", err=True)


def _listen(reranker: Any, host: str, port: int, listener: Any) -> None:
    """Accept connections, and print the server's address."""
    from osrerank.server.run import listen, server_url

    listen(listener)
    url = server_url(host, port)
    click.echo(f"{reranker.model_name} on {url}; {url}/docs describes its routes", err=True)


def _warm_up(reranker: Any) -> None:
    """Load the model, so that errors are reported at once. A worker or a rerank server need not be ready yet."""
    from osrerank._platform import freeze_objects
    from osrerank.errors import DeadlineExceeded, ScoringError, WorkerError
    from osrerank.service import SERVER_STARTUP_MS

    try:
        reranker.warm_up(server_ms=SERVER_STARTUP_MS)
        freeze_objects()
    except (WorkerError, ScoringError) as error:
        can_become_ready = error.retryable or isinstance(error, WorkerError | DeadlineExceeded)
        if not can_become_ready:
            raise
        waits_for = "a worker" if isinstance(error, WorkerError) else "that server"  # the error names the server
        click.echo(f"The server cannot score yet ({error}): it responds with 503 until {waits_for} is ready.", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _create_limits(options: dict[str, Any]) -> "ServerLimits":
    from osrerank.server.api.limits import ServerLimits

    limits = {name: options[name] for name in ("max_documents", "timeout_ms") if options[name] is not None}
    if options["max_wait"] is not None:
        limits["max_wait_s"] = options["max_wait"]
    if options["max_queue"] is not None:
        limits["max_held_documents"] = options["max_queue"]
    if options["max_body_mb"] is not None:
        limits["max_body_bytes"] = options["max_body_mb"] * 2**20
    return ServerLimits(**limits)


def _create_access(options: dict[str, Any]) -> "Access":
    from urllib.parse import urlsplit

    from osrerank.server.run import Access

    for origin in options["origins"]:
        parts = urlsplit(origin)
        has_site = parts.scheme in ("http", "https") and parts.netloc
        if not has_site or origin != f"{parts.scheme}://{parts.netloc}":
            message = f"--allow-origin is {origin!r}; it must be http(s)://host or http(s)://host:port"
            raise ConfigError(message, setting="allow_origin", source="flag")
    if options["log_texts"] and options["access_log"] is None:
        raise ConfigError("--log-texts belongs to the access log: add --access-log", setting="log_texts", source="flag")
    return Access(options["hosts"], options["origins"], options["access_log"], options["log_texts"])
