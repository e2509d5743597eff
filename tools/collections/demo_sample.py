"""Create the demo's sample from SQuAD v1.1's development file.

    python tools/collections/demo_sample.py dev-v1.1.json osrerank/data/squad

The documents are all 2,067 paragraphs. The queries are 100 random questions of at least three words. The relevant
document of a question is the paragraph that it was written for.
"""

import gzip
import json
import random
import sys
from pathlib import Path

QUESTIONS = 100
SEED = 2019


def main(source: Path, target: Path) -> None:
    """Write corpus.jsonl.gz, queries.tsv and qrels.txt."""
    documents, questions = [], []
    for article in json.loads(source.read_text("utf-8"))["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            doc_id = f"{article['title']}/{number}"
            title = article["title"].replace("_", " ")
            documents.append({"id": doc_id, "title": title, "text": paragraph["context"]})
            questions += [(qa["id"], " ".join(qa["question"].split()), doc_id) for qa in paragraph["qas"]]
    sample = random.Random(SEED).sample([item for item in questions if len(item[1].split()) >= 3], QUESTIONS)
    target.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    (target / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode("utf-8"), 9, mtime=0))
    (target / "queries.tsv").write_text("".join(f"{query_id}\t{text}\n" for query_id, text, _ in sample), "utf-8")
    (target / "qrels.txt").write_text("".join(f"{query_id} 0 {doc_id} 1\n" for query_id, _, doc_id in sample), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
