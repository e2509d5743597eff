"""What clients and workers write to each other: whole round trips, and refusal of everything else."""

import random
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import PayloadError
from osrerank.scoring.remote import messages
from osrerank.scoring.remote.messages import ChunkRequest, Heartbeat, Reply
from osrerank.types import Advice, Feedback, Scores

REQUEST = ChunkRequest("c1", "m1", "id/int8", 1.5, None, "low pressure", ["a wing", "half a pair \ud800"], [(0,), (1,)])
SCORES = Scores(np.array([0.5, np.nan, -3.25], dtype=np.float32), {1: "too odd"}, inferences=3, truncated=1)
REPLY = Reply("c1", "w1", "id/int8", SCORES, "", 0.01, 0.2)
ADVICE = Advice(7.0, True, kind="bi-encoder", feedback=Feedback(0.2, 0.5))
HEARTBEAT = Heartbeat("w1", "host", "q", "mono", "id/int8", ADVICE, True, ("c1", "c2"), 0.25, 4, 3.0, 9.5)

texts = st.text(max_size=30)


@given(texts, st.lists(texts, min_size=1, max_size=5), st.data())
def test_a_request_comes_back_as_it_was(query, documents, data):
    index = st.integers(0, len(documents) - 1)
    width = data.draw(st.integers(1, 2))
    tuples = data.draw(st.lists(st.tuples(*[index] * width), max_size=8))
    request = ChunkRequest("c", "m", "i", 0.0, 12.5, query, documents, tuples)
    assert ChunkRequest.decode(request.encode()) == request


def test_half_a_surrogate_pair_travels():
    assert ChunkRequest.decode(REQUEST.encode()) == REQUEST


def test_a_reply_comes_back_as_it_was():
    found = Reply.decode(REPLY.encode())
    np.testing.assert_array_equal(found.scores.values, SCORES.values)
    assert (found.scores.failures, found.scores.inferences, found.scores.truncated) == ({1: "too odd"}, 3, 1)
    assert Reply.decode(Reply("c", "w", "i", None, "no").encode()).error == "no"


def test_vectors_are_asked_for_by_a_task_of_their_own():
    request = replace(REQUEST, tuples=[], vector_bits=8)
    assert ChunkRequest.decode(request.encode()) == request
    assert (request.task, REQUEST.task) == ("osrerank.encode", "osrerank.score")
    reply = replace(REPLY, scores=None, vectors=[b"record", "cannot be encoded", b""])
    assert Reply.decode(reply.encode()).vectors == reply.vectors


@pytest.mark.parametrize("vectors", ["text", [5], [[b"record"]], {b"key": b"record"}, [None]])
def test_what_is_no_vector_is_refused(vectors):
    content = msgpack.unpackb(REPLY.encode())
    with pytest.raises(PayloadError, match="vectors"):
        Reply.decode(msgpack.packb({**content, "vectors": vectors}))


def test_a_heartbeat_comes_back_as_it_was():
    assert Heartbeat.decode(HEARTBEAT.encode()) == HEARTBEAT
    reads = replace(HEARTBEAT, advice=Advice(languages=("en", "de")))
    assert Heartbeat.decode(reads.encode()) == reads


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk", ""),
        ("chunk", 5),
        ("chunk", "x" * 600),
        ("reply_queue", None),
        ("sent_s", float("nan")),
        ("deadline_s", "soon"),
        ("query", b"bytes"),
        ("documents", "one text"),
        ("documents", [None]),
        ("tuples", [[2]]),
        ("tuples", [[-1]]),
        ("tuples", [[True]]),
        ("tuples", [[0], [0, 1]]),
        ("tuples", [[]]),
        ("tuples", [[0, 1, 0]]),
        ("tuples", [[0]] * 1_001),
        ("vector_bits", -8),
    ],
)
def test_a_field_that_cannot_be_used_is_named(field, value):
    content = {name: getattr(REQUEST, name) for name in ChunkRequest.__slots__}
    with pytest.raises(PayloadError, match=field):
        ChunkRequest.decode(messages._packed({**content, field: value}))


@pytest.mark.parametrize(
    "advice",
    [
        None,
        {},
        {"first_pass_weight": 1.0},
        {"first_pass_weight": "1", "passages": False},
        {"first_pass_weight": -1.0, "passages": False},
        {"first_pass_weight": 1.0, "passages": False, "languages": [], "kind": "monoBERT"},
        {"first_pass_weight": -1.0, "passages": False, "languages": [], "kind": "duo", "feedback": None},
        {"first_pass_weight": 0, "passages": True, "languages": [], "kind": "bi-encoder", "feedback": {"share": 2}},
    ],
)
def test_advice_that_cannot_be_used_is_refused(advice):
    content = {name: getattr(HEARTBEAT, name) for name in Heartbeat.__slots__}
    with pytest.raises(PayloadError, match=r"advice|first_pass_weight|kind"):
        Heartbeat.decode(messages._packed({**content, "advice": advice}))


@pytest.mark.parametrize("message", [None, "text", 5, b"", b"\xc1", b"\x80", b"\x81\xa1a\x01"])
def test_what_is_no_message_is_refused(message):
    for kind in (ChunkRequest, Reply, Heartbeat):
        with pytest.raises(PayloadError):
            kind.decode(message)


def test_another_version_says_which(monkeypatch):
    monkeypatch.setattr(messages, "VERSION", messages.VERSION + 1)
    newer = REQUEST.encode()
    monkeypatch.undo()
    with pytest.raises(PayloadError, match=f"version {messages.VERSION + 1}, this osrerank reads {messages.VERSION}"):
        ChunkRequest.decode(newer)


def test_a_message_too_large_is_refused_on_both_sides():
    large = ChunkRequest("c", "m", "i", 0.0, None, "q", ["x" * (messages.MOST_BYTES + 1)], [(0,)])
    with pytest.raises(PayloadError, match="larger"):
        large.encode()
    with pytest.raises(PayloadError, match="larger"):
        ChunkRequest.decode(b"x" * (messages.MOST_BYTES + 1))


def test_ten_thousand_damaged_messages_are_read_or_refused():
    rng = random.Random(0)
    whole = {ChunkRequest: REQUEST.encode(), Reply: REPLY.encode(), Heartbeat: HEARTBEAT.encode()}
    refused = 0
    for _ in range(10_000):
        kind = rng.choice(list(whole))
        message = bytearray(whole[kind])
        for _ in range(rng.randint(1, 8)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        try:
            kind.decode(bytes(message[: rng.randint(0, len(message))]))
        except PayloadError:
            refused += 1
    assert refused > 5_000


def test_no_text_is_in_an_error():
    content = {name: getattr(REQUEST, name) for name in ChunkRequest.__slots__}
    with pytest.raises(PayloadError) as caught:
        ChunkRequest.decode(messages._packed({**content, "tuples": "a secret text"}))
    assert "secret" not in str(caught.value)
    assert "wing" not in str(caught.value)
