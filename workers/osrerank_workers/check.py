"""Whether a worker on this host is ready."""

import socket

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.scoring.remote.broker import connect, no_broker
from osrerank.scoring.remote.worker_registry import Roster
from osrerank.settings import Settings

STALE_S = 60.0
"""A worker that has scored no pair for so long hangs."""


def check_worker(settings: Settings) -> str:
    """Return what is so of the ready worker, in a sentence.

    Ready is a worker of the settings' model on this host that has renewed its card within two seconds, takes chunks,
    and has scored a pair within the last minute.

    Raises:
        WorkerError: there is none, or Redis cannot be asked.
    """
    redis = connect(settings.broker())
    try:
        cards = Roster(redis, settings.model).cards()
    except RedisError as error:
        raise WorkerError(no_broker(error)) from error
    finally:
        redis.close()
    here = [card for card in cards if card.host == socket.gethostname()]
    for card in here:
        if card.taking and card.probed_s < STALE_S:
            return f"worker {card.worker} is ready: {card.model}, last tried {card.probed_s:.0f} s ago"
    states = "; ".join(f"{card.worker} {'hangs' if card.taking else 'is stopping'}" for card in here)
    raise WorkerError(
        f"no worker of {settings.model} is ready on {socket.gethostname()}{f': {states}' if states else ''}"
    )
