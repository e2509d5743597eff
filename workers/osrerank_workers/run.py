"""Run a worker in this process."""

import logging

from celery.apps import worker as celery_worker
from redis import RedisError

from osrerank.scoring.remote.broker import check_mode, connect
from osrerank.settings import Settings
from osrerank.types import Scorer
from osrerank_workers.app import create_app
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.consumer import wait


class Worker(celery_worker.Worker):  # type: ignore[misc]
    """A Celery worker that ends on SIGINT as on SIGTERM: it finishes its chunks and exits with 0.

    Celery's own exits with 1 after SIGINT, which looks like a failure of the model. A second SIGINT still drops the
    chunks.
    """

    def install_platform_tweaks(self, worker: celery_worker.Worker) -> None:
        """Install Celery's signal handlers, but exit with 0 after SIGINT."""
        super().install_platform_tweaks(worker)
        celery_worker._shutdown_handler(  # noqa: SLF001 - Celery has no option for the exit code
            worker, sig="SIGINT", callback=celery_worker.on_SIGINT
        )


def run_worker(settings: Settings, scorer: Scorer | None = None) -> int:
    """Score chunks until a signal says to stop; return the exit code.

    Args:
        settings: the settings of the worker, such as its broker and its model.
        scorer: the scorer to use instead of the model that the settings name.

    Raises:
        WorkerError: the broker is a Redis Cluster or a Sentinel.
    """
    logging.captureWarnings(capture=True)  # so that warnings are formatted like all other lines
    app = create_app(settings, scorer)
    worker = Worker(app=app, quiet=True, without_mingle=True, without_gossip=True, without_heartbeat=True)
    await_broker(settings.broker(), worker.consumer.broker)
    worker.start()
    return int(worker.exitcode or 0)


def await_broker(url: str, broker: BrokerHealth) -> None:
    """Return once the broker answers, however long that takes.

    Args:
        url: the broker's URL.
        broker: the health of the connection, which records each attempt.

    Raises:
        WorkerError: the broker is a Redis Cluster or a Sentinel.
    """
    with connect(url) as redis:
        while True:
            try:
                redis.ping()
                check_mode(redis)
            except RedisError as error:
                wait(broker.failed(error))
            else:
                broker.answered()
                return
