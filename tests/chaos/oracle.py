"""What a search must give, known beforehand without faults, and the judgment of what it gave."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from osrerank import connect
from tests.chaos.world import INDEX
from tests.workers import TINY

DEPTH = 10
QUERIES = 60
DOCUMENTS = 500
MIN_GAP = 1e-4
"""Between two scores of a query, so that no order hangs on the last digit of a float."""
SAME = 1e-3
GRACE_MS = 100.0
"""What a search may take beyond its deadline, or beyond the end of its first pass where that is later."""
WORDS = [
    *("salt", "water", "pressure", "blood", "wing", "heat", "flow", "drag", "bed", "rest", "fever", "drug", "river"),
    *("stone", "light", "bread", "glass", "train", "night", "music", "garden", "winter", "paper", "copper", "engine"),
    *("signal", "harbour", "forest", "sugar", "muscle"),
]


@dataclass(frozen=True, slots=True)
class Expected:
    """A query's hits.

    Attributes:
        first_pass: their ids in the first pass' order.
        reranked: in the model's.
        logits: of each.
    """

    first_pass: tuple[str, ...]
    reranked: tuple[str, ...]
    logits: Mapping[str, float]


def fill(url: str, *, copies: int = 1) -> None:
    """Make the index: one shard and copies of it, of the same texts for ever."""
    rng = random.Random(7)
    client = connect(url, timeout=60)
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    settings = {"number_of_shards": 1, "number_of_replicas": copies}
    fields = {"text": {"type": "text"}}
    client.indices.create(index=INDEX, body={"settings": settings, "mappings": {"properties": fields}})
    lines: list[dict[str, Any]] = []
    for number in range(DOCUMENTS):
        lines += [{"index": {"_id": str(number)}}, {"text": " ".join(rng.choices(WORDS, k=rng.randint(20, 90)))}]
    assert not client.bulk(index=INDEX, body=lines, refresh=True)["errors"]
    client.indices.forcemerge(index=INDEX, max_num_segments=1)
    client.cluster.health(index=INDEX, wait_for_status="green")
    client.close()


def expect(url: str) -> dict[str, Expected]:
    """Return what queries find, by the query, each with scores of clear order; a cluster without faults is asked."""
    rng = random.Random(11)
    client = connect(url, model=TINY, backend="onnx", timeout=60)
    expected_record: dict[str, Expected] = {}
    rerank = {"depth": DEPTH, "fields": ["text"], "blend": "replace"}
    while len(expected_record) < QUERIES:
        query = " ".join(rng.sample(WORDS, 3))
        plain = client.search(query, index=INDEX, size=DEPTH + 1, rerank={"pipeline": "none"})["hits"]["hits"]
        hits = client.search(query, index=INDEX, size=DEPTH, rerank=rerank)["hits"]["hits"]
        logits = {hit["_id"]: hit["_rerank"]["mono"]["logit"] for hit in hits}
        if _clear([hit["_score"] for hit in plain]) and _clear(list(logits.values())) and len(hits) == DEPTH:
            first_pass = tuple(hit["_id"] for hit in plain[:DEPTH])
            expected_record[query] = Expected(first_pass, tuple(logits), logits)
    client.close()
    return expected_record


def _clear(scores: Sequence[float]) -> bool:
    return all(after - before > MIN_GAP for before, after in pairwise(sorted(scores)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a search.

    Attributes:
        outcome: ``reranked``, ``partial``, ``first pass`` or ``failed``.
        why: the reason that the response has, without its numbers; of a failure the error's class.
        wrong: what must not be; empty where all is well.
        over_ms: what it took beyond its deadline, or beyond its first pass where that alone took longer.
    """

    outcome: str
    why: str
    wrong: tuple[str, ...]
    over_ms: float


def judge(record: Mapping[str, Any], deadline_ms: float, expected: Expected) -> Verdict:
    """Return the verdict on a client's record of a search."""
    over_ms = record["ms"] - max(deadline_ms, record["first_pass_ms"])
    if "error" in record:
        wrong = () if record["is_opensearch"] else (f"an error that is not OpenSearch's: {record['error']}",)
        return Verdict("failed", record["error"][0].rsplit(".", 1)[1], wrong, over_ms)
    keys = tuple(key for key, _ in record["hits"])
    applied, reason = record["rerank"]["applied"], record["rerank"]["reason"] or ""
    wrong = []
    if sorted(keys) != sorted(expected.first_pass):
        wrong.append(f"other hits than the first pass has: {keys}")
    for key, logit in record["hits"]:
        if logit is not None and abs(logit - expected.logits.get(key, 1e9)) > SAME:
            wrong.append(f"{key} has the logit {logit} of something else")
    if applied is True and keys != expected.reranked:
        wrong.append(f"unmarked: an order that is not the model's: {keys}")
    if applied is not True and not reason:
        wrong.append("not reranked, and no reason")
    if applied is False and keys != expected.first_pass:
        wrong.append(f"not reranked, and not in the first pass' order: {keys}")
    if applied == "partial" and not any(logit is not None for _, logit in record["hits"]):
        wrong.append("partial, and nothing was scored")
    outcome = {True: "reranked", "partial": "partial", False: "first pass"}[applied]
    why = "" if applied is True else re.sub(r"\d[\d.,]*", "N", reason)[:90]
    return Verdict(outcome, why, tuple(wrong), over_ms)


@dataclass
class Tally:
    """What a run has found so far."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    over: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a line of the log."""
        self.outcomes[line["client"], line["outcome"]] += 1
        if line["why"]:
            self.reasons[line["outcome"], line["why"]] += 1
        self.over.append(line["over_ms"])
        self.took.append(line["ms"])
        self.wrong += [f"search {line['number']} ({line['client']}): {reply_line}" for reply_line in line["wrong"]]

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        totals: Counter[str] = Counter()
        for (_, outcome), count in self.outcomes.items():
            totals[outcome] += count
        clients = sorted({client for client, _ in self.outcomes})
        late = [one for one in self.over if one > GRACE_MS]
        return {
            "searches": len(self.took),
            **totals,
            "by_client": {
                client: {outcome: self.outcomes[client, outcome] for outcome in totals} for client in clients
            },
            "reasons": {f"{outcome}: {reason}": count for (outcome, reason), count in self.reasons.most_common()},
            "unmarked_or_wrong": len(self.wrong),
            "median_ms": round(sorted(self.took)[len(self.took) // 2], 1) if self.took else 0,
            "slowest_ms": round(max(self.took, default=0), 1),
            "over_deadline_by_more_than_100_ms": {"count": len(late), "most_ms": round(max(late, default=0), 1)},
        }
