"""Bodies of requests to the HTTP server: encodings, JSON, compression and refusal."""

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.server.api.bodies import MAX_KEYS, inflate, read_body
from osrerank.server.api.errors import RefusedRequest
from osrerank.server.api.numbers import Json

MAXIMUM = 50
SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text()
DOCUMENTS = st.lists(SCALARS | st.dictionaries(st.text(), SCALARS, max_size=5), max_size=8)
CASES = {
    "objects": (b'{"query":"q","documents":[' + b",".join([b"{}"] * 300_000) + b"]}", 422, "documents.0"),
    "numbers": (b'{"query":"q","documents":[' + b",".join([b"7"] * 300_000) + b"]}", 422, "documents.0"),
    "texts": (b'{"query":"q","documents":[' + b",".join([b'""'] * 300_000) + b"]}", 413, "send several"),
    "depth": (b'{"documents":' + b"[" * 300_000 + b"]" * 300_000 + b"}", 422, "nested"),
    "digits": (b'{"top_n":' + b"7" * 1_000_000 + b"}", 422, "characters"),
    "twice": (b'{"query":"a","query":"b"}', 422, "twice"),
    "twice within": (b'{"documents":[{"text":"a","text":"b"}]}', 422, "documents.0 contains the key 'text' twice"),
    "keys": (("{" + ",".join(f'"{at}":7' for at in range(MAX_KEYS + 1)) + "}").encode(), 422, "keys"),
    "not built": (b'{"documents":[{"m":[' + b",".join([b"[]"] * 400_000) + b"]}]}", 422, "documents.0"),
    "numbers not built": (b'{"documents":[{"m":[' + b"7," * 1_000_000 + b"7]}]}", 422, "documents.0"),
    "digits not built": (b'{"documents":[{"m":[' + b"7" * 10_000 + b"]}]}", 422, "documents.0"),
    "infinite not built": (b'{"documents":[{"m":[7e999]}]}', 422, "documents.0"),
    "infinite digits not built": (b'{"documents":[{"m":["\xc3\xa9",' + b"7" * 400 + b".0]}]}", 422, "documents.0"),
}

NOT_JSON = [
    b'{"a":[[[1 2]]]}', b'{"a":[[{"b":nul}]]}',
    b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b'{"a":[1,]}', b'{"a":01}', b'{"a":-}', b"{} {}", b"nul", b"x",
    b'{"a":"\\x"}', b'{"a":"', b'{"a":[[{"b":[}]}]]}', b'{"a":[[["', b"{1:2}", b'{"a" 1}', b'{"a":"\xff"}',
]  # fmt: skip


def refusal(function, *arguments):
    with pytest.raises(RefusedRequest) as caught:
        function(*arguments)
    return caught.value.status, str(caught.value)


@given(st.dictionaries(st.text(), SCALARS | DOCUMENTS | st.dictionaries(st.text(), SCALARS, max_size=5), max_size=5))
def test_bodies_are_read_as_pythons_json_reads_them(content):
    for indent in (None, 1):
        body = json.dumps(content, indent=indent).encode()
        assert read_body(body, MAXIMUM) == json.loads(body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_bodies_in_utf_8_16_and_32_are_read(encoding):
    assert read_body('{"query": "dürfen"}'.encode(encoding), MAXIMUM) == {"query": "dürfen"}


def test_unread_numbers_of_a_body_are_returned_as_written():
    body = b'{"documents":[{"m": [ 1.50, {"a" :"\\u00e9"} ]}]}'
    assert read_body(body, MAXIMUM) == {"documents": [{"m": Json('[ 1.50, {"a" :"\\u00e9"} ]')}]}


def test_unread_values_of_a_body_are_returned_as_ascii_json():
    body = '{"documents":[{"text":"a","m":{"x":[0.5,"]}\\"é",{}, NaN]},"n":[]},{"text":"b"}]}'.encode()
    documents = [{"text": "a", "m": Json('{"x": [0.5, "]}\\"\\u00e9", {}, null]}'), "n": Json("[]")}, {"text": "b"}]
    assert read_body(body, MAXIMUM) == {"documents": documents}


@pytest.mark.parametrize("body", NOT_JSON)
def test_bodies_that_are_not_json_are_refused(body):
    status, message = refusal(read_body, body, MAXIMUM)
    assert status == 400
    assert message.startswith("the body is not JSON")


@pytest.mark.parametrize("case", CASES)
def test_hostile_bodies_are_refused_without_their_content(case):
    body, status, words = CASES[case]
    actual, message = refusal(read_body, body, 10_000)
    assert (actual, len(message) < 200) == (status, True)
    assert words in message
    assert "777" not in message


def test_compressed_bodies_are_inflated_within_the_limit_and_answered(serve):
    assert inflate(gzip.compress(b"a" * 10) + gzip.compress(b"b"), 100) == b"a" * 10 + b"b"
    compressed = gzip.compress(b"x" * 1_000)
    assert refusal(inflate, compressed, 999)[0] == 413
    assert refusal(inflate, gzip.compress(b" " * 50_000_000), 2**20)[0] == 413
    for broken in (compressed[:-20], b"no gzip", compressed + b"more", zlib.compress(b"x")):
        assert refusal(inflate, broken, 5_000)[0] == 400
    client = serve(max_body_bytes=1_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = json.dumps({"query": "low", "documents": ["low", "high"]}).encode()
    for coding in ("gzip", "GZIP", "X-Gzip"):
        headers["Content-Encoding"] = coding
        assert len(client.post("/v1/rerank", content=gzip.compress(body), headers=headers).json()["results"]) == 2
    bomb = gzip.compress(b'{"query": "low", "documents": ["' + b"x" * 2_000 + b'"]}')
    assert client.post("/v1/rerank", content=bomb, headers=headers).status_code == 413
    answer = client.post("/v1/rerank", content=body, headers={**headers, "Content-Encoding": "br"})
    assert (answer.status_code, "gzip" in answer.json()["message"]) == (415, True)


def test_a_fault_of_every_list_entry_is_described_once(client):
    answer = client.post("/rerank", json={"query": "q", "texts": [{"secret": 1}] * 9_000})
    assert (answer.status_code, answer.json()["message"]) == (422, "texts.0: it must be a string")
    assert client.post("/rerank", json={"query": "q", "texts": ["a"] * 9_000}).status_code == 200
