"""Choose what a document that only the search by vectors found counts as beside BM25, on development sets.

python tools/models/joined/second_source.py DATA

docs/research/candidates.md has the protocol. DATA holds the collections in folders of their own. Documents' states are
kept as the settings say, so that a second run takes a minute.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from osrerank.evaluation.basic import ndcg
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.training.examples.first_pass import temporary_search
from osrerank.training.examples.lists import text_of
from osrerank.types import NEVER
from sets import Complete, kept_claims, split_of, squad_questions

COLLECTIONS: Mapping[str, Callable[[Path], Complete]] = {
    "squad": squad_questions,
    "scifact": kept_claims,
    "checkthat": lambda data: split_of(data / "clef2020-checkthat-t2", "dev"),
}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the 100th BM25 score, that a document beyond it counts as."""
DEPTH = 100
AT_ONCE = 64
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with what both searches found.

    Attributes:
        first_pass: document -> BM25's score, best first.
        nearest: documents by their vectors, best first.
        logits: document -> the model's logit, of all of them.
        relevance: document -> grade.
    """

    first_pass: Mapping[str, float]
    nearest: Sequence[str]
    logits: Mapping[str, float]
    relevance: Mapping[str, int]

    def united(self, share: float, weight: float) -> float:
        """Return nDCG@10 of both searches' documents, those by vectors alone counting as a share of the last score."""
        bound = min(self.first_pass.values()) if len(self.first_pass) >= DEPTH else 0.0
        return self._value((*self.first_pass, *self.nearest), share * bound, weight)

    def alone(self, weight: float) -> float:
        """Return nDCG@10 of BM25's documents, reranked."""
        return self._value(tuple(self.first_pass), 0.0, weight)

    def _value(self, found: Sequence[str], unknown: float, weight: float) -> float:
        best = max(self.first_pass.values(), default=0.0) or 1.0
        scores = {one: self.logits[one] + weight * self.first_pass.get(one, unknown) / best for one in found}
        return ndcg(sorted(scores, key=lambda one: -scores[one]), self.relevance)


def main() -> None:
    """Print the values of each set, and how far each share is behind the best one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted(COLLECTIONS))
    options = parser.parse_args()
    service = RerankService(Settings.load())
    weight = service.scorer().advice.first_pass_weight
    values: dict[float, list[list[float]]] = {share: [] for share in SHARES}
    for name in options.only or COLLECTIONS:
        asked = list(asked_of(service, COLLECTIONS[name](options.data)))
        alone = fmean(one.alone(weight) for one in asked)
        for share in SHARES:
            values[share].append([one.united(share, weight) for one in asked])
        shown = ", ".join(f"{share:g}: {fmean(values[share][-1]):.4f}" for share in SHARES)
        print(f"{name}: {len(asked)} queries, BM25 reranked {alone:.4f}, both by share of the last score {shown}")
    means = {share: fmean(map(fmean, sets)) for share, sets in values.items()}
    best = max(means, key=lambda share: means[share])
    for share, mean in means.items():
        error = standard_error(values[best], values[share])
        print(f"share {share:g}: mean {mean:.4f}, {means[best] - mean:.4f} behind {best:g}, standard error {error:.4f}")


def asked_of(service: RerankService, collection: Complete) -> Iterator[Asked]:
    """Yield each judged query with what both searches find in a whole collection."""
    texts = {doc_id: f"{title} {body}".strip() for doc_id, (title, body) in collection.documents.items()}
    ids, made = list(texts), service.text_vectors()
    parts = [ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE)]
    vectors = np.concatenate([made.documents([texts[one] for one in part]) for part in parts])
    read = ((one, text_of({"title": title, "text": body})) for one, (title, body) in collection.documents.items())
    with temporary_search(read, min(DEPTH, len(ids))) as search:
        for query in collection.queries:
            relevance = collection.qrels.get(query.query_id, {})
            if not any(grade > 0 for grade in relevance.values()):
                continue
            body = {"query": {"match": {"text": query.text}}, "size": DEPTH, "_source": False}
            hits = search.client.search(index=search.index, body=body)["hits"]["hits"]
            first_pass = {hit["_id"]: float(hit["_score"]) for hit in hits}
            nearest = [ids[place] for place in first(vectors @ made.query(query.text))]
            found = list(dict.fromkeys((*first_pass, *nearest)))
            logits = service.score(query.text, [texts[one] for one in found], NEVER, cached=False).values
            yield Asked(first_pass, nearest, dict(zip(found, logits.tolist(), strict=True)), relevance)


def first(cosines: npt.NDArray[np.float32]) -> list[int]:
    """Return the places of the largest hundred, in order."""
    return np.argsort(-cosines, kind="stable")[:DEPTH].tolist()  # type: ignore[no-any-return]


def standard_error(best: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Return the bootstrap's standard error of the difference of two means over sets, queries drawn within sets."""
    draw = random.Random(0)
    pairs = [[a - b for a, b in zip(one, two, strict=True)] for one, two in zip(best, other, strict=True)]
    return stdev(fmean(fmean(draw.choices(one, k=len(one))) for one in pairs) for _ in range(DRAWS))


if __name__ == "__main__":
    main()
