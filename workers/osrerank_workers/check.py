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

    A worker is ready if its last heartbeat is at most two seconds old and says that the worker accepts chunks (parts of
    requests), and that it has scored a pair as a check within the last minute.

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
    problems = []
    for heartbeat in local_heartbeats:
        accepts_chunks, since_check_s = heartbeat.taking, heartbeat.probed_s
        if not accepts_chunks:
            problems.append(f"{heartbeat.worker} accepts no chunks")
        elif since_check_s >= HANGS_AFTER_S:
            problems.append(f"{heartbeat.worker} hangs")
        else:
            return f"worker {heartbeat.worker} is ready: {heartbeat.model}, checked {since_check_s:.0f} s ago"
    if not local_heartbeats and registry.refusal:
        raise WorkerError(f"no worker of {settings.model} can be trusted: {registry.refusal}")
    message = f"no worker of {settings.model} is ready on {socket.gethostname()}"
    if problems:
        message += f": {'; '.join(problems)}"
    raise WorkerError(message)
