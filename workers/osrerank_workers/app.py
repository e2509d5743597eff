"""The Celery application: ``celery -A osrerank_workers.app worker``, or ``osrerank worker``.

The worker loads its model when it starts, before it takes its first chunk; an import loads nothing. One process has one
copy of the model and scores several chunks at a time in threads. Nothing is forked, so CUDA may be initialised at any
time.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery, signals

from osrerank.errors import OsrerankError
from osrerank.scoring.remote.broker import celery_app
from osrerank.settings import Settings
from osrerank.tracing.export import export_traces
from osrerank.types import Scorer
from osrerank_workers.consumer import Consumer
from osrerank_workers.logs import configure_logs
from osrerank_workers.probes import serve_probes
from osrerank_workers.service import WorkerService
from osrerank_workers.tasks import register

logger = logging.getLogger(__name__)

THREADS = "celery.concurrency.thread"


def __getattr__(name: str) -> Celery:
    """Create ``app`` from the environment's settings when Celery's command line first uses it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = create_app(Settings.load())
    globals()["app"] = app
    return app


def create_app(settings: Settings, scorer: Scorer | None = None) -> Celery:
    """Create the Celery application of this process' worker.

    Args:
        settings: the settings of the worker, such as its broker and its model.
        scorer: the scorer to use instead of the model that the settings name.

    Raises:
        ConfigError: no broker is configured.
    """
    app = celery_app(settings.broker())
    service = WorkerService(settings, scorer)
    _configure(app, service)
    register(app, service)
    _connect_signals(service, settings)
    return app


def _configure(app: Celery, service: WorkerService) -> None:
    """Set the options that only workers need.

    When Redis answers with an error, the worker connects again; Celery's default is to end.

    The worker acknowledges a message when it starts the chunk. Redis would deliver an unacknowledged message again only
    after the visibility timeout of an hour, when no client waits any more; clients send lost chunks again themselves.
    For the same reason no running chunk is cancelled when the connection is lost: with late acknowledgement off, that
    option only silences a warning of Celery.
    """
    app.conf.update(
        task_acks_late=False,
        worker_pool="threads",
        worker_prefetch_multiplier=1,
        worker_consumer=partial(Consumer, broker=service.broker),
        broker_transport="osrerank_workers.consumer:Transport",
        broker_channel_error_retry=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,
    )


def _connect_signals(service: WorkerService, settings: Settings) -> None:
    """Start and stop the service when Celery signals that the worker starts and stops."""
    stop_probes: list[Callable[[], None]] = []

    def load(conf: Any, **_signal: Any) -> None:
        configure_logs(settings.log_format)
        export_traces("osrerank-worker")
        _or_exit(lambda: stop_probes.append(serve_probes(settings.probe_port, service.status)))
        _or_exit(service.load)
        conf.task_default_queue = service.queue
        conf.worker_concurrency = service.tasks

    def check_pool(instance: Any, **_signal: Any) -> None:
        if instance.pool_cls.__module__ != THREADS:
            logger.critical("[no-start] a worker runs its tasks in threads: leave out -P, or write -P threads")
            raise SystemExit(2)

    def begin(**_signal: Any) -> None:
        _or_exit(service.begin)

    def stop_taking(**_signal: Any) -> None:
        service.stop_taking()

    def end(**_signal: Any) -> None:
        service.close()
        for stop in stop_probes:
            stop()

    def hold_chunk(request: Any, **_signal: Any) -> None:
        service.hold(request.id)

    def configure(**_signal: Any) -> None:
        configure_logs(settings.log_format)

    signals.setup_logging.connect(configure, weak=False)
    signals.celeryd_init.connect(load, weak=False)
    signals.celeryd_after_setup.connect(check_pool, weak=False)
    signals.worker_ready.connect(begin, weak=False)
    signals.worker_shutting_down.connect(stop_taking, weak=False)
    signals.worker_shutdown.connect(end, weak=False)
    signals.task_received.connect(hold_chunk, weak=False)


def _or_exit(step: Callable[[], None]) -> None:
    """Run a step, and end the process if it fails: Celery would only log the error of a signal's receiver."""
    try:
        step()
    except OsrerankError as error:
        logger.critical("[no-start] the worker cannot start: %s", error)
        raise SystemExit(1) from error
    except Exception as error:
        logger.critical("[no-start] the worker cannot start", exc_info=True)
        raise SystemExit(1) from error
