"""``osrerank serve``: the rerank API over HTTP, and the comparison page."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from osrerank._optional import require
from osrerank.cli.options import DURATION
from osrerank.errors import ConfigError
from osrerank.options.rerank import MOST_MS

NAMES = ("redis_url", "model", "vector_model", "duo_model", "backend", "dtype")
PAGE_OPTIONS = ("indexes", "hosts", "queries", "qrels", "save_judgments")
FILE = click.Path(exists=True, dir_okay=False)


@contextmanager
def _sigterm_ends_it() -> Iterator[None]:
    """Let SIGTERM end a command with 0 while it loads models, too."""
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be received
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--max-documents", type=click.IntRange(1), help="Documents of a request.  [default: 10000]")
@click.option("--max-body-mb", type=click.IntRange(1), help="Size of a request's body.  [default: 32]")
@click.option("--max-queue", type=click.IntRange(1), help="Documents waiting or being scored.  [default: 20000]")
@click.option(
    "--timeout-ms",
    type=DURATION,
    help="Time limit of a request; clients may set a shorter one.  [default: 30000]",
)
@click.option(
    "--max-wait",
    type=click.FloatRange(0, MOST_MS / 1000),
    metavar="SECONDS",
    help="Refuse requests (429) that would wait longer than this.  [default: their time limit]",
)
@click.option(
    "--allow-origin", "origins", multiple=True, help="Site whose pages may call this server: https://example.org."
)
@click.option("--allow-host", "hosts", multiple=True, help="With --ui: another host name of this server.")
@click.option("--access-log", metavar="FILE", help="Write a JSON line for each request; - for standard output.")
@click.option("--log-texts", is_flag=True, help="With --access-log: write queries and documents, too.")
@click.option("--ui", is_flag=True, help="Serve the comparison page too, over the index at --url.")
@click.option(
    "--index",
    "-i",
    "indexes",
    multiple=True,
    help="With --ui: index that may be searched; may be repeated.  [default: all]",
)
@click.option("--queries", type=FILE, help="With --ui: queries to pick from, TSV, JSONL or TREC topics.")
@click.option("--qrels", type=FILE, help="With --ui and --queries: TREC judgments; judged documents are marked.")
@click.option(
    "--save-judgments",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --ui: let people judge documents, and write qrels.txt and queries.tsv into this folder.",
)
@click.pass_context
@_sigterm_ends_it()
def serve(context: click.Context, /, host: str, port: int, **options: Any) -> None:
    """Answer rerank requests over HTTP, in the dialects of Cohere, Voyage, Mixedbread, vLLM, TEI and others.

    With OSRERANK_SERVER_TOKEN set, clients must send it as a bearer token. SIGTERM finishes accepted requests.

    With --ui, http://HOST:PORT/ui shows any search of the index at --url as BM25 and the model order it, side by side.
    Everyone who may use the server may then read that index: limit it with --index.
    """
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    if not options["ui"] and (given := [name for name in PAGE_OPTIONS if options[name]]):
        option = {"indexes": "index", "hosts": "allow-host"}.get(given[0], given[0]).replace("_", "-")
        raise ConfigError(f"--{option} is the comparison page's: add --ui", setting=option, source="flag")
    if options["ui"]:
        judgments = _judgments(options["queries"], options["qrels"], options["save_judgments"])
        limits, access = _limits(options), _access(options)
        serve_page(context, options["indexes"], judgments, host=host, port=port, limits=limits, access=access)
        return
    with _reranker(context, host) as reranker:
        from osrerank.server.run import run  # noqa: PLC0415 - brings FastAPI

        _warm_up(reranker)
        _announce(reranker, host, port)
        run(reranker, _limits(options), host=host, port=port, access=_access(options))


def serve_page(
    context: click.Context,
    indexes: tuple[str, ...],
    judgments: Any,
    *,
    host: str,
    port: int,
    limits: Any = None,
    access: Any = None,
) -> None:
    """Serve the rerank API and the comparison page.

    Args:
        context: of the command.
        indexes: indexes that may be searched; empty for all.
        judgments: queries to pick from and their ``Judgments``.
        host: address to listen on.
        port: port to listen on.
        limits: of the API.
        access: who may call it, an ``Access``.
    """
    from osrerank.cli.options import client_of  # noqa: PLC0415 - brings the client
    from osrerank.server.api.limits import ServerLimits  # noqa: PLC0415 - its twin
    from osrerank.server.page.routes import ComparisonPage, usable_pipelines  # noqa: PLC0415 - brings FastAPI
    from osrerank.server.run import run  # noqa: PLC0415 - likewise

    client = client_of(context)
    try:
        _warn_if_open(client.searcher.service, host)
        _warm_up(client.searcher.service)
        comparison = ComparisonPage(client, usable_pipelines(client.searcher.service), indexes, judgments)
        _announce(client.searcher.service, host, port)
        click.echo(f"The comparison page is on http://{host}:{port}/ui", err=True)
        run(
            client.searcher.service,
            limits or ServerLimits(),
            host=host,
            port=port,
            access=access,
            comparison=comparison,
        )
    finally:
        client.close()


def _judgments(queries: str | None, qrels: str | None, folder: Path | None = None) -> Any:
    """Read the queries to pick from and their judgments, also those that were made on the page.

    Raises:
        ConfigError: judgments are given without queries.
        EvaluationError: a file cannot be read.
    """
    from osrerank.formats.topics import read_queries  # noqa: PLC0415 - brings numpy
    from osrerank.formats.trec import read_qrels  # noqa: PLC0415 - likewise
    from osrerank.server.page.judgments import Judgments  # noqa: PLC0415 - its twin

    if qrels is not None and queries is None:
        message = "--qrels judges queries by their ids: give their texts as --queries"
        raise ConfigError(message, setting="qrels", source="flag")
    asked, judged = read_queries(queries) if queries else (), read_qrels(qrels) if qrels else None
    return Judgments(asked, judged, folder)


@contextmanager
def _reranker(context: click.Context, host: str) -> Iterator[Any]:
    from osrerank.service import RerankService  # noqa: PLC0415 - brings numpy
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    reranker = RerankService(Settings.load(**{name: context.obj[name] for name in NAMES}))
    try:
        _warn_if_open(reranker, host)
        yield reranker
    finally:
        reranker.close()


def _warn_if_open(reranker: Any, host: str) -> None:
    if reranker.settings.server_token is None and not _is_loopback(host):
        click.echo(f"Anyone who reaches {host} can use this server: set OSRERANK_SERVER_TOKEN.", err=True)


def _announce(reranker: Any, host: str, port: int) -> None:
    click.echo(f"{reranker.model_name} on http://{host}:{port}, its dialects on http://{host}:{port}/docs", err=True)


def _warm_up(reranker: Any) -> None:
    """Load the model, so that an unusable one is reported at once; workers, or a server behind, may start later."""
    from osrerank._platform import settle  # noqa: PLC0415 - with the rest
    from osrerank.errors import DeadlineExceeded, ScoringError, WorkerError  # noqa: PLC0415 - with the rest
    from osrerank.service import SERVER_MS  # noqa: PLC0415 - brings numpy

    try:
        reranker.warm_up(server_ms=SERVER_MS)
        settle()
    except (WorkerError, ScoringError) as error:
        if not (error.retryable or isinstance(error, WorkerError | DeadlineExceeded)):
            raise
        who = "a worker" if isinstance(error, WorkerError) else "that server"
        click.echo(f"The server cannot score yet ({error}); it answers 503 until {who} is ready.", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _limits(options: dict[str, Any]) -> Any:
    """Return the default limits, with the given ones in place."""
    from osrerank.server.api.limits import ServerLimits  # noqa: PLC0415 - its twin

    given = {name: options[name] for name in ("max_documents", "timeout_ms") if options[name] is not None}
    if options["max_wait"] is not None:
        given["max_wait_s"] = options["max_wait"]
    if options["max_queue"] is not None:
        given["max_held_documents"] = options["max_queue"]
    if options["max_body_mb"] is not None:
        given["max_body_bytes"] = options["max_body_mb"] * 2**20
    return ServerLimits(**given)


def _access(options: dict[str, Any]) -> Any:
    """Return who may call the server.

    Raises:
        ConfigError: an origin is not one, or texts are to be logged nowhere.
    """
    from urllib.parse import urlsplit  # noqa: PLC0415 - with the rest

    from osrerank.server.run import Access  # noqa: PLC0415 - brings FastAPI

    for origin in options["origins"]:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}" or not parts.netloc:
            message = f"--allow-origin is {origin!r}; it must be http(s)://host or http(s)://host:port"
            raise ConfigError(message, setting="allow_origin", source="flag")
    if options["log_texts"] and options["access_log"] is None:
        raise ConfigError("--log-texts is the access log's: add --access-log", setting="log_texts", source="flag")
    return Access(options["hosts"], options["origins"], options["access_log"], options["log_texts"])
