"""The messages between clients and workers: MessagePack, versioned, bounded, checked field by field.

A message is a map with ``"version"``. Anything else is refused with `PayloadError`. Nothing in a message is executed,
and errors quote none of its texts.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from osrerank._optional import require
from osrerank.errors import PayloadError
from osrerank.types import Advice, Scores

VERSION = 4
"""Part of the names of queues and keys, so that versions live side by side on one broker."""
MOST_BYTES = 8 << 20
"""Size limit of a message; a chunk of the longest texts that a model reads stays below it."""
MOST_RECORD_BYTES = 4 << 20
"""Of the records that a reply brings."""
MOST_TUPLES = 1_000
MOST_TUPLE = 2
"""Documents of a tuple: a duo model compares two."""
MOST_NAME = 512
"""Characters of an id or a name."""
FLOAT = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class Request:
    """A chunk of a search that a worker is asked to score.

    Attributes:
        chunk: its unique id; a chunk that is sent again keeps it.
        reply_queue: the Redis list that the reply goes to.
        identity: identity of the model that must score it (`Scorer.identity`).
        sent_s: when it was sent, by the broker's clock.
        deadline_s: when the client stops waiting, by the broker's clock; None for never.
        query: the query's text.
        documents: the documents' texts.
        tuples: indices into ``documents``.
        wants_records: whether the reply is to bring the records of the document vectors.
    """

    chunk: str
    reply_queue: str
    identity: str
    sent_s: float
    deadline_s: float | None
    query: str
    documents: Sequence[str]
    tuples: Sequence[tuple[int, ...]]
    wants_records: bool = False

    def encode(self) -> bytes:
        """Return the message; workers of before, which know no records, understand one that wants none.

        Raises:
            PayloadError: it is larger than workers take.
        """
        content = {name: getattr(self, name) for name in Request.__slots__}
        return _packed(_without(content, "wants_records"))

    @classmethod
    def decode(cls, message: object) -> "Request":
        """Read a message.

        Raises:
            PayloadError: it is not such a message, or larger than allowed; the error names the field.
        """
        content = _unpacked(message, cls.__slots__, wants_records=False)
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
            wants_records=_checked(content, "wants_records", _is_bool),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer to one request.

    Attributes:
        chunk: the request's id.
        worker: id of the worker.
        identity: identity of the model that scored.
        scores: scores in the order of the request's tuples; None when nothing could be scored.
        error: why nothing could be scored; else empty.
        waited_s: seconds between the client's sending and the start of scoring.
        scoring_s: seconds from the start of scoring to its end.
        records: of document vectors, by key, where the request wants them.
    """

    chunk: str
    worker: str
    identity: str
    scores: Scores | None
    error: str = ""
    waited_s: float = 0.0
    scoring_s: float = 0.0
    records: Mapping[bytes, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the message."""
        content = {name: getattr(self, name) for name in Reply.__slots__}
        content |= {"scores": None if self.scores is None else _plain(self.scores), "records": [*self.records.items()]}
        return _packed(_without(content, "records"))

    @classmethod
    def decode(cls, message: object) -> "Reply":
        """Read a message.

        Raises:
            PayloadError: it is not such a message.
        """
        content = _unpacked(message, cls.__slots__, records=[])
        scores = content.get("scores")
        return cls(
            chunk=_checked(content, "chunk", _is_name),
            worker=_checked(content, "worker", _is_name),
            identity=_checked(content, "identity", _is_name),
            scores=None if scores is None else _scores(scores),
            error=_checked(content, "error", lambda value: isinstance(value, str)),
            waited_s=_checked(content, "waited_s", _is_number),
            scoring_s=_checked(content, "scoring_s", _is_number),
            records=dict(_checked(content, "records", _are_records)),
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The state of a worker, which it writes into the worker registry every half second.

    Attributes:
        worker: its id, ``host:process:random``.
        host: the machine's name.
        queue: the queue that it takes chunks from.
        model: the model's name, for reports.
        identity: the model's (`Scorer.identity`).
        advice: the model's.
        taking: whether it takes chunks; False while it stops.
        held: ids of the chunks that it has taken and not answered.
        seconds_per_chunk: moving average of a chunk's cost; 0 until it has scored one.
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
        return _packed({**content, "advice": _without(asdict(self.advice), "languages")})

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
    """Return a model's advice whose numbers are in range."""
    fits = dict.fromkeys(Advice.__slots__, _is_number) | {"passages": _is_bool, "languages": _are_names}
    if not isinstance(content, dict) or {"languages", *content} != set(fits):
        raise PayloadError("field advice of a message has a value that cannot be used")
    content = {"languages": [], **content}
    try:
        advice = {name: _checked(content, name, check) for name, check in fits.items()}
        return Advice(**{**advice, "languages": tuple(advice["languages"])})
    except ValueError as error:
        raise PayloadError(f"field advice of a message: {error}") from None


def _packed(content: Mapping[str, Any]) -> bytes:
    msgpack = require("msgpack", extra="workers")
    message: bytes = msgpack.packb({"version": VERSION, **content}, unicode_errors="surrogatepass")
    if len(message) > MOST_BYTES:
        raise PayloadError(f"a message of {len(message):,} bytes is larger than workers take ({MOST_BYTES:,})")
    return message


def _without(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a message's fields, without one that says nothing."""
    return {other: value for other, value in content.items() if other != name or value}


def _unpacked(message: object, names: Sequence[str], **optional: Any) -> dict[str, Any]:
    """Return a message's fields, all of them and no others; optional ones have a value where they are absent."""
    if not isinstance(message, bytes):
        raise PayloadError(f"a message is bytes, not {type(message).__name__}")
    if len(message) > MOST_BYTES:
        raise PayloadError(f"a message of {len(message):,} bytes is larger than allowed ({MOST_BYTES:,})")
    msgpack = require("msgpack", extra="workers")
    try:
        content = msgpack.unpackb(message, unicode_errors="surrogatepass", use_list=True)
    except Exception as error:  # noqa: BLE001 - the library's errors have no common base
        raise PayloadError(f"a message is no MessagePack ({type(error).__name__})") from None
    if not isinstance(content, dict) or "version" not in content:
        raise PayloadError("a message is a map with a version")
    version = content.pop("version")
    if version != VERSION:
        shown = version if isinstance(version, int) else type(version).__name__
        raise PayloadError(f"a message has version {shown}, this osrerank reads {VERSION}: upgrade the older side")
    content = {**optional, **content}
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


def _are_records(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, bytes) for part in pair) for pair in value
    )


