"""Compare the pipelines vectors, mono and vectors-mono, by the number of candidates that the cross-encoder scores.

python -m tools.collections.vectors_mono quality SETS MODEL [--vector-model NAME] [--queries 50] [--json FILE]
python -m tools.collections.vectors_mono speed SETS MODEL [--queries 10] [--rounds 3]
python -m tools.collections.vectors_mono random FOLDER [--shape minilm-l6]

SETS is the output of `tools/models/joined/sets.py`; MODEL is a cross-encoder, as for ``--model``. ``quality`` scores
the candidates of each query once with both models, and computes all depths from these scores. ``speed`` runs the
pipelines in turns, so that other load on the machine slows all of them. ``random`` writes a cross-encoder with random
weights and an int8 graph, which is as fast as a trained one.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from osrerank.decision.advice.verdict import decide
from osrerank.evaluation.basic import ndcg
from osrerank.options.rerank import Rerank
from osrerank.response import FIRST_PASS, squash
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import NEVER, Candidate, Query, Ranking, StageScore

DEPTH = 100
CUTOFF = 10
MONO_DEPTHS = (5, 10, 20, 30, 50, 100)
"""Numbers of candidates that the cross-encoder scores."""
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Weights of the bi-encoder's logit in the sum with the cross-encoder's."""
FIRST_PASS_WEIGHTS = (1.0, 2.0, 4.0, 8.0)
"""Weights of BM25's best score in the sum with the cross-encoder's logit, in logits."""
BOTH = Rerank(pipeline="vectors-mono", depth=DEPTH, mono_depth=DEPTH, language_guard=False)


def sample_rankings(file: Path, max_queries: int) -> Iterator[tuple[Ranking, Mapping[str, int]]]:
    """Yield the BM25 rankings of a sample of a set's queries, each with its judgments."""
    content = json.loads(file.read_bytes())
    query_ids = sorted(content["queries"])
    for query_id in random.Random(1).sample(query_ids, min(max_queries, len(query_ids))):
        best = sorted(content["candidates"][query_id].items(), key=lambda item: -item[1])[:DEPTH]
        candidates = []
        for rank, (doc_id, score) in enumerate(best, start=1):
            trace = (StageScore(FIRST_PASS, score, rank, squash(score)),)
            candidates.append(Candidate(doc_id, " ".join(content["texts"][doc_id]), score, rank, trace))
        if candidates:
            yield Ranking(Query(query_id, content["queries"][query_id]), tuple(candidates)), content["qrels"][query_id]


def all_orders(first_pass: Ranking, reranked: Ranking) -> dict[str, list[str]]:
    """Return the ids in each order: BM25's, the vectors', the cross-encoder's, and both at each depth and weight."""
    traces = {candidate.doc_id: {entry.stage: entry for entry in candidate.trace} for candidate in reranked.candidates}
    ids = [candidate.doc_id for candidate in first_pass.candidates]
    vector_entries = {doc_id: entries.get("blend") or entries.get("vectors") for doc_id, entries in traces.items()}
    logits = {doc_id: entries["mono"].score for doc_id, entries in traces.items() if "mono" in entries}
    by_vectors = sorted(ids, key=lambda doc_id: entry.rank if (entry := vector_entries[doc_id]) else DEPTH + 1)
    best_score = max((candidate.score for candidate in first_pass.candidates), default=0.0) or 1.0
    bm25 = {candidate.doc_id: candidate.score / best_score for candidate in first_pass.candidates}
    orders = {"BM25": ids, "vectors": by_vectors, "mono": _rerank_top(ids, logits, len(ids))}
    for weight in FIRST_PASS_WEIGHTS:
        sums = {doc_id: logit + weight * bm25[doc_id] for doc_id, logit in logits.items()}
        orders[f"mono, BM25 {weight:g}"] = _rerank_top(ids, sums, len(ids))
    for depth in MONO_DEPTHS:
        for weight in WEIGHTS:
            sums = {
                doc_id: logit + weight * (entry.score if (entry := vector_entries[doc_id]) else 0.0)
                for doc_id, logit in logits.items()
            }
            name = f"vectors-mono@{depth}" + (f", weight {weight:g}" if weight else "")
            orders[name] = _rerank_top(by_vectors, sums, depth)
    return orders


def _rerank_top(ids: Sequence[str], scores: Mapping[str, float], depth: int) -> list[str]:
    """Sort the first ``depth`` ids that have a score by it, and append the others."""
    top = [doc_id for doc_id in ids[:depth] if doc_id in scores]
    rest_ids = [doc_id for doc_id in ids if doc_id not in top]
    return [*sorted(top, key=lambda doc_id: -scores[doc_id]), *rest_ids]


