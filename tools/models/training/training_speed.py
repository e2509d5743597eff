"""Measure how many pairs a second ``osrerank train mono --on-states`` trains, once all texts are encoded.

python tools/models/training/training_speed.py ADAPTED [--pieces 128] [--batch 256] [--steps 20] [--threads 2]
[--states-profile standard]

It needs tools/models/joined in PYTHONPATH.

ADAPTED is what ``osrerank adapt --keep-weights`` makes, with joined layers. Texts are invented: each question has 8
documents of so many pieces. A step is all that the training does: tokenising, padding, the loss, gradients and
the optimiser.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from osrerank.scoring.states.record import PROFILES
from osrerank.training.examples.batches import MonoAssembly, Steps
from osrerank.training.examples.lists import Example
from osrerank.training.loop import Machine, Plan, Training
from osrerank.training.objective import RankingObjective
from osrerank.training.recipes import Recipe
from osrerank.training.weights.joined import BUDGET_TOKENS, on_states
from osrerank.training.weights.models import load_trainee

WORDS = ("time", "people", "water", "house", "world", "school", "state", "family", "music", "story", "paper", "night")
QUERY_WORDS = 8
DOCUMENTS = 8


def examples(count: int, pieces: int) -> list[Example]:
    """Return questions with documents of so many pieces, the first one relevant."""
    rng = random.Random(1)

    def text(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    relevance = (1, *[0] * (DOCUMENTS - 1))
    return [
        Example(text(QUERY_WORDS), tuple(text(pieces) for _ in relevance), relevance, str(number))
        for number in range(count)
    ]


def main() -> None:
    """Print pairs a second of each of three rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pieces", type=int, default=128, help="of a document")
    parser.add_argument("--batch", type=int, default=256, help="pairs of a step")
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--states-profile", choices=PROFILES, default="standard")
    parser.add_argument("--profile", action="store_true", help="print where the time of a fourth round goes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe(batch=options.batch, mine_at=0.0)
    trainee = load_trainee(options.model, recipe)
    network, card = on_states(trainee.network, trainee.card, options.model, PROFILES[options.states_profile])
    machine = Machine(recipe.precision)
    lists = examples(max(60, options.batch // DOCUMENTS), options.pieces)
    steps = Steps(MonoAssembly(trainee.builder, {}), recipe.batch, BUDGET_TOKENS, trainee.pad_id, lists=True)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(recipe, 5 * options.steps, Path(folder), "")
        training = Training(RankingObjective(network, card.head, recipe), plan, machine)

        def run(count: int) -> float:
            """Return the seconds that so many steps take."""
            began = time.perf_counter()
            training.run(steps.made(_endless(lists)), training.state.step + count, None)
            return time.perf_counter() - began

        run(-(-len(lists) * DOCUMENTS // recipe.batch))
        for _ in range(3):
            pairs = recipe.batch * options.steps
            print(f"{pairs / run(options.steps):.0f} pairs a second, {network.encoded} texts encoded", flush=True)
        if options.profile:
            with torch.profiler.profile() as profiled:
                run(options.steps)
            print(profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def _endless(lists: list[Example]) -> Iterator[Example]:
    while True:
        yield from lists


if __name__ == "__main__":
    main()
