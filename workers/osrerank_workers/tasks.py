"""The worker's two Celery tasks: score a chunk, or encode its documents."""

from typing import Any

from celery import Celery

from osrerank.scoring.remote.messages import ENCODE, SCORE
from osrerank_workers.service import WorkerService


def register(app: Celery, service: WorkerService) -> None:
    """Register both tasks with a Celery application."""

    def handle(task: Any, *arguments: object) -> None:
        """Handle one chunk. Refuse a call whose arguments are not exactly one message."""
        message = arguments[0] if len(arguments) == 1 else None
        service.handle(str(task.request.id), message, task=task.name, headers=task.request.headers)

    for name in (SCORE, ENCODE):
        app.task(handle, name=name, bind=True, ignore_result=True, typing=False)
