"""The Celery application of a worker: ``celery -A osrerank_workers.app worker``, or ``osrerank worker``.

A worker scores chunks. A chunk is a part of a search's documents that a client sends through Redis. The worker loads
its model when it starts, and scores several chunks at a time in threads. It never forks, so CUDA can be initialised at
any time.
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

THREAD_POOL_MODULE = "celery.concurrency.thread"
"""The module of the Celery pool that runs tasks in threads."""


def __getattr__(name: str) -> Celery:
    """Create the module attribute ``app`` with the user's settings when Celery's command line first uses it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = create_app(Settings.load())
    globals()["app"] = app
    return app


def create_app(settings: Settings, scorer: Scorer | None = None) -> Celery:
    """Create the Celery application of a worker.

    Args:
        settings: the settings of the worker, such as its broker and its model.
        scorer: a scorer to use instead of the settings' model.

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

    The worker acknowledges a message when it starts the chunk, because clients send lost chunks again themselves.
    Celery would deliver an unacknowledged message again only after an hour, its visibility timeout.
    """
    app.conf.update(
        task_acks_late=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # has no effect here, but Celery warns without it
        worker_pool="threads",
        worker_prefetch_multiplier=1,
        worker_consumer=partial(Consumer, broker=service.broker),
        broker_transport="osrerank_workers.consumer:Transport",
        broker_channel_error_retry=True,  # reconnect when Redis responds with an error; Celery ends by default
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )


def _connect_signals(service: WorkerService, settings: Settings) -> None:
    """Call the service at each step of a worker's life: its start, a received chunk, and its end."""
    stop_probes: list[Callable[[], None]] = []  # filled by on_init

    def on_setup_logging(**_signal: Any) -> None:
        configure_logs(settings.log_format)  # instead of Celery's own setup

    def on_init(conf: Any, **_signal: Any) -> None:
        configure_logs(settings.log_format)  # for what is logged before Celery's setup
        export_traces("osrerank-worker")
        _exit_on_error(lambda: stop_probes.append(serve_probes(settings.probe_port, service.status)))
        _exit_on_error(service.load)
        conf.task_default_queue = service.queue
        conf.worker_concurrency = service.tasks

    def on_setup(instance: Any, **_signal: Any) -> None:
        if instance.pool_cls.__module__ != THREAD_POOL_MODULE:
            logger.critical("[no-start] a worker runs its tasks in threads: leave out -P, or pass -P threads")
            raise SystemExit(2)

    def on_ready(**_signal: Any) -> None:
        _exit_on_error(service.start)

    def on_task_received(request: Any, **_signal: Any) -> None:
        service.register_chunk(request.id)

    def on_shutting_down(**_signal: Any) -> None:
        service.stop_accepting()

    def on_shutdown(**_signal: Any) -> None:
        service.close()
        for stop in stop_probes:
            stop()

    signals.setup_logging.connect(on_setup_logging, weak=False)
    signals.celeryd_init.connect(on_init, weak=False)
    signals.celeryd_after_setup.connect(on_setup, weak=False)
    signals.worker_ready.connect(on_ready, weak=False)
    signals.task_received.connect(on_task_received, weak=False)
    signals.worker_shutting_down.connect(on_shutting_down, weak=False)
    signals.worker_shutdown.connect(on_shutdown, weak=False)


def _exit_on_error(step: Callable[[], None]) -> None:
    """Run a step of the worker's start, and end the process if it fails. Celery alone would only log the error."""
    try:
        step()
    except OsrerankError as error:
        logger.critical("[no-start] the worker cannot start: %s", error)
        raise SystemExit(1) from error
    except Exception as error:
        logger.critical("[no-start] the worker cannot start", exc_info=True)
        raise SystemExit(1) from error
