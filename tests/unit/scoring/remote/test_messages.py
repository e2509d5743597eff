"""What clients and workers write to each other: round trips, refusal of everything else, and signatures."""

import random
from dataclasses import replace
from itertools import pairwise, product

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError, PayloadError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote import messages, signing
from osrerank.scoring.remote.messages import MAX_MESSAGE_BYTES, ChunkRequest, Heartbeat, Reply
from osrerank.scoring.remote.signing import SIGNATURE_BYTES, Signer
from osrerank.settings import Settings
from osrerank.types import Advice, Scores

REQUEST = ChunkRequest("c1", "m1", "id/int8", 1.5, None, "low pressure", ["a wing", "half a pair \ud800"], [(0,), (1,)])
SCORES = Scores(np.array([0.5, np.nan, -3.25], dtype=np.float32), {1: "too odd"}, inferences=3, truncated=1)
REPLY = Reply("c1", "w1", "id/int8", SCORES)
ADVICE = Advice(7.0, True, kind="bi-encoder")
HEARTBEAT = Heartbeat("w1", "host", "q", "mono", "id/int8", ADVICE, True, ("c1", "c2"), 0.25, 4, 3.0, 9.5)

texts = st.text(max_size=30)


@given(texts, st.lists(texts, min_size=1, max_size=5), st.data())
def test_an_encoded_request_is_decoded_unchanged(query, documents, data):
    index = st.integers(0, len(documents) - 1)
    width = data.draw(st.integers(1, 2))
    tuples = data.draw(st.lists(st.tuples(*[index] * width), max_size=8))
    request = ChunkRequest("c", "m", "i", 0.0, 12.5, query, documents, tuples)
    assert ChunkRequest.decode(request.encode()) == request


def test_encoded_messages_are_decoded_unchanged():
    assert ChunkRequest.decode(REQUEST.encode()) == REQUEST  # with half of a surrogate pair
    assert Heartbeat.decode(HEARTBEAT.encode()) == HEARTBEAT
    reads = replace(HEARTBEAT, advice=Advice(languages=("en", "de")))
    assert Heartbeat.decode(reads.encode()) == reads
    reply = Reply.decode(REPLY.encode())
    np.testing.assert_array_equal(reply.scores.values, SCORES.values)
    assert (reply.scores.failures, reply.scores.inferences, reply.scores.truncated) == ({1: "too odd"}, 3, 1)
    assert Reply.decode(Reply("c", "w", "i", None, "no").encode()).error == "no"


def test_vectors_are_requested_by_a_separate_task():
    request = replace(REQUEST, tuples=[], vector_bits=8)
    assert ChunkRequest.decode(request.encode()) == request
    assert (request.task, REQUEST.task) == ("osrerank.encode", "osrerank.score")
    reply = replace(REPLY, scores=None, vectors=[b"record", "cannot be encoded", b""])
    assert Reply.decode(reply.encode()).vectors == reply.vectors
    content = msgpack.unpackb(REPLY.encode())
    for vectors in ("text", [5], [[b"record"]], {b"key": b"record"}, [None]):
        with pytest.raises(PayloadError, match="vectors"):
            Reply.decode(msgpack.packb({**content, "vectors": vectors}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk", "x" * 600),
        ("sent_s", float("nan")),
        ("tuples", [[2]]),
        ("tuples", [[0], [0, 1]]),
        ("tuples", "a secret text"),
    ],
)
def test_an_unusable_field_of_a_message_is_named_without_texts(field, value):
    content = {name: getattr(REQUEST, name) for name in ChunkRequest.__slots__}
    with pytest.raises(PayloadError, match=field) as caught:
        ChunkRequest.decode(messages._pack({**content, field: value}))
    assert not any(word in str(caught.value) for word in ("secret", "wing"))


@pytest.mark.parametrize(
    "advice",
    [
        None,
        {"first_pass_weight": 1.0},
        {"first_pass_weight": -1.0, "passages": False},
        {"first_pass_weight": 1.0, "passages": False, "languages": [], "kind": "monoBERT"},
    ],
)
def test_unusable_advice_of_a_worker_is_refused(advice):
    content = {name: getattr(HEARTBEAT, name) for name in Heartbeat.__slots__}
    with pytest.raises(PayloadError, match=r"advice|first_pass_weight|vectors_weight|kind"):
        Heartbeat.decode(messages._pack({**content, "advice": advice}))


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x80", b"\x81\xa1a\x01"])
def test_malformed_messages_are_refused(message):
    for kind in (ChunkRequest, Reply, Heartbeat):
        with pytest.raises(PayloadError):
            kind.decode(message)


