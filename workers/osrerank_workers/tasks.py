"""The worker's two Celery tasks: score a chunk, or encode its documents."""

from celery import Celery

from osrerank.scoring.remote.messages import ENCODE, SCORE
from osrerank_workers.service import WorkerService


def register(app: Celery, service: WorkerService) -> None:
    """Register both tasks with a Celery application."""

    @app.task(name=SCORE, bind=True, ignore_result=True, typing=False)  # type: ignore[untyped-decorator]
    def score(task: object, *arguments: object) -> None:
        """Score one chunk. Refuse a call whose arguments are not exactly one message."""
        _handle(SCORE, task, arguments)

    @app.task(name=ENCODE, bind=True, ignore_result=True, typing=False)  # type: ignore[untyped-decorator]
    def encode(task: object, *arguments: object) -> None:
        """Encode one chunk's documents. Refuse a call whose arguments are not exactly one message."""
        _handle(ENCODE, task, arguments)

    def _handle(name: str, task: object, arguments: tuple[object, ...]) -> None:
        request = task.request  # type: ignore[attr-defined]
        message = arguments[0] if len(arguments) == 1 else None
        service.handle(str(request.id), message, task=name, headers=request.headers)
