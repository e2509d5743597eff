"""Requests that read and write vector records in a side index."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.types.engine import Engine
from osrerank.vectors.index import RecordRequests, build_record_bodies, describe_bulk_failure

KEYS = [b"a" * 16, b"b" * 16]
RECORDS = {KEYS[0]: b"\x00\xff one", KEYS[1]: b"two"}


def answer(form: RecordRequests, contents: dict[str, object]) -> dict[str, object]:
    """Return what an engine answers when it has these records by id."""
    if form.engine.is_embedded:
        return {"docs": [{"_id": key, "found": True, "_source": {"record": text}} for key, text in contents.items()]}
    hits = [{"_id": key, "fields": {"record": [text]}} for key, text in contents.items()]
    return {"hits": {"hits": hits}}


def encoded(form: RecordRequests, record: bytes) -> str:
    text = base64.b64encode(record).decode()
    return text if form.engine.is_embedded else text.rstrip("=")  # as OpenSearch gives doc values


def test_a_bulk_request_to_a_side_index_names_every_record():
    (body,) = build_record_bodies("osrerank-vectors-i", RECORDS, "a model")
    lines = [json.loads(line) for line in body.splitlines()]
    assert body.endswith("\n")
    assert lines[0] == {"index": {"_index": "osrerank-vectors-i", "_id": KEYS[0].hex()}}
    assert [base64.b64decode(line["record"]) for line in lines[1::2]] == list(RECORDS.values())


def test_many_records_are_written_to_a_side_index_in_several_requests():
    records = {bytes([number]) * 16: bytes(3 << 20) for number in range(3)}
    bodies = list(build_record_bodies("osrerank-vectors-i", records, "a model"))
    assert [len(body.splitlines()) for body in bodies] == [4, 2]


def test_a_refused_write_to_a_side_index_has_the_reason_without_the_record():
    items = [{"index": {"status": 201}}, {"index": {"status": 400, "error": {"type": "x", "reason": "value [AAAA]"}}}]
    assert describe_bulk_failure({"errors": True, "items": items}) == "1 of 2 records were refused: x"
    assert describe_bulk_failure({"errors": False, "items": items[:1]}) == ""


def test_one_request_reads_several_side_indices():
    path, params, body = RecordRequests(Engine.OPENSEARCH).request_records(["b", "a"], KEYS)
    assert path == "/a,b/_search"
    assert params["ignore_unavailable"] == "true"
    assert (body["size"], body["query"]) == (2, {"ids": {"values": [key.hex() for key in KEYS]}})
    path, _, body = RecordRequests(Engine.EMBEDDED).request_records(["b", "a"], KEYS)
    assert path == "/_mget"
    assert len(body["docs"]) == 4


@pytest.mark.parametrize("engine", Engine)
@given(records=st.dictionaries(st.binary(min_size=16, max_size=16), st.binary(min_size=1, max_size=60), max_size=5))
def test_records_written_to_a_side_index_are_read(engine, records):
    form = RecordRequests(engine)
    contents = {key.hex(): encoded(form, record) for key, record in records.items()}
    assert form.parse_records(answer(form, contents)) == records


@pytest.mark.parametrize("engine", Engine)
def test_foreign_documents_in_a_side_index_are_ignored(engine):
    form = RecordRequests(engine)
    contents = {"not hexadecimal": "AAAA", "aa": "no base64!", "bb": 7, "cc": "", "dd": None, "ee": "AAAA"}
    assert form.parse_records(answer(form, contents)) == {b"\xee": b"\0\0\0"}
    missing = {"docs": [{"_id": "aa", "found": False}], "hits": {"hits": [{"_id": "aa"}]}}
    assert form.parse_records(missing) == {}
