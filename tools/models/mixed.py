"""Measure the effect of encoding queries and documents with different backends: cosines, and nDCG@10.

python -m tools.models.mixed URL INDEX QUERIES QRELS [--depth 30]
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from osrerank import connect
from osrerank.evaluation.basic import ndcg
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.scoring.registry import load_model
from osrerank.settings import DEFAULT_MODEL
from osrerank.types import Encoder, Query
from osrerank.types.vectors import Floats
from osrerank.vectors.record import ROUNDED_BITS, VectorRecord, stack_vectors

BACKENDS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))
"""Backends with their precision."""


def encode_documents(encoder: Encoder, texts: Sequence[str]) -> dict[str, Floats]:
    """Return the stored form of each text's vector, ``(hidden,)`` of norm 1."""
    vectors = encoder.encode(texts, "document")
    records = [
        VectorRecord.from_vector(row, ROUNDED_BITS, is_truncated=index in vectors.cut)
        for index, row in enumerate(vectors.rows)
    ]
    return dict(zip(texts, stack_vectors(records), strict=True))


def rank(encoder: Encoder, query: Query, hits: Sequence[Mapping[str, Any]], rows: Mapping[str, Floats]) -> list[str]:
    """Return the ids of hits in the order of a search: by the logit plus BM25's score with the card's weight."""
    vector = encoder.encode([query.text], "query").rows[0]
    logits = encoder.similarity(vector, np.stack([rows[hit["_source"]["text"]] for hit in hits]))
    bm25 = np.array([hit["_score"] for hit in hits])
    totals = logits + encoder.advice.first_pass_weight * bm25 / bm25.max()
    return [hits[index]["_id"] for index in np.argsort(-totals, kind="stable")]


def main() -> None:
    """Encode with each backend, and print the cosines and nDCG@10."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "index", "queries", "qrels"):
        parser.add_argument(name)
    parser.add_argument("--depth", type=int, default=30, help="number of candidates per query")
    options = parser.parse_args()
    judgments = read_qrels(options.qrels).judgments
    queries = [query for query in read_queries(options.queries) if query.query_id in judgments]
    with connect(options.url) as client:
        arguments = {"index": options.index, "size": options.depth, "rerank": {"pipeline": "none"}}
        all_hits = [client.search(query.text, **arguments)["hits"]["hits"] for query in queries]
    texts = list(dict.fromkeys(str(hit["_source"]["text"]) for hits in all_hits for hit in hits))
    encoders: Any = {key: load_model(DEFAULT_MODEL, backend=key[0], dtype=key[1]) for key in BACKENDS}
    vectors = {key: encode_documents(encoder, texts) for key, encoder in encoders.items()}
    for first_backend, second_backend in combinations(BACKENDS, 2):
        min_cosine = min(float(vectors[first_backend][text] @ vectors[second_backend][text]) for text in texts)
        names = f"{'-'.join(first_backend)} and {'-'.join(second_backend)}"
        sys.stdout.write(f"{len(texts)} texts by {names}: minimum cosine {min_cosine:.5f}\n")
    for document_key in BACKENDS:
        for query_key in BACKENDS:
            pairs = zip(queries, all_hits, strict=True)
            orders = [rank(encoders[query_key], query, hits, vectors[document_key]) for query, hits in pairs]
            values = [ndcg(ids, judgments[query.query_id]) for query, ids in zip(queries, orders, strict=True)]
            names = f"documents by {'-'.join(document_key)}, queries by {'-'.join(query_key)}"
            sys.stdout.write(f"{names}: nDCG@10 {np.mean(values):.4f}\n")


if __name__ == "__main__":
    main()
