"""Race a cross-encoder's int8 and fp32 graphs against other libraries with the same weights, on the same pairs.

python -m venv peers && peers/bin/pip install -r tools/bench/peers.txt    # the other libraries: 2.2 GB
python -m tools.bench CHECKPOINT --peers peers --candidates candidates.jsonl
python -m tools.bench CHECKPOINT                                          # only this library, on invented texts

CHECKPOINT is the directory of a classifier with safetensors. The libraries score the same pairs in turns, so that other
load on the machine slows all of them, and medians are printed. Each other library uses its fastest batch size.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from osrerank._platform import usable_cores
from osrerank.errors import InferenceError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card_file import read_card
from tools.bench.peers import Peer, load_peers
from tools.bench.race import (
    BenchQuery,
    Contender,
    OsrerankContender,
    generate_queries,
    mean_tokens,
    race,
    read_queries,
    top_overlap,
)
from tools.machine import machine


def choose_batch_sizes(
    contenders: Sequence[Contender], query: BenchQuery, errors: dict[str, str]
) -> Iterator[Contender]:
    """Set each peer's fastest batch size; yield the contenders that work, and add the errors of the others."""
    for contender in contenders:
        try:
            if isinstance(contender, Peer):
                contender.choose_batch_size(query)
        except InferenceError as error:
            errors[contender.name] = str(error)
        else:
            yield contender


def rows(label: str, queries: Sequence[BenchQuery], contenders: Sequence[Contender], rounds: int) -> Iterator[str]:
    """Yield a table row for each contender, which compares its order with that of transformers, or else our fp32."""
    results = race(contenders, queries, rounds)
    reference = min(results, key=lambda name: (not name.startswith("transformers"), "fp32" not in name))
    n_pairs = sum(len(query.documents) for query in queries)
    for contender in contenders:
        seconds, cpu_seconds, scores = results[contender.name]
        rates = f"{n_pairs / statistics.median(seconds):.1f} | {n_pairs / statistics.median(cpu_seconds):.1f}"
        overlap = top_overlap(scores, results[reference].scores)
        yield f"| {contender.name} ({contender.version}) | {label} | {rates} | {overlap:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--peers", type=Path, help="the environment of the other libraries")
    parser.add_argument("--candidates", type=Path, help="candidates for `osrerank rerank`; else invented texts")
    parser.add_argument("--words", type=int, nargs="+", default=[50, 250], help="mean words of invented documents")
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--depth", type=int, default=50, help="documents of each query")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="CPU threads of each library")
    arguments = parser.parse_args()
    size = {"n_queries": arguments.queries, "depth": arguments.depth}
    workloads = {f"invented, {words} words": generate_queries(words, **size) for words in arguments.words}
    if arguments.candidates:
        workloads = {arguments.candidates.name: read_queries(arguments.candidates, **size)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders: list[Contender] = []
        for precision in ("fp32", "int8"):
            model = Path(folder) / precision
            export_model(
                arguments.checkpoint, model, ExportOptions(name=arguments.checkpoint.name, precision=precision)
            )
            contenders.append(OsrerankContender(model, arguments.threads))
        errors: dict[str, str] = {}
        if arguments.peers:
            limits = {"threads": arguments.threads, "max_tokens": read_card(model).max_tokens}
            peers, errors = load_peers(arguments.checkpoint, arguments.peers, **limits)
            contenders += peers
        for contender in contenders:
            stack.callback(contender.close)
        print("| | pairs | pairs/s | pairs a CPU second | shared top 10 |\n|---|---|---|---|---|")
        for label, queries in workloads.items():
            long_label = f"{label}, {mean_tokens(model, queries):.0f} tokens"
            working = list(choose_batch_sizes(contenders, queries[0], errors))
            for row in rows(long_label, queries, working, arguments.rounds):
                print(row, flush=True)
    for name, reason in errors.items():
        print(f"missing: {name}: {reason}")
    print(machine())


if __name__ == "__main__":
    main()
