"""Write the candidates of a TREC run with their texts, as JSON lines.

python tools/collections/run_candidates.py corpus.jsonl queries.tsv runs/BM25.txt candidates.jsonl --depth 100
"""

import argparse
import json
from pathlib import Path

from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_run


def main() -> None:
    """Join the run with the corpus (``id``, ``title``, ``text``) and the queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "queries", "run", "candidates"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--depth", type=int, default=100)
    options = parser.parse_args()

    texts = {document["id"]: document for _, document in numbered_objects(options.corpus)}
    queries = {query.query_id: query.text for query in read_queries(options.queries)}
    with options.candidates.open("w", encoding="utf-8") as output:
        for query_id, documents in read_run(options.run).rankings.items():
            entries = [
                {"doc_id": doc_id, "title": texts[doc_id]["title"], "text": texts[doc_id]["text"]}
                for doc_id, _score in documents[: options.depth]
            ]
            line = {"query_id": query_id, "query": queries[query_id], "candidates": entries}
            output.write(f"{json.dumps(line, ensure_ascii=False)}\n")


if __name__ == "__main__":
    main()
