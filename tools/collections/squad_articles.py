"""Write BM25 candidates and judgments for questions about SQuAD's whole articles.

python tools/collections/squad_articles.py train-v1.1.json dev-v1.1.json candidates.jsonl qrels.txt --questions 100

The collection has the articles of both files. The queries are questions of the development file, each with its article
as the relevant document.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from osrerank import Client, connect

INDEX = "articles"
MAPPING = {"mappings": {"properties": {"text": {"type": "text", "analyzer": "english"}}}}


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Return a SQuAD file's articles."""
    articles: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["data"]
    return articles


def index_articles(client: Client, articles: list[dict[str, Any]]) -> None:
    """Index articles, each with the text of all its paragraphs."""
    client.indices.create(index=INDEX, body=MAPPING)
    lines: list[dict[str, Any]] = []
    for article in articles:
        text = "\n".join(paragraph["context"] for paragraph in article["paragraphs"])
        lines += [{"index": {"_id": article["title"]}}, {"text": text}]
    client.bulk(body=lines, index=INDEX, refresh=True)


def find_candidates(client: Client, question: str, depth: int) -> list[dict[str, Any]]:
    """Return the first articles for a question by BM25."""
    response = client.search({"match": {"text": question}}, index=INDEX, size=depth)
    return [
        {"doc_id": hit["_id"], "text": hit["_source"]["text"], "score": hit["_score"]}
        for hit in response["hits"]["hits"]
    ]


def main() -> None:
    """Write candidates and judgments for a sample of questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "dev", "candidates", "qrels"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    dev_articles = read_articles(options.dev)
    questions = [
        (article["title"], question)
        for article in dev_articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    with tempfile.TemporaryDirectory() as folder, options.candidates.open("w", encoding="utf-8") as file:
        client = connect(f"embedded:{folder}")
        index_articles(client, [*read_articles(options.train), *dev_articles])
        judgments = []
        for title, question in random.Random(options.seed).sample(questions, options.questions):
            text = question["question"].strip()
            candidates = find_candidates(client, text, options.depth)
            line = {"query_id": question["id"], "query": text, "candidates": candidates}
            file.write(f"{json.dumps(line, ensure_ascii=False)}\n")
            judgments.append(f"{question['id']} 0 {title} 1\n")
        client.close()
    options.qrels.write_text("".join(judgments), encoding="utf-8")


if __name__ == "__main__":
    main()
