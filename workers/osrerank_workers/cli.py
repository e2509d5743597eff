"""The command ``osrerank worker``."""

from typing import Any

import click

from osrerank._signals import end_on_signals
from osrerank.scoring.names import WORKER_BACKENDS


@click.command()
@click.option("--model", help="Model: directory, hub id or shipped name.  [env: OSRERANK_MODEL]")
@click.option("--backend", help=f"Scoring backend: {', '.join(WORKER_BACKENDS)}.  [env: OSRERANK_BACKEND]")
@click.option("--broker-url", help="Redis that carries the chunks.  [env: OSRERANK_BROKER_URL]")
@click.option("--threads", type=click.IntRange(0), help="CPU threads; 0 uses all cores.  [env: OSRERANK_THREADS]")
@click.option(
    "--tasks", "worker_tasks", type=click.IntRange(0), help="Chunks scored at a time; 0 uses the model's default."
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Serve /live and /ready over HTTP on this port.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.  [default: text]")
@click.option("--check", is_flag=True, help="Start no worker: exit with 0 if one on this host is ready, else with 1.")
@click.pass_obj
@end_on_signals()
def worker(group_options: dict[str, Any] | None, /, *, check: bool, **options: Any) -> None:
    """Score for clients with --backend workers, until stopped by SIGTERM, SIGINT or SIGHUP.

    A stopping worker finishes the accepted chunks. On a machine with several GPUs, start one worker per GPU, each with
    its CUDA_VISIBLE_DEVICES.
    """
    from osrerank.settings import Settings  # noqa: PLC0415 - imports pydantic

    global_options = {name: (group_options or {}).get(name) for name in ("redis_url", "model", "backend", "dtype")}
    worker_options = {name: value for name, value in options.items() if value is not None}
    settings = Settings.load(**{**global_options, **worker_options})
    if check:
        from osrerank_workers.check import check_worker  # noqa: PLC0415 - imports redis

        click.echo(check_worker(settings))
        return
    from osrerank_workers.run import run_worker  # noqa: PLC0415 - imports celery

    raise SystemExit(run_worker(settings))
