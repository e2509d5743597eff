"""Ten pages of a list whose documents nobody knows yet, under deadlines: no hit twice, none lost, on three engines."""

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


@pytest.mark.parametrize("deadline_ms", [50, 500])
def test_pages_requested_in_one_process_join(engine_url, loaded, deadline_ms):
    with connect(engine_url, warm=True) as client:
        pages = [ids(client, loaded, start, deadline_ms=deadline_ms) for start in range(0, 100, 10)]
    assert len({doc_id for page in pages for doc_id in page}) == 100


def test_pages_requested_in_two_processes_join(engine_url, loaded, redis_url):
    options = '{"deadline_ms": 100, "blend": "replace"}'
    with connect(engine_url, redis_url=redis_url, warm=True) as client:
        response = client.search(
            "low blood pressure", index=loaded, rerank={"deadline_ms": 100, "blend": "replace"}, size=100
        )
    command = [sys.executable, "-c", ONE_PAGE, engine_url, loaded, redis_url, "20", options]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    expected = [hit["_id"] for hit in response["hits"]["hits"]][20:30]
    assert page.strip() == str(expected).replace("'", '"')
