"""Document states: documents a second that are built on the GPU, by length, and the hours of whole collections."""

import functools
from collections.abc import Iterator
from dataclasses import replace

from osrerank.scoring.card import Joining
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_card
from osrerank.scoring.states.in_torch import TorchMaker
from osrerank.scoring.states.record import PROFILES
from osrerank.types import NEVER
from tools.gpu.measure import peak_memory, seconds
from tools.gpu.task import Found, Part, Task
from tools.gpu.texts import Words

LENGTHS = (64, 128, 256, 512)
PASSAGES = 0
COLLECTIONS = {"MS MARCO v1, 8.8 M": 8_841_823, "MS MARCO v2, 138 M": 138_364_198}
JOINED_LAYERS = (0, 1)
"""Of mono as it is shipped, whose records are a vector each; and of one joined layer, with states of 8 bits."""


def parts(task: Task) -> Iterator[Part]:
    """Yield the lengths, passages first."""
    for layers in JOINED_LAYERS:
        for length in task.choose((PASSAGES, *LENGTHS), (PASSAGES,)):
            yield Part(f"{layers} joined, {length or 'passages'}", 12, functools.partial(build, task, layers, length))


def build(task: Task, layers: int, length: int) -> Found:
    """Return the documents a second, from their texts to their records."""
    folder = task.luggage / "models" / "mono"
    card = read_card(folder)
    joining = card.joining if not layers else Joining(layers, rows="all", pooling="mean", document_prefix="passage: ")
    card = replace(card, joining=joining, max_tokens=length or 512, max_query_tokens=length or 512)
    builder = InputBuilder.load(folder, card)
    count = task.choose(200_000, 600) // (length or 96)
    words = Words(task.luggage / "code")
    texts = [words.piece(length + 20) if length else words.passage() for _ in range(count)]
    with peak_memory() as memory:
        maker = TorchMaker.load(folder, card, builder, PROFILES["standard"], "auto")
        made = maker.make(texts, NEVER)
        if made.failures:
            raise RuntimeError(f"{len(made.failures)} records failed: {next(iter(made.failures.values()))}")
        taken = seconds(lambda: maker.make(texts, NEVER), task.choose(2, 1))
        most = memory()
    rate = count / taken
    size = sum(len(record.body()) for record in made.records.values()) / count
    found = {"documents": count, "documents/s": round(rate, 1), "bytes a record": round(size), "MiB": most}
    if length == PASSAGES:
        found["hours"] = {name: round(number / rate / 3600, 2) for name, number in COLLECTIONS.items()}
    return found
