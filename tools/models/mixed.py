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
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.vectors.record import Floats, Record
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.scoring.vectors.store import MemoryStore
from osrerank.settings import DEFAULT_MODEL, Settings
from osrerank.types import Query

WAYS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))


def text_of(hit: Mapping[str, Any]) -> str:
    """Return a hit's text."""
    return str(hit["_source"]["text"])


def encoded(scorer: BiEncoderScorer, texts: Sequence[str]) -> tuple[MemoryStore, Floats]:
    """Return a store with the texts' records, and their vectors ``(n, hidden)``, of norm 1."""
    store = MemoryStore(1 << 30)
    scorer.remember(texts, store)
    keys = scorer.keys_of(texts)
    kept = scorer.records.read(store.read(keys))
    vectors = np.stack([one.vector for key in keys if isinstance(one := kept[key], Record)]).astype(np.float32)
    return store, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def order(scorer: BiEncoderScorer, query: Query, hits: Sequence[Mapping[str, Any]], store: MemoryStore) -> list[str]:
    """Return the ids of hits as a search orders them: by the logit, with BM25 as the card weighs it."""
    scores = scorer.score(query.text, [text_of(hit) for hit in hits], [(at,) for at in range(len(hits))], vectors=store)
    first = np.array([hit["_score"] for hit in hits])
    totals = scores.values + scorer.card.first_pass_weight * first / first.max()
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
    settings = Settings(vectors="off")
    scorers: Any = {way: load_scorer(DEFAULT_MODEL, backend=way[0], dtype=way[1], settings=settings) for way in WAYS}
    made = {way: encoded(scorer, texts) for way, scorer in scorers.items()}
    for one, other in combinations(WAYS, 2):
        least = float((made[one][1] * made[other][1]).sum(axis=1).min())
        sys.stdout.write(f"{len(texts)} texts by {'-'.join(one)} and {'-'.join(other)}: least cosine {least:.5f}\n")
    for documents in WAYS:
        for asking in WAYS:
            orders = [order(scorers[asking], *pair, made[documents][0]) for pair in zip(queries, hits, strict=True)]
            values = [ndcg(ids, judged[query.query_id]) for query, ids in zip(queries, orders, strict=True)]
            names = f"documents by {'-'.join(documents)}, queries by {'-'.join(asking)}"
            sys.stdout.write(f"{names}: nDCG@10 {np.mean(values):.4f}\n")


if __name__ == "__main__":
    main()
