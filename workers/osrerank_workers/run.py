"""Run a worker in this process."""

import logging
import time

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.scoring.remote.broker import connect, no_broker
from osrerank.settings import Settings
from osrerank.types import Scorer
from osrerank_workers.app import create_app

PATIENCE_S = 60.0
"""How long a worker waits for a Redis that starts at the same time."""
PAUSE_S = 1.0

logger = logging.getLogger(__name__)


def run_worker(settings: Settings, scorer: Scorer | None = None) -> int:
    """Score chunks until a signal says to stop; return the exit code.

    Args:
        settings: broker, model, tasks at a time.
        scorer: scores instead of the model that the settings name.

    Raises:
        WorkerError: the broker does not answer.
    """
    logging.captureWarnings(capture=True)  # so that they have the form of the other lines
    worker = create_app(settings, scorer).Worker(
        quiet=True, without_mingle=True, without_gossip=True, without_heartbeat=True
    )
    await_broker(settings.broker(), PATIENCE_S)
    worker.start()
    return int(worker.exitcode or 0)


def await_broker(url: str, patience_s: float) -> None:
    """Return once the broker answers.

    Args:
        url: the broker's.
        patience_s: how long to retry, in seconds.

    Raises:
        WorkerError: the broker did not answer in that time.
    """
    ends_s = time.monotonic() + patience_s
    warned = False
    while True:
        try:
            with connect(url) as redis:
                redis.ping()
                return
        except RedisError as error:
            if time.monotonic() >= ends_s:
                raise WorkerError(no_broker(error)) from error
            if not warned:
                logger.warning("the broker does not answer (%s), waiting for it", type(error).__name__)
            warned = True
        time.sleep(PAUSE_S)
