"""Encode and decode the requests, replies and heartbeats that clients and workers exchange.

A message is a MessagePack map with a version and validated fields. Any other message raises `PayloadError`. Nothing in
a message is executed, and errors do not quote its texts.
"""

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    StrictBool,
    StrictBytes,
    TypeAdapter,
    ValidationError,
)

from osrerank._optional import require
from osrerank.errors import PayloadError
from osrerank.scoring.card import Kind
from osrerank.types import Advice, Scores

VERSION = 6
"""Version of the message format. The names of queues and keys contain it, so that versions can share a broker."""
MAX_MESSAGE_BYTES = 8 << 20
"""Maximum size of a message, in bytes. `MAX_CHUNK_CHARACTERS` keeps requests below it."""
MAX_VECTOR_BYTES = 4 << 20
"""Maximum size of a reply's vectors, in bytes."""
SAME_VERSION_FIX = "use the same version of osrerank on both sides"
SCORE, ENCODE = "osrerank.score", "osrerank.encode"
"""Names of the two Celery tasks: score a chunk, and encode its documents."""
MAX_REQUEST_TUPLES = 1_000
"""Maximum number of tuples in a request. A tuple has the documents that are scored together."""
MAX_TUPLE_DOCUMENTS = 2
"""Maximum number of documents in a tuple: a duo model compares two."""
MAX_NAME_CHARACTERS = 512
"""Maximum length of an id or a name."""
FLOAT = struct.Struct("<f")
"""The format of each number in the fields ``values`` and ``odds``."""

Content = TypeVar("Content")
Name = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_NAME_CHARACTERS)]
Text = InstanceOf[str]
"""A text that can contain an unpaired surrogate, which pydantic refuses in a ``str``."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Tuple = Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_TUPLE_DOCUMENTS, fail_fast=True)]


class _Advice(BaseModel):
    """The map that an `Advice` becomes in a message."""

    first_pass_weight: Number
    passages: StrictBool
    languages: Annotated[tuple[Name, ...], Field(fail_fast=True)]
    kind: Kind
    vectors_weight: Number


class _Scores(BaseModel):
    """The map that `Scores` become in a message, with arrays as bytes. `Scores` describes the fields."""

    inferences: Count
    cached: Count
    encoded: Count
    known: Count
    truncated: Count
    reached: Count
    query_truncated: StrictBool
    values: StrictBytes
    failures: Annotated[list[tuple[Count, Text]], Field(fail_fast=True)]
    odds: StrictBytes | None
    cuts: StrictBytes | None


def _parse_advice(content: object) -> Advice:
    return Advice(**_validate(_Advice, content))


def _parse_scores(content: object) -> Scores | None:
    """Return the scores in a message, or None if it contains none. Raises `ValueError` if their sizes differ."""
    if content is None:
        return None
    scores = _validate(_Scores, content)
    values, odds, cuts, failures = (scores.pop(name) for name in ("values", "odds", "cuts", "failures"))
    size, remainder = divmod(len(values), FLOAT.size)
    is_consistent = (
        remainder == 0
        and (odds is None or len(odds) == len(values))
        and (cuts is None or len(cuts) == size)
        and scores["reached"] <= size
        and all(index < size for index, _ in failures)
    )
    if not is_consistent:
        raise ValueError("the fields of the scores have different sizes")
    return Scores(
        _decode_floats(values),
        dict(failures),
        **scores,
        odds=None if odds is None else _decode_floats(odds),
        cuts=None if cuts is None else np.frombuffer(cuts, dtype=np.uint8),
    )


def _validate(schema: type[BaseModel], content: object) -> dict[str, Any]:
    """Return the validated fields of a nested map, which must contain exactly the fields of the schema."""
    if not isinstance(content, dict) or content.keys() != schema.model_fields.keys():
        fields = ", ".join(schema.model_fields)
        raise ValueError(f"a part of the message does not have the fields {fields}; {SAME_VERSION_FIX}")
    return dict(schema.model_validate(content))


class _Message:
    """The base class of messages: dataclasses whose fields are the fields of the MessagePack map."""

    __slots__: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the message as bytes. Raises `PayloadError` if it is too large."""
        return _pack({name: getattr(self, name) for name in self.__slots__})  # the dataclass's fields

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Decode a message that `Signer.verify` has accepted. Raises `PayloadError` if it is not one of this kind."""
        return _decode(cls, message)


@dataclass(frozen=True, slots=True)
class ChunkRequest(_Message):
    """A request to a worker to score a chunk of a search, or to encode documents.

    Attributes:
        chunk: the chunk's unique id, which stays the same if the chunk is sent again.
        reply_queue: the Redis list that the reply goes to.
        identity: identity of the model to use (`Scorer.identity`, `Encoder.identity`).
        sent_s: the time of sending, in seconds by the broker's clock.
        deadline_s: the time at which the worker must stop, in seconds by the broker's clock, or None if it may go on.
        query: the query. Empty in a request to encode.
        documents: the documents' texts.
        tuples: indices into ``documents``. Empty in a request to encode.
        vector_bits: precision of the vectors, in bits per number. 0 in a request to score.
    """

    chunk: Name
    reply_queue: Name
    identity: Name
    sent_s: Number
    deadline_s: Number | None
    query: Text
    documents: Texts
    tuples: Annotated[list[Tuple], Field(max_length=MAX_REQUEST_TUPLES, fail_fast=True)]
    vector_bits: Count = 0

    @property
    def task(self) -> str:
        """The name of the Celery task that carries the request."""
        return ENCODE if self.vector_bits else SCORE

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Decode a message. Raises `PayloadError`, which names the field, if it is not a request."""
        request = _decode(cls, message)
        have_equal_sizes = len({len(indices) for indices in request.tuples}) <= 1
        indices_exist = all(index < len(request.documents) for indices in request.tuples for index in indices)
        if not (have_equal_sizes and indices_exist):
            raise _field_error("tuples")
        return request


