"""Race a cross-encoder's int8 and fp32 graphs against other libraries with the same weights, on the same pairs.

python -m venv peers && peers/bin/pip install -r tools/bench/peers.txt    # the other libraries: 2.2 GB
python -m tools.bench CHECKPOINT --peers peers --candidates candidates.jsonl
python -m tools.bench CHECKPOINT                                          # only this library, on invented texts

CHECKPOINT is a classifier's directory with safetensors. All score the same pairs in turns, so that other load on the
machine slows all of them, and medians are printed. Each other library has its fastest batch size.
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
from tools.bench.peers import Peer, make_peers
from tools.bench.race import (
    BenchQuery,
    Contender,
    Ours,
    from_candidates,
    mean_tokens,
    shared_top,
    synthetic,
    take_turns,
)
from tools.machine import machine


def at_their_best(contenders: Sequence[Contender], task: BenchQuery, missing: dict[str, str]) -> Iterator[Contender]:
    """Give each peer its best batch size; yield the contenders without those that fail, which become missing."""
    for contender in contenders:
        try:
            if isinstance(contender, Peer):
                contender.choose_batch(task)
        except InferenceError as error:
            missing[contender.name] = str(error)
        else:
            yield contender


def rows(label: str, tasks: Sequence[BenchQuery], contenders: Sequence[Contender], rounds: int) -> Iterator[str]:
    """Yield a row for each contender; orders are compared with transformers' own, if it is there, else our fp32's."""
    found = take_turns(contenders, tasks, rounds)
    reference = min(found, key=lambda name: (not name.startswith("transformers"), "fp32" not in name))
    pairs = sum(len(task.documents) for task in tasks)
    for contender in contenders:
        seconds, cpu_seconds, values = found[contender.name]
        rates = f"{pairs / statistics.median(seconds):.1f} | {pairs / statistics.median(cpu_seconds):.1f}"
        agreement = shared_top(values, found[reference].values)
        yield f"| {contender.name} ({contender.version}) | {label} | {rates} | {agreement:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--peers", type=Path, help="the environment of the other libraries")
    parser.add_argument("--candidates", type=Path, help="JSON lines, as of `osrerank rerank`; else invented texts")
    parser.add_argument("--words", type=int, nargs="+", default=[50, 250], help="mean words of invented documents")
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--depth", type=int, default=50, help="documents of each query")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="CPU threads of each library")
    arguments = parser.parse_args()
    size = {"queries": arguments.queries, "depth": arguments.depth}
    workloads = {f"invented, {words} words": synthetic(words, **size) for words in arguments.words}
    if arguments.candidates:
        workloads = {arguments.candidates.name: from_candidates(arguments.candidates, **size)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders: list[Contender] = []
        for precision in ("fp32", "int8"):
            made = Path(folder) / precision
            export_model(arguments.checkpoint, made, ExportOptions(name=arguments.checkpoint.name, precision=precision))
            contenders.append(Ours(made, arguments.threads))
        missing: dict[str, str] = {}
        if arguments.peers:
            most = read_card(made).max_tokens
            peers, missing = make_peers(
                arguments.checkpoint, arguments.peers, threads=arguments.threads, max_tokens=most
            )
            contenders += peers
        for contender in contenders:
            stack.callback(contender.close)
        print("| | pairs | pairs/s | pairs a CPU second | shared top 10 |\n|---|---|---|---|---|")
        for label, tasks in workloads.items():
            described = f"{label}, {mean_tokens(made, tasks):.0f} tokens"
            able = list(at_their_best(contenders, tasks[0], missing))
            for row in rows(described, tasks, able, arguments.rounds):
                print(row, flush=True)
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    print(machine())


if __name__ == "__main__":
    main()
