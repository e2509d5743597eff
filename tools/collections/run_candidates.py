"""Write the candidates of a TREC run with their texts, as JSON lines.

python tools/collections/run_candidates.py corpus.jsonl queries.tsv runs/BM25.txt candidates.jsonl --depth 100
"""

import argparse
import json
from pathlib import Path

from osrerank.formats.trec import read_run


def main() -> None:
    """Join the run with the corpus (``id``, ``title``, ``text``) and the queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "queries", "run", "candidates"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--depth", type=int, default=100)
    options = parser.parse_args()

    with options.corpus.open(encoding="utf-8") as lines:
        texts = {document["id"]: document for document in map(json.loads, lines)}
    queries = dict(line.split("\t", 1) for line in options.queries.read_text(encoding="utf-8").splitlines())
    with options.candidates.open("w", encoding="utf-8") as output:
        for query_id, documents in read_run(options.run).rankings.items():
            line = {"query_id": query_id, "query": queries[query_id], "candidates": []}
            for doc_id, _score in documents[: options.depth]:
                document = texts[doc_id]
                line["candidates"].append({"doc_id": doc_id, "title": document["title"], "text": document["text"]})
            output.write(f"{json.dumps(line, ensure_ascii=False)}\n")


if __name__ == "__main__":
    main()
