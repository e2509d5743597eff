"""``osrerank serve``: the rerank API over HTTP."""

from ipaddress import ip_address
from typing import Any

import click

from osrerank._optional import require

NAMES = ("redis_url", "model", "backend", "dtype")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--max-documents", type=click.IntRange(1), help="Documents of a request.  [default: 10000]")
@click.option("--max-body-mb", type=click.IntRange(1), help="Size of a request's body.  [default: 32]")
@click.option("--max-queue", type=click.IntRange(1), help="Documents waiting or being scored.  [default: 20000]")
@click.option(
    "--timeout-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Most time for a request; they may ask for less.  [default: 30000]",
)
@click.pass_context
def serve(context: click.Context, /, host: str, port: int, **options: Any) -> None:
    """Answer rerank requests over HTTP, in the dialects of Cohere, Jina, vLLM, TEI, SageMaker and Weaviate.

    With OSRERANK_SERVER_TOKEN set, clients must send it as a bearer token. SIGTERM finishes what was taken on.
    """
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    from osrerank.reranker import Reranker  # noqa: PLC0415 - brings numpy
    from osrerank.server.running import run  # noqa: PLC0415 - brings FastAPI
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    settings = Settings.load(**{name: context.obj[name] for name in NAMES})
    if settings.server_token is None and not _is_loopback(host):
        click.echo(f"Everybody who reaches {host} may use this server: set OSRERANK_SERVER_TOKEN.", err=True)
    reranker = Reranker(settings)
    try:
        _warm_up(reranker)
        click.echo(f"{settings.model} on http://{host}:{port}, its dialects on http://{host}:{port}/docs", err=True)
        run(reranker, _limits(options), host=host, port=port)
    finally:
        reranker.close()


def _warm_up(reranker: Any) -> None:
    """Load the model, so that a wrong one is known at once; workers may come later."""
    from osrerank.errors import WorkerError  # noqa: PLC0415 - with the rest

    try:
        reranker.warm_up()
    except WorkerError as error:
        click.echo(f"No pair can be scored yet ({error}); requests are answered 503 until a worker is there.", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _limits(options: dict[str, Any]) -> Any:
    """Return the limits with those that were given."""
    from osrerank.server.limits import Limits  # noqa: PLC0415 - its twin

    given = {name: options[name] for name in ("max_documents", "timeout_ms") if options[name] is not None}
    if options["max_queue"] is not None:
        given["max_held_documents"] = options["max_queue"]
    if options["max_body_mb"] is not None:
        given["max_body_bytes"] = options["max_body_mb"] * 2**20
    return Limits(**given)
