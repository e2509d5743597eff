"""Run a worker in this process."""

from osrerank.settings import Settings
from osrerank.types import Scorer
from workers.app import create_app


def run_worker(settings: Settings, scorer: Scorer | None = None) -> int:
    """Score chunks until a signal says to stop; return the exit code.

    Args:
        settings: broker, model, tasks at a time.
        scorer: scores instead of the model that the settings name.
    """
    worker = create_app(settings, scorer).Worker(
        quiet=True, without_mingle=True, without_gossip=True, without_heartbeat=True
    )
    worker.start()
    return int(worker.exitcode or 0)