def _are_tuples(value: object, documents: int) -> bool:
    """Whether they are tuples of one length, with documents that are there."""
    if not isinstance(value, list) or len(value) > MOST_TUPLES:
        return False
    lengths = {len(indices) if isinstance(indices, list) else 0 for indices in value}
    if len(lengths) > 1 or not lengths <= set(range(1, MOST_TUPLE + 1)):
        return False
    return all(_is_count(index) and index < documents for indices in value for index in indices)


def _plain(scores: Scores) -> dict[str, Any]:
    content = {name: getattr(scores, name) for name in _PLAIN}
    content |= {name: count for name in _OPTIONAL if (count := getattr(scores, name))}
    content |= {} if scores.odds is None else {ODDS: scores.odds.astype("<f4").tobytes()}
    content |= {CUTS: scores.cuts.tobytes()} if scores.cuts is not None and scores.cuts.any() else {}
    return {**content, "values": scores.values.astype("<f4").tobytes(), "failures": list(scores.failures.items())}


_PLAIN = ("reached", "inferences", "cached", "truncated", "query_truncated")
_OPTIONAL = ("encoded", "known")
"""Of models with vectors alone, so that clients and workers of before understand all others."""
ODDS = "odds"
"""Likewise, of models with a next-sentence head alone."""
CUTS = "cuts"
"""Where something was cut; clients of before refuse such a reply."""


def _scores(content: object) -> Scores:
    """Return scores whose numbers agree with each other."""
    if not isinstance(content, dict) or set(content) - {*_OPTIONAL, ODDS, CUTS} != {*_PLAIN, "values", "failures"}:
        raise PayloadError("field scores of a message has a value that cannot be used")
    raw = _checked(content, "values", lambda value: isinstance(value, bytes) and len(value) % FLOAT.size == 0)
    values = np.frombuffer(raw, dtype="<f4").astype(np.float32)
    odds = None
    if ODDS in content:
        same = _checked(content, ODDS, lambda value: isinstance(value, bytes) and len(value) == len(raw))
        odds = np.frombuffer(same, dtype="<f4").astype(np.float32)
    cuts = None
    if CUTS in content:
        bits = _checked(content, CUTS, lambda value: isinstance(value, bytes) and len(value) == len(values))
        cuts = np.frombuffer(bits, dtype=np.uint8)
    failures = _checked(content, "failures", lambda value: _are_failures(value, len(values)))
    named = (*_PLAIN[:-1], *(name for name in _OPTIONAL if name in content))
    counts = {name: _checked(content, name, _is_count) for name in named}
    if counts["reached"] > len(values):
        raise PayloadError("field reached of a message has a value that cannot be used")
    query_truncated = _checked(content, "query_truncated", _is_bool)
    return Scores(values, dict(failures), **counts, query_truncated=query_truncated, odds=odds, cuts=cuts)


def _are_failures(value: object, size: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list)
        and len(entry) == 2
        and _is_count(entry[0])
        and entry[0] < size
        and isinstance(entry[1], str)
        for entry in value
    )
