"""Write BM25 candidates of SQuAD questions, and judgments: the question's own paragraph is relevant.

python tools/collections/squad_candidates.py train-v1.1.json candidates.jsonl qrels.txt --questions 400 --depth 30
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tantivy


def paragraphs(squad: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each paragraph with an id of article and place."""
    for article in squad["data"]:
        for place, paragraph in enumerate(article["paragraphs"]):
            yield f"{article['title']}-{place}", paragraph


def searcher(texts: dict[str, str]) -> tuple[tantivy.Index, tantivy.Searcher]:
    """Index texts in memory, English stems."""
    fields = tantivy.SchemaBuilder()
    fields.add_text_field("doc_id", stored=True, tokenizer_name="raw")
    fields.add_text_field("text", tokenizer_name="en_stem")
    index = tantivy.Index(fields.build())
    writer = index.writer(50_000_000, 1)
    for doc_id, text in texts.items():
        writer.add_document(tantivy.Document(doc_id=[doc_id], text=[text]))
    writer.commit()
    index.reload()
    return index, index.searcher()


def main() -> None:
    """Sample questions, search, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("squad", type=Path)
    parser.add_argument("candidates", type=Path)
    parser.add_argument("qrels", type=Path)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    found = dict(paragraphs(json.loads(options.squad.read_text(encoding="utf-8"))))
    texts = {doc_id: paragraph["context"] for doc_id, paragraph in found.items()}
    questions = [(doc_id, question) for doc_id, paragraph in found.items() for question in paragraph["qas"]]
    index, search = searcher(texts)
    with (
        options.candidates.open("w", encoding="utf-8") as candidates,
        options.qrels.open("w", encoding="utf-8") as qrels,
    ):
        for own, question in random.Random(options.seed).sample(questions, options.questions):
            words = index.parse_query(" ".join(re.findall(r"\w+", question["question"].lower())), ["text"])
            hits = search.search(words, options.depth).hits
            line = {"query_id": question["id"], "query": question["question"].strip(), "candidates": []}
            for score, address in hits:
                doc_id = search.doc(address)["doc_id"][0]
                line["candidates"].append({"doc_id": doc_id, "text": texts[doc_id], "score": score})
            candidates.write(f"{json.dumps(line, ensure_ascii=False)}\n")
            qrels.write(f"{question['id']} 0 {own} 1\n")


if __name__ == "__main__":
    main()