@dataclass(frozen=True, slots=True)
class Reply(_Message):
    """A worker's reply to a request: scores, vectors, or an error.

    Attributes:
        chunk: the id of the request's chunk.
        worker: the worker's id.
        identity: identity of the model that the worker used.
        scores: the scores in the order of the request's tuples. None in a reply with vectors or an error.
        error: reason why the request failed. Empty in a reply with scores or vectors.
        vectors: for each document, its record without a digest (`osrerank.vectors.record`), an error as a `str`, or
            empty bytes if the deadline passed first. None in a reply with scores or an error.
    """

    chunk: Name
    worker: Name
    identity: Name
    scores: Annotated[InstanceOf[Scores] | None, BeforeValidator(_parse_scores)]
    error: Text = ""
    vectors: Annotated[list[InstanceOf[bytes] | Text], Field(fail_fast=True)] | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat(_Message):
    """A message that a worker writes to the worker registry every half second, with its state.

    Attributes:
        worker: the worker's id, ``host:process:random``.
        host: the name of the worker's machine.
        queue: the queue that the worker takes chunks from.
        model: the model's name, for reports.
        identity: the model's identity (`Scorer.identity`).
        advice: the model's advice.
        taking: whether the worker accepts chunks. False while it shuts down, or cannot reach the broker.
        held: ids of the chunks that the worker has taken and not yet replied to.
        seconds_per_chunk: moving average of the time for a chunk, in seconds, or 0 before the first chunk.
        tasks: number of chunks that the worker scores at a time.
        probed_s: seconds since the worker last tested its model by scoring a pair.
        sent_s: the time of sending, in seconds by the broker's clock.
    """

    worker: Name
    host: Name
    queue: Name
    model: Name
    identity: Name
    advice: Annotated[InstanceOf[Advice], BeforeValidator(_parse_advice)]
    taking: StrictBool
    held: Annotated[tuple[Text, ...], Field(fail_fast=True)]
    seconds_per_chunk: Number
    tasks: Count
    probed_s: Number
    sent_s: Number


def _pack(content: Mapping[str, Any]) -> bytes:
    """Return a map with the version as MessagePack. Raises `PayloadError` if it is too large."""
    msgpack = require("msgpack", extra="workers")
    message: bytes = msgpack.packb({"version": VERSION, **content}, unicode_errors="surrogatepass", default=_to_map)
    if len(message) > MAX_MESSAGE_BYTES:
        raise PayloadError(f"a message of {len(message):,} bytes is too large; the maximum is {MAX_MESSAGE_BYTES:,}")
    return message


def _decode(kind: type[Content], message: bytes) -> Content:
    """Return the message in bytes, which must contain exactly the fields of its kind, with valid values."""
    content = _unpack(message)
    names = kind.__slots__  # type: ignore[attr-defined]
    if set(content) != set(names):
        raise PayloadError(f"a message must have exactly the fields {', '.join(names)}; {SAME_VERSION_FIX}")
    try:
        decoded: Content = _validator(kind).validate_python(content)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _field_error(first_error["loc"][0]) from None
    return decoded


@cache
def _validator(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the validator of a kind of message. It is cached because creating one takes 2 ms."""
    return TypeAdapter(kind)


def _field_error(field: object) -> PayloadError:
    return PayloadError(f"the field {field} of a message is invalid; {SAME_VERSION_FIX}")


def _unpack(message: bytes) -> dict[str, Any]:
    """Return the map in a message, without its version. Raises `PayloadError` if it is not one of this version."""
    msgpack = require("msgpack", extra="workers")
    try:
        content = msgpack.unpackb(message, unicode_errors="surrogatepass", use_list=True)
    except Exception as error:  # noqa: BLE001 - the library's errors have no common base
        raise PayloadError(f"a message is not MessagePack ({type(error).__name__})") from None
    if not isinstance(content, dict) or "version" not in content:
        raise PayloadError("a message must be a map with a version")
    version = content.pop("version")
    if version != VERSION:
        description = version if isinstance(version, int) else type(version).__name__
        raise PayloadError(
            f"a message has version {description}, but this osrerank needs {VERSION}; upgrade the older side"
        )
    return content


def _to_map(value: Scores | Advice) -> dict[str, Any]:
    """Convert an object, which MessagePack cannot encode, to a map."""
    if isinstance(value, Advice):
        return asdict(value)
    odds, cuts = value.odds, value.cuts
    return {
        **value.counts(),
        "reached": value.reached,
        "values": value.values.astype("<f4").tobytes(),
        "failures": list(value.failures.items()),
        "odds": None if odds is None else odds.astype("<f4").tobytes(),
        "cuts": None if cuts is None else cuts.tobytes(),
    }


def _decode_floats(content: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(content, dtype="<f4").astype(np.float32)
