"""The messages between clients and workers: MessagePack, versioned, bounded, checked field by field.

A message is a map with a ``"version"``. Anything else is refused with `PayloadError`. Nothing in a message is executed,
and errors do not quote its texts.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import PayloadError
from osrerank.scoring.card import CHOICES
from osrerank.types import Advice, Scores

VERSION = 5
"""Version of the messages; it is part of the names of queues and keys, so that versions can share a broker."""
MOST_BYTES = 8 << 20
"""Size limit of a message, in bytes; a chunk of the longest texts that a model reads stays below it."""
MOST_VECTOR_BYTES = 4 << 20
"""Size limit of a reply's vectors, in bytes."""
SCORE, ENCODE = "osrerank.score", "osrerank.encode"
"""The names of the two Celery tasks."""
MOST_TUPLES = 1_000
"""The most tuples of a request."""
MOST_TUPLE = 2
"""The most documents of a tuple: a duo model compares two."""
MOST_NAME = 512
"""The most characters of an id or a name."""
FLOAT = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A request to a worker: to score a chunk of a search, or to encode documents.

    Attributes:
        chunk: the chunk's unique id; a chunk that is sent again keeps it.
        reply_queue: the Redis list that the reply goes to.
        identity: identity of the model that must compute it (`Scorer.identity`, `Encoder.identity`).
        sent_s: when it was sent, by the broker's clock.
        deadline_s: when the client stops waiting, by the broker's clock; None for never.
        query: the query's text; empty in a request to encode.
        documents: the documents' texts.
        tuples: indices into ``documents``; none in a request to encode.
        vector_bits: bits of each number in the vectors; 0 in a request to score.
    """

    chunk: str
    reply_queue: str
    identity: str
    sent_s: float
    deadline_s: float | None
    query: str
    documents: Sequence[str]
    tuples: Sequence[tuple[int, ...]]
    vector_bits: int = 0

    @property
    def task(self) -> str:
        """The name of the task that carries it."""
        return ENCODE if self.vector_bits else SCORE

    def encode(self) -> bytes:
        """Return the message.

        Raises:
            PayloadError: it is larger than allowed.
        """
        return _packed({name: getattr(self, name) for name in ChunkRequest.__slots__})

    @classmethod
    def decode(cls, message: object) -> "ChunkRequest":
        """Read a message.

        Raises:
            PayloadError: it is not such a message, or larger than allowed; the error names the field.
        """
        content = _unpacked(message, cls.__slots__)
        documents = _checked(content, "documents", _are_texts)
        tuples = _checked(content, "tuples", lambda value: _are_tuples(value, len(documents)))
        return cls(
            chunk=_checked(content, "chunk", _is_name),
            reply_queue=_checked(content, "reply_queue", _is_name),
            identity=_checked(content, "identity", _is_name),
            sent_s=_checked(content, "sent_s", _is_number),
            deadline_s=_checked(content, "deadline_s", lambda value: value is None or _is_number(value)),
            query=_checked(content, "query", lambda value: isinstance(value, str)),
            documents=documents,
            tuples=[tuple(indices) for indices in tuples],
            vector_bits=_checked(content, "vector_bits", _is_count),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply to a request: scores, vectors, or an error.

    Attributes:
        chunk: the request's id.
        worker: id of the worker.
        identity: identity of the model that computed it.
        scores: the scores in the order of the request's tuples; None if there are none.
        error: why nothing could be computed; empty if something was.
        waited_s: seconds from the client's sending to the start of the computation.
        scoring_s: seconds that the computation took.
        vectors: for each document, its record without a digest (`osrerank.vectors.record`), or why it has none; empty
            bytes for a document that was not reached. None in a reply with scores.
    """

    chunk: str
    worker: str
    identity: str
    scores: Scores | None
    error: str = ""
    waited_s: float = 0.0
    scoring_s: float = 0.0
    vectors: Sequence[bytes | str] | None = None

    def encode(self) -> bytes:
        """Return the message."""
        content = {name: getattr(self, name) for name in Reply.__slots__}
        return _packed({**content, "scores": None if self.scores is None else _plain(self.scores)})

    @classmethod
    def decode(cls, message: object) -> "Reply":
        """Read a message.

        Raises:
            PayloadError: it is not such a message.
        """
        content = _unpacked(message, cls.__slots__)
        scores = content.get("scores")
        return cls(
            chunk=_checked(content, "chunk", _is_name),
            worker=_checked(content, "worker", _is_name),
            identity=_checked(content, "identity", _is_name),
            scores=None if scores is None else _scores(scores),
            error=_checked(content, "error", lambda value: isinstance(value, str)),
            waited_s=_checked(content, "waited_s", _is_number),
            scoring_s=_checked(content, "scoring_s", _is_number),
            vectors=_checked(content, "vectors", _are_vectors),
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The state of a worker, which the worker writes to the registry every half second.

    Attributes:
        worker: its id, ``host:process:random``.
        host: the machine's name.
        queue: the queue that it takes chunks from.
        model: the model's name, for reports.
        identity: the model's (`Scorer.identity`).
        advice: the model's advice.
        taking: whether it takes chunks; False while it shuts down, or cannot take them from the broker.
        held: ids of the chunks that it has taken and not yet answered.
        seconds_per_chunk: moving average of a chunk's time, in seconds; 0 until it has scored one.
        tasks: how many chunks it scores at a time.
        probed_s: seconds since it last scored a pair to check its model.
        sent_s: when it was sent, by the broker's clock.
    """

    worker: str
    host: str
    queue: str
    model: str
    identity: str
    advice: Advice
    taking: bool
    held: tuple[str, ...]
    seconds_per_chunk: float
    tasks: int
    probed_s: float
    sent_s: float

    def encode(self) -> bytes:
        """Return the message."""
        content = {name: getattr(self, name) for name in Heartbeat.__slots__}
        return _packed({**content, "advice": asdict(self.advice)})

    @classmethod
    def decode(cls, message: object) -> "Heartbeat":
        """Read a message.

        Raises:
            PayloadError: it is not such a message.
        """
        content = _unpacked(message, cls.__slots__)
        return cls(
            worker=_checked(content, "worker", _is_name),
            host=_checked(content, "host", _is_name),
            queue=_checked(content, "queue", _is_name),
            model=_checked(content, "model", _is_name),
            identity=_checked(content, "identity", _is_name),
            advice=_advice(content["advice"]),
            seconds_per_chunk=_checked(content, "seconds_per_chunk", _is_number),
            probed_s=_checked(content, "probed_s", _is_number),
            sent_s=_checked(content, "sent_s", _is_number),
            taking=_checked(content, "taking", _is_bool),
            held=tuple(_checked(content, "held", _are_texts)),
            tasks=_checked(content, "tasks", _is_count),
        )


def _advice(content: object) -> Advice:
    """Read a model's advice from a message, and check its values."""
    fits = {
        "first_pass_weight": _is_number,
        "vectors_weight": _is_number,
        "passages": _is_bool,
        "languages": _are_names,
        "kind": CHOICES["kind"].__contains__,
    }
    if not isinstance(content, dict) or set(content) != set(fits):
        raise PayloadError("field advice of a message has a value that cannot be used")
    try:
        advice = {name: _checked(content, name, check) for name, check in fits.items()}
        return Advice(**{**advice, "languages": tuple(advice["languages"])})
    except (TypeError, ValueError) as error:
        raise PayloadError(f"field advice of a message: {error}") from None


def _packed(content: Mapping[str, Any]) -> bytes:
    msgpack = require("msgpack", extra="workers")
    message: bytes = msgpack.packb({"version": VERSION, **content}, unicode_errors="surrogatepass")
    if len(message) > MOST_BYTES:
        raise PayloadError(f"a message of {len(message):,} bytes is larger than workers take ({MOST_BYTES:,})")
    return message


def _unpacked(message: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a message that has exactly the named ones, without its version."""
    if not isinstance(message, bytes):
        raise PayloadError(f"a message is bytes, not {type(message).__name__}")
    if len(message) > MOST_BYTES:
        raise PayloadError(f"a message of {len(message):,} bytes is larger than allowed ({MOST_BYTES:,})")
    msgpack = require("msgpack", extra="workers")
    try:
        content = msgpack.unpackb(message, unicode_errors="surrogatepass", use_list=True)
    except Exception as error:  # noqa: BLE001 - the library's errors have no common base
        raise PayloadError(f"a message is not MessagePack ({type(error).__name__})") from None
    if not isinstance(content, dict) or "version" not in content:
        raise PayloadError("a message is a map with a version")
    version = content.pop("version")
    if version != VERSION:
        shown = version if isinstance(version, int) else type(version).__name__
        raise PayloadError(f"a message has version {shown}, this osrerank reads {VERSION}: upgrade the older side")
    if set(content) != set(names):
        raise PayloadError(f"a message lacks fields or has others than {', '.join(names)}")
    return content


def _checked(content: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    value = content[name]
    if not fits(value):
        raise PayloadError(f"field {name} of a message has a value that cannot be used")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_NAME


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_name, value))


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_vectors(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(vector, bytes | str) for vector in value))


def _are_tuples(value: object, documents: int) -> bool:
    """Return whether a value is a list of tuples of the same length, whose indices are below ``documents``."""
    if not isinstance(value, list) or len(value) > MOST_TUPLES:
        return False
    lengths = {len(indices) if isinstance(indices, list) else 0 for indices in value}
    if len(lengths) > 1 or not lengths <= set(range(1, MOST_TUPLE + 1)):
        return False
    return all(_is_count(index) and index < documents for indices in value for index in indices)


def _plain(scores: Scores) -> dict[str, Any]:
    odds, cuts = scores.odds, scores.cuts
    return {
        **scores.counts(),
        "reached": scores.reached,
        "values": scores.values.astype("<f4").tobytes(),
        "failures": list(scores.failures.items()),
        "odds": None if odds is None else odds.astype("<f4").tobytes(),
        "cuts": None if cuts is None else cuts.tobytes(),
    }


_COUNTS = ("inferences", "cached", "encoded", "known", "truncated", "reached")
_SCORES = {*_COUNTS, "query_truncated", "values", "failures", "odds", "cuts"}


def _scores(content: object) -> Scores:
    """Read scores from a message, and check that their sizes agree."""
    if not isinstance(content, dict) or set(content) != _SCORES:
        raise PayloadError("field scores of a message has a value that cannot be used")
    raw = _checked(content, "values", lambda value: isinstance(value, bytes) and len(value) % FLOAT.size == 0)
    size = len(raw) // FLOAT.size
    odds = _checked(
        content, "odds", lambda value: value is None or (isinstance(value, bytes) and len(value) == len(raw))
    )
    cuts = _checked(content, "cuts", lambda value: value is None or (isinstance(value, bytes) and len(value) == size))
    failures = _checked(content, "failures", lambda value: _are_failures(value, size))
    counts = {name: _checked(content, name, _is_count) for name in _COUNTS}
    if counts["reached"] > size:
        raise PayloadError("field reached of a message has a value that cannot be used")
    return Scores(
        _floats(raw),
        dict(failures),
        **counts,
        query_truncated=_checked(content, "query_truncated", _is_bool),
        odds=None if odds is None else _floats(odds),
        cuts=None if cuts is None else np.frombuffer(cuts, dtype=np.uint8),
    )


def _floats(content: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(content, dtype="<f4").astype(np.float32)


def _are_failures(value: object, size: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list)
        and len(entry) == 2
        and _is_count(entry[0])
        and entry[0] < size
        and isinstance(entry[1], str)
        for entry in value
    )
