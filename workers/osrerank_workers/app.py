"""The Celery application: ``celery -A osrerank_workers.app worker``, or ``osrerank worker``.

The model is loaded when the worker starts, before it takes its first chunk, never at import; one process has one copy
of it and works on several chunks at a time in threads. Nothing is forked, so CUDA may be initialised at any time.
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
    """Make ``app``, of the environment's settings, when Celery's command line asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = create_app(Settings.load())
    globals()["app"] = made
    return made


def create_app(settings: Settings, scorer: Scorer | None = None) -> Celery:
    """Return the application of a worker, one for a process.

    Args:
        settings: broker, model, tasks at a time.
        scorer: used in place of the settings' model.

    Raises:
        ConfigError: no broker is configured.
    """
    made = celery_app(settings.broker())
    service = WorkerService(settings, scorer)
    _configure(made, service)
    register(made, service)
    _follow(service, settings)
    return made


def _configure(made: Celery, service: WorkerService) -> None:
    """Set the options that only workers need.

    After an error that Redis answers with, a worker connects again; Celery's default is to end.

    A message is acknowledged when its chunk is started. On Redis an unacknowledged one would come back after the
    visibility timeout, an hour, when nobody waits for it; the client, who does, sends it again instead. So no chunk is
    cancelled on a connection loss, either; that option only leaves out a warning of Celery.
    """
    made.conf.update(
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


def _follow(service: WorkerService, settings: Settings) -> None:
    """Start and stop a service with this process' worker, by Celery's signals."""
    stop_probes: list[Callable[[], None]] = []

    def load(conf: Any, **_rest: Any) -> None:
        configure_logs(settings.log_format)
        export_traces("osrerank-worker")
        _or_exit(lambda: stop_probes.append(serve_probes(settings.probe_port, service.status)))
        _or_exit(service.load)
        conf.task_default_queue = service.queue
        conf.worker_concurrency = service.tasks

    def check_pool(instance: Any, **_rest: Any) -> None:
        if instance.pool_cls.__module__ != THREADS:
            logger.critical("[no-start] a worker computes in threads: leave out -P, or give -P threads")
            raise SystemExit(2)

    def begin(**_rest: Any) -> None:
        _or_exit(service.begin)

    def stop_taking(**_rest: Any) -> None:
        service.stop_taking()

    def end(**_rest: Any) -> None:
        service.close()
        for stop in stop_probes:
            stop()

    def received(request: Any, **_rest: Any) -> None:
        service.hold(request.id)

    def configure(**_rest: Any) -> None:
        configure_logs(settings.log_format)

    signals.setup_logging.connect(configure, weak=False)
    signals.celeryd_init.connect(load, weak=False)
    signals.celeryd_after_setup.connect(check_pool, weak=False)
    signals.worker_ready.connect(begin, weak=False)
    signals.worker_shutting_down.connect(stop_taking, weak=False)
    signals.worker_shutdown.connect(end, weak=False)
    signals.task_received.connect(received, weak=False)


def _or_exit(step: Callable[[], None]) -> None:
    """Run a step; end the process if it fails, because Celery only logs errors of a signal's receiver."""
    try:
        step()
    except OsrerankError as error:
        logger.critical("[no-start] the worker cannot start: %s", error)
        raise SystemExit(1) from error
    except Exception as error:
        logger.critical("[no-start] the worker cannot start", exc_info=True)
        raise SystemExit(1) from error
