"""The worker's only task: score a chunk and put the scores into its client's reply queue."""

from celery import Celery

from osrerank.scoring.remote.broker import TASK
from osrerank_workers.service import Service


def register(app: Celery, service: Service) -> None:
    """Add the task to an application."""

    @app.task(name=TASK, bind=True, ignore_result=True, typing=False)  # type: ignore[untyped-decorator]
    def score(task: object, *arguments: object) -> None:
        """Score one chunk; refuse anything but exactly one message."""
        request = task.request  # type: ignore[attr-defined]
        message = arguments[0] if len(arguments) == 1 else None
        service.handle(str(request.id), message, headers=request.headers)
