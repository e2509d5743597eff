"""Ten pages of a list whose documents nobody knows yet, under deadlines: no hit twice, none lost, on both engines."""

import random
import subprocess
import sys

import pytest

from osrerank import connect
from tests.articles import fill

pytestmark = pytest.mark.integration

WORDS = ["blood", "pressure", "salt", "diet", "heart", "artery", "vein", "nurse", "doctor", "patient"]
ONE_PAGE = """
import json, sys
from osrerank import connect
url, index, redis_url, start, options = sys.argv[1:]
with connect(url, redis_url=redis_url) as client:
    response = client.search("low blood pressure", index=index, rerank=json.loads(options), from_=int(start), size=10)
print(json.dumps([hit["_id"] for hit in response["hits"]["hits"]]))
"""


@pytest.fixture
def loaded(engine, index_name, tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    draw = random.Random(1)
    fill(engine, index_name, [{"text": f"blood {' '.join(draw.choices(WORDS, k=20))} {n}"} for n in range(150)])
    return index_name


def ids(client, index, start, **options):
    response = client.search("low blood pressure", index=index, rerank=options, from_=start, size=10)
    return [hit["_id"] for hit in response["hits"]["hits"]]


@pytest.mark.parametrize("deadline_ms", [50, 150, 500])
def test_pages_of_one_process(engine_url, loaded, deadline_ms):
    with connect(engine_url, warm=True) as client:
        found = [ids(client, loaded, start, deadline_ms=deadline_ms) for start in range(0, 100, 10)]
    assert len({doc_id for page in found for doc_id in page}) == 100


def test_pages_while_more_gets_known(engine_url, loaded):
    with connect(engine_url, warm=True) as client:
        found = []
        for start in range(0, 100, 10):
            found += ids(client, loaded, start, depth="auto", blend="replace")
            client.search("pressure", index=loaded, rerank={"depth": 30 + start}, size=1)
    assert len(set(found)) == len(found) == 100


@pytest.mark.parametrize("deadline_ms", [50, 300])
def test_pages_of_two_clients_with_one_redis(engine_url, loaded, redis_url, deadline_ms):
    clients = [connect(engine_url, redis_url=redis_url, warm=True) for _ in range(2)]
    found = [
        ids(clients[start // 10 % 2], loaded, start, deadline_ms=deadline_ms, blend="replace")
        for start in range(0, 100, 10)
    ]
    assert len({doc_id for page in found for doc_id in page}) == 100
    for client in clients:
        client.close()


def test_another_process_reads_the_order(engine_url, loaded, redis_url):
    options = '{"deadline_ms": 100, "blend": "replace"}'
    with connect(engine_url, redis_url=redis_url, warm=True) as client:
        whole = client.search(
            "low blood pressure", index=loaded, rerank={"deadline_ms": 100, "blend": "replace"}, size=100
        )
    command = [sys.executable, "-c", ONE_PAGE, engine_url, loaded, redis_url, "20", options]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    expected = [hit["_id"] for hit in whole["hits"]["hits"]][20:30]
    assert page.strip() == str(expected).replace("'", '"')
