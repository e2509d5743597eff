"""Measure stored vectors, a cross-encoder, and vectors-mono by how many candidates the cross-encoder reads.

python -m tools.collections.vectors_mono quality SETS MODEL [--vector-model NAME] [--queries 50] [--json FILE]
python -m tools.collections.vectors_mono speed SETS MODEL [--queries 10] [--rounds 3]
python -m tools.collections.vectors_mono random FOLDER [--shape minilm-l6]

SETS is what `tools/models/joined/sets.py` writes; MODEL a cross-encoder, named as for ``--model``. ``quality`` scores
each query's candidates once with both models and computes every depth from that, as `osrerank tradeoff` does. ``speed``
takes the ways in turns in one process, so that another load of the machine meets all alike. ``random`` writes a
cross-encoder of random weights with an int8 graph: as fast as a trained one.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

DEPTH, CUTOFF = 100, 10
READ, WEIGHTS = (5, 10, 20, 30, 50, 100), (0.0, 0.25, 0.5, 1.0, 2.0)
"""Candidates of the vectors' order that the cross-encoder reads, and weights of the vectors' logit beside its own."""
FIRST_PASS_WEIGHTS = (1.0, 2.0, 4.0, 8.0)
"""Weights of BM25's best score beside the cross-encoder's logit, in logits."""
BOTH = Rerank(pipeline="vectors-mono", depth=DEPTH, mono_depth=DEPTH, language_guard=False)


def rankings(file: Path, most: int) -> Iterator[tuple[Ranking, Mapping[str, int]]]:
    """Yield a sample of a set's queries with BM25's candidates, and each one's judgments."""
    content = json.loads(file.read_bytes())
    asked = sorted(content["queries"])
    for query_id in random.Random(1).sample(asked, min(most, len(asked))):
        found = sorted(content["candidates"][query_id].items(), key=lambda one: -one[1])[:DEPTH]
        candidates = []
        for rank, (doc_id, score) in enumerate(found, start=1):
            trace = (StageScore(FIRST_PASS, score, rank, squash(score)),)
            candidates.append(Candidate(doc_id, " ".join(content["texts"][doc_id]), score, rank, trace))
        if candidates:
            yield Ranking(Query(query_id, content["queries"][query_id]), tuple(candidates)), content["qrels"][query_id]


def orders(first_pass: Ranking, scored: Ranking) -> dict[str, list[str]]:
    """Return the ids in each order: BM25's, the vectors', the cross-encoder's, and both at each depth and weight."""
    traces = {candidate.doc_id: {entry.stage: entry for entry in candidate.trace} for candidate in scored.candidates}
    found = [candidate.doc_id for candidate in first_pass.candidates]
    before = {doc_id: entries.get("blend") or entries.get("vectors") for doc_id, entries in traces.items()}
    logits = {doc_id: entries["mono"].score for doc_id, entries in traces.items() if "mono" in entries}
    by_vectors = sorted(found, key=lambda doc_id: entry.rank if (entry := before[doc_id]) else DEPTH + 1)
    best = max((candidate.score for candidate in first_pass.candidates), default=0.0) or 1.0
    bm25 = {candidate.doc_id: candidate.score / best for candidate in first_pass.candidates}
    made = {"BM25": found, "vectors": by_vectors, "mono": _by(logits, found, len(found))}
    for weight in FIRST_PASS_WEIGHTS:
        sums = {doc_id: logit + weight * bm25[doc_id] for doc_id, logit in logits.items()}
        made[f"mono, BM25 {weight:g}"] = _by(sums, found, len(found))
    for depth in READ:
        for weight in WEIGHTS:
            sums = {
                doc_id: logit + weight * (entry.score if (entry := before[doc_id]) else 0.0)
                for doc_id, logit in logits.items()
            }
            made[f"vectors-mono@{depth}" + (f", weight {weight:g}" if weight else "")] = _by(sums, by_vectors, depth)
    return made


def _by(scores: Mapping[str, float], ids: Sequence[str], depth: int) -> list[str]:
    """Return ids with the best of them by their scores."""
    best = [doc_id for doc_id in ids[:depth] if doc_id in scores]
    rest = [doc_id for doc_id in ids if doc_id not in best]
    return [*sorted(best, key=lambda doc_id: -scores[doc_id]), *rest]


