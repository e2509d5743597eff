"""What it costs that queries and documents of one search are encoded by different backends: cosines, and nDCG@10.

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

WAYS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))


def text_of(hit: Mapping[str, Any]) -> str:
    """Return a hit's text."""
    return str(hit["_source"]["text"])


def rounded(encoder: Encoder, texts: Sequence[str]) -> dict[str, Floats]:
    """Return each text's vector as it is stored, ``(hidden,)`` of norm 1."""
    vectors = encoder.encode(texts, "document")
    records = [
        VectorRecord.from_vector(row, ROUNDED_BITS, is_truncated=at in vectors.cut)
        for at, row in enumerate(vectors.rows)
    ]
    return dict(zip(texts, stack_vectors(records), strict=True))


def order(encoder: Encoder, query: Query, hits: Sequence[Mapping[str, Any]], rows: Mapping[str, Floats]) -> list[str]:
    """Return the ids of hits as a search orders them: by the logit, with BM25 as the card weighs it."""
    vector = encoder.encode([query.text], "query").rows[0]
    logits = encoder.similarity(vector, np.stack([rows[text_of(hit)] for hit in hits]))
    first = np.array([hit["_score"] for hit in hits])
    totals = logits + encoder.advice.first_pass_weight * first / first.max()
    return [hits[at]["_id"] for at in np.argsort(-totals, kind="stable")]


def main() -> None:
    """Encode with each way, and print the cosines and the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "index", "queries", "qrels"):
        parser.add_argument(name)
    parser.add_argument("--depth", type=int, default=30, help="candidates of a query")
    options = parser.parse_args()
    judged = read_qrels(options.qrels).judgments
    queries = [query for query in read_queries(options.queries) if query.query_id in judged]
    with connect(options.url) as client:
        asked = {"index": options.index, "size": options.depth, "rerank": {"pipeline": "none"}}
        hits = [client.search(query.text, **asked)["hits"]["hits"] for query in queries]
    texts = list(dict.fromkeys(text_of(hit) for some in hits for hit in some))
    encoders: Any = {way: load_model(DEFAULT_MODEL, backend=way[0], dtype=way[1]) for way in WAYS}
    made = {way: rounded(encoder, texts) for way, encoder in encoders.items()}
    for one, other in combinations(WAYS, 2):
        least = min(float(made[one][text] @ made[other][text]) for text in texts)
        sys.stdout.write(f"{len(texts)} texts by {'-'.join(one)} and {'-'.join(other)}: least cosine {least:.5f}\n")
    for documents in WAYS:
        for asking in WAYS:
            orders = [order(encoders[asking], *pair, made[documents]) for pair in zip(queries, hits, strict=True)]
            values = [ndcg(ids, judged[query.query_id]) for query, ids in zip(queries, orders, strict=True)]
            names = f"documents by {'-'.join(documents)}, queries by {'-'.join(asking)}"
            sys.stdout.write(f"{names}: nDCG@10 {np.mean(values):.4f}\n")


if __name__ == "__main__":
    main()
