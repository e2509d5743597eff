"""What a record is found by: the text before it is tokenised, and everything that its states depend on.

A changed text has another key, so that a state never outlives its text; a known text is neither tokenised nor encoded.
A model's query side (join graph, calibration, weights) is no part of it: a new one leaves the records of old readable.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import tokenizer_file
from osrerank.scoring.states.record import Profile
from osrerank.types import LongText

KEY_BYTES = 16
LONG = b"by passages"


def side_of(directory: Path, card: ModelCard, profile: Profile, encoder: str) -> bytes:
    """Return the identity of a model's document side, 16 bytes.

    Args:
        directory: the model's.
        card: the model's.
        profile: how much is kept.
        encoder: file of the graph that encodes texts, relative to the directory.
    """
    joining = card.joining
    parts = (
        *(_content(file) for file in (directory / encoder, tokenizer_file(directory))),
        str(joining.layers),
        joining.document_prefix,
        str(card.max_tokens),
        f"{profile.factor}/{profile.bits}",
    )
    return _hash("\0".join(parts).encode())


def record_keys(side: bytes, texts: Iterable[str | LongText]) -> list[bytes]:
    """Return the keys of texts, 16 bytes each; that of a long one depends on how it is cut, too."""
    return [
        _hash(side + LONG + text.content) if isinstance(text, LongText) else _hash(side + _hash(_bytes(text)))
        for text in texts
    ]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