def quality(options: argparse.Namespace) -> dict[str, Any]:
    """Print nDCG@10 of every order on each set; return the values of each query."""
    values: dict[str, dict[str, list[float]]] = {}
    with closing(create_service(options.model, options.vector_model)) as service:
        for file in sorted(options.sets.glob("*.json")):
            set_values = values.setdefault(file.stem, {})
            for ranking, relevance in sample_rankings(file, options.queries):
                reranked = service.rerank(ranking, BOTH, NEVER)
                if not all(report.applied for report in reranked.reports):
                    raise SystemExit(f"{file.stem} {ranking.query.query_id}: {reranked.reports}")
                for name, ids in all_orders(ranking, reranked).items():
                    set_values.setdefault(name, []).append(ndcg(ids, relevance, CUTOFF))
            print(f"{file.stem}: {len(set_values['BM25'])} queries", flush=True)
    _print_table(values)
    return values


def _print_table(values: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Print a row for each order, and a significance test of vectors-mono at 20 against vectors and mono."""
    sets = list(values)
    print("\n| | mean |", " | ".join(sets), "|")
    print("|---" * (len(sets) + 2) + "|")
    for name in values[sets[0]]:
        means = [fmean(values[set_name][name]) for set_name in sets]
        print(f"| {name} | {fmean(means):.4f} |", " | ".join(f"{mean:.4f}" for mean in means), "|")
    pooled = {name: np.array([value for key in sets for value in values[key][name]]) for name in values[sets[0]]}
    for name in ("vectors", "mono"):
        verdict = decide(pooled[name], pooled["vectors-mono@20"])
        print(
            f"vectors-mono@20 against {name}: {verdict.difference:+.4f}, {verdict.better} better, "
            f"{verdict.worse} worse, p = {verdict.p_value:.4f}"
        )


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Print the median time of each pipeline for 100 candidates, also relative to the cross-encoder alone."""
    rankings = [ranking for ranking, _ in sample_rankings(options.sets / "dl21.json", options.queries)]
    vectors = Rerank(pipeline="vectors", depth=DEPTH)
    with TemporaryDirectory() as folder:
        stored = create_service(options.model, options.vector_model, vectors_folder=Path(folder))
        unstored = create_service(options.model, options.vector_model, vectors="off")
        for ranking in rankings:  # stores the vectors
            stored.rerank(ranking, vectors, NEVER)
        pipelines: dict[str, tuple[RerankService, Rerank]] = {
            f"mono@{DEPTH}": (stored, Rerank(pipeline="mono", depth=DEPTH, language_guard=False)),
            "vectors, stored": (stored, Rerank(pipeline="vectors")),
            "vectors, not stored": (unstored, Rerank(pipeline="vectors")),
        }
        for depth in (10, 20, 50):
            both = Rerank(pipeline="vectors-mono", depth=DEPTH, mono_depth=depth, language_guard=False)
            pipelines[f"vectors-mono@{depth}, stored"] = (stored, both)
            if depth == 20:
                pipelines["vectors-mono@20, not stored"] = (unstored, both)
        times: dict[str, list[float]] = {name: [] for name in pipelines}
        for service, rerank in pipelines.values():
            service.rerank(rankings[0], rerank, NEVER)  # warms up
        for _round in range(options.rounds):
            for ranking in rankings:
                for name, (service, rerank) in pipelines.items():
                    start_s = time.perf_counter()
                    service.rerank(ranking, rerank, NEVER)
                    times[name].append(1000 * (time.perf_counter() - start_s))
        stored.close()
        unstored.close()
    mono_ms = median(times[f"mono@{DEPTH}"])
    print("| | median ms | of mono@100 |\n|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {median(values):.1f} | {median(values) / mono_ms:.3f} |")
    return times


def random_model(options: argparse.Namespace) -> None:
    """Write a cross-encoder with random weights and an int8 graph."""
    from osrerank.cli import main as command  # noqa: PLC0415 - only here
    from tools.models.families import FAMILIES, SHAPES, make  # noqa: PLC0415 - torch

    texts = [
        (f"what is topic {number}", f"Topic {number % 7} is about {number * 37 % 11} things.") for number in range(50)
    ]
    with TemporaryDirectory() as folder:
        checkpoint = make(Path(folder) / "checkpoint", FAMILIES["BERT"], SHAPES[options.shape], texts)
        command(["export", str(checkpoint), str(options.folder), "--precision", "int8", "--no-self-check"])


def create_service(model: str, vector_model: str | None, **settings: Any) -> RerankService:
    """Create a service without a score cache."""
    return RerankService(Settings.load(model=model, vector_model=vector_model, cache_local_mb=0, **settings))


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("quality", quality), ("speed", speed)):
        command = commands.add_parser(name)
        command.add_argument("sets", type=Path)
        command.add_argument("model")
        command.add_argument("--vector-model")
        command.add_argument("--queries", type=int, default=50 if name == "quality" else 10, help="queries per set")
        command.add_argument("--rounds", type=int, default=3)
        command.add_argument("--json", type=Path)
        command.set_defaults(run=run)
    command = commands.add_parser("random")
    command.add_argument("folder", type=Path)
    command.add_argument("--shape", default="minilm-l6")
    command.set_defaults(run=random_model, json=None)
    options = parser.parse_args()
    values = options.run(options)
    if options.json:
        options.json.write_text(json.dumps(values), "utf-8")


if __name__ == "__main__":
    main()