def test_a_message_of_another_version_is_refused_with_both_versions(monkeypatch):
    monkeypatch.setattr(messages, "VERSION", messages.VERSION + 1)
    newer = REQUEST.encode()
    monkeypatch.undo()
    with pytest.raises(
        PayloadError, match=f"version {messages.VERSION + 1}, but this osrerank needs {messages.VERSION}"
    ):
        ChunkRequest.decode(newer)


def test_a_message_too_large_is_refused_on_both_sides():
    large = ChunkRequest("c", "m", "i", 0.0, None, "q", ["x" * (messages.MAX_MESSAGE_BYTES + 1)], [(0,)])
    with pytest.raises(PayloadError, match="too large"):
        large.encode()
    with pytest.raises(PayloadError, match="too large"):
        Signer().verify("request", b"x" * (messages.MAX_MESSAGE_BYTES + 100))


def test_ten_thousand_damaged_messages_are_decoded_or_refused():
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


OLD, NEW = b"an-old-key-of-24-letters", b"a-new-key-of-24-letters!"


@pytest.mark.long
@given(st.binary(max_size=200), st.data())
def test_a_signed_message_opens_and_an_altered_message_does_not(message, data):
    signer = Signer([NEW])
    sealed = signer.sign("reply", message)
    assert signer.verify("reply", sealed) == message
    assert len(sealed) == len(message) + 1 + SIGNATURE_BYTES
    touched = bytearray(sealed)
    touched[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        signer.verify("reply", bytes(touched))
    with pytest.raises(PayloadError):
        signer.verify("request", sealed)


def test_the_signing_key_of_messages_is_changed_in_three_steps():
    steps = [Signer([OLD]), Signer([OLD, NEW]), Signer([NEW, OLD]), Signer([NEW])]
    for before, after in pairwise(steps):
        assert after.verify("request", before.sign("request", b"x")) == b"x"
        assert before.verify("request", after.sign("request", b"x")) == b"x"
    with pytest.raises(PayloadError, match="signed with another key"):
        steps[3].verify("request", steps[0].sign("request", b"x"))


def test_a_message_signed_on_one_side_only_is_refused_with_the_reason():
    with pytest.raises(PayloadError, match="is not signed") as unsigned:
        Signer([NEW]).verify("reply", Signer().sign("reply", b"x"))
    with pytest.raises(PayloadError, match="OSRERANK_SIGNING_KEY also in this process") as no_key:
        Signer().verify("reply", Signer([NEW]).sign("reply", b"x"))
    assert (unsigned.value.reason, no_key.value.reason) == ("unsigned", "no_key")
    assert Signer().verify("reply", Signer().sign("reply", b"x")) == b"x"


@pytest.mark.parametrize("message", [None, "text", b"\xc1" * (MAX_MESSAGE_BYTES + 100)])
def test_oversized_or_malformed_messages_are_refused_before_their_signature_is_computed(message):
    with pytest.raises(PayloadError) as refused:
        Signer([NEW]).verify("request", message)
    assert refused.value.reason == "malformed"


def test_refusals_are_counted_from_0_so_that_the_first_one_is_an_increase():
    samples = [sample for metric in MESSAGES_REFUSED.collect() for sample in metric.samples]
    counted = {(sample.labels["message"], sample.labels["reason"]) for sample in samples}
    assert counted >= set(product(signing.KINDS, signing.REASONS))


def test_refused_messages_are_counted_and_logged_once_a_minute(caplog, monkeypatch):
    monkeypatch.setattr(signing, "_log_limit", LogThrottle())
    count = signing.count_refusal
    before = MESSAGES_REFUSED.labels("reply", "unsigned")._value.get()
    for _ in range(5):
        count("reply", PayloadError("a message is not signed", reason="unsigned"))
    count("reply", PayloadError("too odd"))
    assert MESSAGES_REFUSED.labels("reply", "unsigned")._value.get() == before + 5
    assert ["refused a reply" in record.message for record in caplog.records] == [True, True]


def test_signing_keys_are_read_from_settings_and_never_shown():
    settings = Settings.load(signing_key=f" {NEW.decode()} ,{OLD.decode()}")
    assert Signer.from_settings(settings).verify("reply", Signer([OLD]).sign("reply", b"x")) == b"x"
    assert "key-of-24" not in repr(settings)
    assert not Signer.from_settings(Settings.load()).has_key
    for keys in ("short", f"{NEW.decode()},", f"{NEW.decode()},short"):
        with pytest.raises(ConfigError, match="at least 16 characters") as refused:
            Settings.load(signing_key=keys)
        assert "short" not in str(refused.value)
