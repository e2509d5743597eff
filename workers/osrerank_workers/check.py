"""Check that a worker on this host is ready: ``osrerank worker --check``."""

import socket

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.scoring.remote.broker import connect, explain_broker_failure
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.settings import Settings
from osrerank_workers.service import HANGS_AFTER_S


def check_worker(settings: Settings) -> str:
    """Return a sentence that describes a ready worker of the settings' model on this host.

    A worker is ready if its last heartbeat is at most two seconds old, it accepts chunks, and its model passed a check
    within the last minute.

    Raises:
        WorkerError: no worker is ready, or Redis does not respond.
    """
    redis = connect(settings.broker())
    try:
        registry = WorkerRegistry(redis, settings.model, Signer.from_settings(settings))
        heartbeats = registry.heartbeats()
    except RedisError as error:
        raise WorkerError(explain_broker_failure(error)) from error
    finally:
        redis.close()
    local_heartbeats = [heartbeat for heartbeat in heartbeats if heartbeat.host == socket.gethostname()]
    for heartbeat in local_heartbeats:
        since_check_s = heartbeat.probed_s
        does_hang = since_check_s >= HANGS_AFTER_S
        if heartbeat.taking and not does_hang:
            return f"worker {heartbeat.worker} is ready: {heartbeat.model}, checked {since_check_s:.0f} s ago"
    if not local_heartbeats and registry.refusal:
        raise WorkerError(f"no worker of {settings.model} can be trusted: {registry.refusal}")
    message = f"no worker of {settings.model} is ready on {socket.gethostname()}"
    if local_heartbeats:
        states = []
        for heartbeat in local_heartbeats:
            problem = "hangs" if heartbeat.taking else "accepts no chunks"
            states.append(f"{heartbeat.worker} {problem}")
        message += f": {'; '.join(states)}"
    raise WorkerError(message)
