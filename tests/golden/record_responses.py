"""Record real OpenSearch responses over the demo's SQuAD paragraphs, for tests/golden/test_responses.py.

    python -m tests.golden.record_responses http://127.0.0.1:9200
    python -m tests.golden.record_responses    # only `expected` of the Elasticsearch ones, which others recorded

`response` is a plain search as the server answered it; `expected` is what merging made of it when it was recorded: read
the difference before committing a new one.
"""

import json
import sys
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.helpers import bulk

from osrerank.cli.demo import MAPPING, Sample
from tests.golden.test_responses import FOLDER, expected_of

INDEX = "golden"
QUERY = {"multi_match": {"query": "how did the Black Death reach Europe", "fields": ["title", "text"]}}
BODIES = {
    "plain": {"query": QUERY, "size": 5},
    "highlight": {"query": QUERY, "size": 5, "highlight": {"fields": {"text": {}}}, "_source": ["title"]},
    "aggregations": {"query": QUERY, "size": 3, "aggs": {"titles": {"terms": {"field": "title.raw", "size": 3}}}},
    "fields": {"query": QUERY, "size": 3, "_source": False, "fields": ["title", "text"]},
    "collapse": {
        "query": QUERY, "size": 4, "_source": ["title", "text"],
        "collapse": {"field": "title.raw", "inner_hits": {"name": "more", "size": 2, "_source": ["title"]}},
    },
    "sorted": {"query": QUERY, "size": 3, "sort": ["_score", {"title.raw": "asc"}]},
    "no_total": {"query": QUERY, "size": 3, "track_total_hits": False, "explain": False},
    "empty": {"query": {"match": {"text": "zzzz"}}},
}  # fmt: skip


def remake() -> None:
    """Merge the Elasticsearch responses again and write what came out."""
    for file in sorted((FOLDER / "elasticsearch").glob("*.json")):
        record = json.loads(file.read_text("utf-8"))
        write(file, {**record, "expected": expected_of(record["response"])})


def write(file: Path, record: dict[str, Any]) -> None:
    """Write one record."""
    file.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", "utf-8")


def main(url: str) -> None:
    """Index the sample, run the bodies and write the answers."""
    client = OpenSearch(url)
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    mapping = json.loads(json.dumps(MAPPING))
    mapping["mappings"]["properties"]["title"]["fields"] = {"raw": {"type": "keyword"}}
    client.indices.create(index=INDEX, body=mapping)
    bulk(client, ({"_index": INDEX, "_id": d["id"], **d} for d in Sample.load().documents), refresh=True)
    for name, body in BODIES.items():
        response = client.search(index=INDEX, body=body)
        write(FOLDER / f"{name}.json", {"body": body, "response": response, "expected": expected_of(response)})
    client.indices.delete(index=INDEX)


if __name__ == "__main__":
    remake()
    for address in sys.argv[1:]:
        main(address)