def quality(options: argparse.Namespace) -> dict[str, Any]:
    """Print nDCG@10 of every order on each set; return the values of each query."""
    values: dict[str, dict[str, list[float]]] = {}
    with closing(service_of(options.model, options.vector_model)) as service:
        for file in sorted(options.sets.glob("*.json")):
            own = values.setdefault(file.stem, {})
            for ranking, relevance in rankings(file, options.queries):
                scored = service.rerank(ranking, BOTH, NEVER)
                if not all(report.applied for report in scored.reports):
                    raise SystemExit(f"{file.stem} {ranking.query.query_id}: {scored.reports}")
                for name, ids in orders(ranking, scored).items():
                    own.setdefault(name, []).append(ndcg(ids, relevance, CUTOFF))
            print(f"{file.stem}: {len(own['BM25'])} queries", flush=True)
    _table(values)
    return values


def _table(values: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Print a row for each order, and whether vectors-mono at 20 differs from the others."""
    sets = list(values)
    print("\n| | mean |", " | ".join(sets), "|")
    print("|---" * (len(sets) + 2) + "|")
    for name in values[sets[0]]:
        means = [fmean(values[one][name]) for one in sets]
        print(f"| {name} | {fmean(means):.4f} |", " | ".join(f"{mean:.4f}" for mean in means), "|")
    joined = {name: np.array([value for one in sets for value in values[one][name]]) for name in values[sets[0]]}
    for name in ("vectors", "mono"):
        found = decide(joined[name], joined["vectors-mono@20"])
        print(
            f"vectors-mono@20 against {name}: {found.difference:+.4f}, {found.better} better, {found.worse} worse, "
            f"p = {found.p_value:.4f}"
        )


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Print the median time of each way to rerank a hundred candidates, and what it is of the cross-encoder's alone."""
    asked = [one for one, _ in rankings(options.sets / "dl21.json", options.queries)]
    mono = Rerank(pipeline="mono", depth=DEPTH, language_guard=False)
    with TemporaryDirectory() as folder:
        known = service_of(options.model, options.vector_model, vectors_folder=Path(folder))
        unknown = service_of(options.model, options.vector_model, vectors="off")
        for one in asked:  # which stores the vectors
            known.rerank(one, Rerank(pipeline="vectors", depth=DEPTH), NEVER)
        ways: dict[str, Callable[[Ranking], Any]] = {
            f"mono@{DEPTH}": lambda one: known.rerank(one, mono, NEVER),
            "vectors, known": lambda one: known.rerank(one, Rerank(pipeline="vectors"), NEVER),
            "vectors, unknown": lambda one: unknown.rerank(one, Rerank(pipeline="vectors"), NEVER),
        }
        for depth in (10, 20, 50):
            both = Rerank(pipeline="vectors-mono", depth=DEPTH, mono_depth=depth, language_guard=False)
            ways[f"vectors-mono@{depth}, known"] = lambda one, both=both: known.rerank(one, both, NEVER)  # type: ignore[misc]
            if depth == 20:
                ways["vectors-mono@20, unknown"] = lambda one, both=both: unknown.rerank(one, both, NEVER)  # type: ignore[misc]
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(1 + options.rounds):
            for one in asked if turn else asked[:1]:  # the first turn warms up
                for name, way in ways.items():
                    began = time.perf_counter()
                    way(one)
                    times[name] += [1000 * (time.perf_counter() - began)] if turn else []
        known.close()
        unknown.close()
    alone = median(times[f"mono@{DEPTH}"])
    print("| | median ms | of mono@100 |\n|---|---|---|")
    for name, took in times.items():
        print(f"| {name} | {median(took):.1f} | {median(took) / alone:.3f} |")
    return times


def random_model(options: argparse.Namespace) -> None:
    """Write a cross-encoder of random weights, with an int8 graph."""
    from osrerank.cli import main as command  # noqa: PLC0415 - only here
    from tools.models.families import FAMILIES, SHAPES, make  # noqa: PLC0415 - torch

    texts = [
        (f"what is topic {number}", f"Topic {number % 7} is about {number * 37 % 11} things.") for number in range(50)
    ]
    with TemporaryDirectory() as folder:
        checkpoint = make(Path(folder) / "checkpoint", FAMILIES["BERT"], SHAPES[options.shape], texts)
        command(["export", str(checkpoint), str(options.folder), "--precision", "int8", "--no-self-check"])


def service_of(model: str, vector_model: str | None, **settings: Any) -> RerankService:
    """Return the models of a measurement."""
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
        command.add_argument("--queries", type=int, default=50 if name == "quality" else 10, help="of each set")
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
