"""What ``backend="workers"`` means, as `osrerank.scoring.registry` asks for it."""

from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.settings import Settings
from osrerank.types import Scorer


def load(settings: Settings, model: str) -> Scorer:
    """Return the scorer of a model on workers.

    Where vectors are on, and the model is here and has some, what they know is scored here.
    """
    workers = RemoteScorer(settings.broker(), model, queue_chunks=settings.queue_chunks, signer=Signer.of(settings))
    if settings.vectors == "off" and not settings.vectors_index:
        return workers
    from osrerank.scoring.remote.bi_encoder import with_vectors  # noqa: PLC0415 - ONNX Runtime

    return with_vectors(workers, settings, model)
