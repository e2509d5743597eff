"""Run a worker in this process until it is stopped: ``osrerank worker``."""

import faulthandler
import logging
import signal

from celery.apps import worker as celery_worker
from redis import RedisError

from osrerank._signals import END_SIGNALS
from osrerank.scoring.remote.broker import check_redis_mode, connect
from osrerank.settings import Settings
from osrerank.types import Scorer
from osrerank_workers.app import create_app
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.consumer import sleep_unless_stopped


class Worker(celery_worker.Worker):  # type: ignore[misc]
    """A Celery worker that treats SIGINT and SIGHUP like SIGTERM: it finishes its chunks and exits with 0.

    Celery's worker exits with 1 after SIGINT, which would look like a failure. A second SIGINT still drops the chunks.
    After SIGHUP, it would start again and print its arguments, which can contain the broker's password, and after
    SIGUSR1 it would print the variables of all threads, which can contain texts.
    """

    def install_platform_tweaks(self, worker: celery_worker.Worker) -> None:
        ignored = [number for number in END_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]  # as with nohup
        super().install_platform_tweaks(worker)
        # Celery installs its handlers in this way. It has no option for the exit code.
        install = celery_worker._shutdown_handler  # noqa: SLF001
        install(worker, sig="SIGINT", callback=celery_worker.on_SIGINT)
        for name in ("SIGTERM", "SIGHUP"):
            install(worker, sig=name, verbose=False)  # what Celery prints is no line of the log
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(faulthandler, "register"):  # not on Windows
            faulthandler.register(signal.SIGUSR1)


def run_worker(settings: Settings, scorer: Scorer | None = None) -> int:
    """Score chunks until SIGTERM or SIGINT arrives, and return the exit code.

    Args:
        settings: the settings of the worker, such as its broker and its model.
        scorer: a scorer to use instead of the settings' model.

    Raises:
        WorkerError: the broker is a Redis Cluster or a Sentinel.
    """
    logging.captureWarnings(capture=True)  # so that Python's warnings are formatted like the log's other lines
    app = create_app(settings, scorer)
    worker = Worker(app=app, quiet=True, without_mingle=True, without_gossip=True, without_heartbeat=True)
    await_broker(settings.broker(), worker.consumer.broker)
    worker.start()
    return int(worker.exitcode or 0)


def await_broker(url: str, broker: BrokerHealth) -> None:
    """Wait until the broker responds, however long it takes.

    Args:
        url: the broker's URL.
        broker: the health of the connection, which each attempt updates.

    Raises:
        WorkerError: the broker is a Redis Cluster or a Sentinel.
    """
    with connect(url) as redis:
        while True:
            try:
                redis.ping()
                check_redis_mode(redis)
            except RedisError as error:
                pause_s = broker.record_failure(error)
                sleep_unless_stopped(pause_s)
            else:
                broker.record_success()
                return
