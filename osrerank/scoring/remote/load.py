"""Load a model for ``backend="workers"``; `osrerank.scoring.registry` calls `load`."""

import logging
from pathlib import Path

from osrerank.errors import ModelLoadError
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate_offline
from osrerank.scoring.registry import build_model, load_backend, load_query_model
from osrerank.scoring.remote.encoder import RemoteEncoder
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.settings import Settings
from osrerank.types import Encoder, Scorer
from osrerank.vectors.record import PROFILES

logger = logging.getLogger(__name__)


def load(settings: Settings, model: str) -> Scorer | Encoder:
    """Return a model that runs on workers: an encoder if its ONNX graph is also on this machine, else a scorer.

    An encoder needs the graph here, because queries are encoded in this process.
    """
    scorer = RemoteScorer(
        settings.broker(), model, queue_chunks=settings.queue_chunks, signer=Signer.from_settings(settings)
    )
    try:
        encoder = _load_local_encoder(model, settings)
    except ModelLoadError as error:
        logger.warning("[vectors-unused] document vectors are not used, and workers score every text: %s", error)
        return scorer
    return scorer if encoder is None else RemoteEncoder(encoder, scorer, PROFILES[settings.vectors_profile])


def _load_local_encoder(model: str, settings: Settings) -> BiEncoder | None:
    """Load the model if it is an encoder whose ONNX graph is on this machine; return None otherwise.

    Raises:
        ModelLoadError: the model's files cannot be read.
    """
    directory = locate_offline(model)
    if directory is None:
        return None
    is_folder = Path(model).expanduser().is_dir()  # a folder has no published name
    card = read_card(directory, name="" if is_folder else model)
    if not card.is_encoder or not card.onnx:
        return None
    network = load_backend(directory, card, backend="onnx", threads=settings.threads)
    encoder = build_model(directory, card, network)
    assert isinstance(encoder, BiEncoder)
    load_query_model(encoder, directory, backend="onnx", threads=settings.threads)
    return encoder
