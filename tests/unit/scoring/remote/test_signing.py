"""Signatures: what opens, what is refused, what is counted and logged."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank._seldom import Seldom
from osrerank.errors import ConfigError, PayloadError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote import signing
from osrerank.scoring.remote.messages import MOST_BYTES
from osrerank.scoring.remote.signing import SIGNATURE_BYTES, Signer
from osrerank.settings import Settings

OLD, NEW = b"an-old-key-of-24-letters", b"a-new-key-of-24-letters!"


@pytest.mark.long
@given(st.binary(max_size=200), st.data())
def test_a_sealed_message_opens_and_one_that_was_touched_does_not(message, data):
    signer = Signer([NEW])
    sealed = signer.seal("reply", message)
    assert signer.open("reply", sealed) == message
    assert len(sealed) == len(message) + 1 + SIGNATURE_BYTES
    touched = bytearray(sealed)
    touched[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        signer.open("reply", bytes(touched))
    with pytest.raises(PayloadError):
        signer.open("request", sealed)


def test_keys_are_changed_in_three_steps():
    steps = [Signer([OLD]), Signer([OLD, NEW]), Signer([NEW, OLD]), Signer([NEW])]
    for before, after in pairwise(steps):
        assert after.open("request", before.seal("request", b"x")) == b"x"
        assert before.open("request", after.seal("request", b"x")) == b"x"
    with pytest.raises(PayloadError, match="known OSRERANK_WORKERS_KEY"):
        steps[3].open("request", steps[0].seal("request", b"x"))


def test_one_side_without_a_key_is_told_so():
    with pytest.raises(PayloadError, match="is not signed") as unsigned:
        Signer([NEW]).open("reply", Signer().seal("reply", b"x"))
    with pytest.raises(PayloadError, match="this process has no OSRERANK_WORKERS_KEY") as no_key:
        Signer().open("reply", Signer([NEW]).seal("reply", b"x"))
    assert (unsigned.value.reason, no_key.value.reason) == ("unsigned", "no_key")
    assert Signer().open("reply", Signer().seal("reply", b"x")) == b"x"


@pytest.mark.parametrize("message", [None, "text", b"\xc1" * (MOST_BYTES + 100)])
def test_what_is_no_message_is_refused_before_it_is_hashed(message):
    with pytest.raises(PayloadError) as refused:
        Signer([NEW]).open("request", message)
    assert refused.value.reason == "malformed"


def test_refusals_are_counted_and_logged_once_a_minute(caplog, monkeypatch):
    monkeypatch.setattr(signing, "_due", Seldom())
    count = signing.count_refusal
    before = MESSAGES_REFUSED.labels("reply", "unsigned")._value.get()
    for _ in range(5):
        count("reply", PayloadError("a message is not signed", reason="unsigned"))
    count("reply", PayloadError("too odd"))
    assert MESSAGES_REFUSED.labels("reply", "unsigned")._value.get() == before + 5
    assert ["refused a reply" in record.message for record in caplog.records] == [True, True]


def test_keys_are_read_from_the_settings_and_never_shown():
    settings = Settings.load(workers_key=f" {NEW.decode()} ,{OLD.decode()}")
    assert Signer.of(settings).open("reply", Signer([OLD]).seal("reply", b"x")) == b"x"
    assert "key-of-24" not in repr(settings)
    assert not Signer.of(Settings.load()).signs
    for keys in ("short", f"{NEW.decode()},", f"{NEW.decode()},short"):
        with pytest.raises(ConfigError, match="at least 16 characters") as refused:
            Settings.load(workers_key=keys)
        assert "short" not in str(refused.value)
