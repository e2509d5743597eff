"""Speed: pairs and tokens a second and the use of the matrix peak, beside what others would install, in one process.

Every way is timed from texts to floats, after a warm-up, median of the rounds; "network alone" begins with token ids.
Peers have their best batch. Shapes of BERT have random weights, on which speed does not depend.
"""

import contextlib
import functools
import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.model_files import read_card
from osrerank.scoring.torch_scorer import TorchBackend
from tools.gpu.measure import DEVICE, HALF, ON_GPU, flops, matrix_peak, peak_memory, seconds
from tools.gpu.networks import SHAPES, make
from tools.gpu.task import Found, Part, Task
from tools.gpu.texts import Words

MONO: tuple[int, int, int, int] = (384, 12, 12, 1536)
LENGTHS = (512, 128, 64, 256)
PASSAGES = 0
"""In place of a length: lengths as MS MARCO's passages have them, 96 tokens on average."""
PEER_SECONDS = 8.0
NOMINAL_BF16 = 989e12
"""FLOP/s of an H100 or H200 in bf16 without sparsity, as its maker has it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Queries with their texts, and the sequences that they are for a model."""

    queries: list[tuple[str, list[str]]]
    sequences: list[Tokens]
    max_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, without padding."""
        return sum(len(tokens.ids) for tokens in self.sequences)


def parts(task: Task) -> Iterator[Part]:
    """Yield what is timed, in the order of its value."""
    shapes = task.choose(("base", "large", "minilm-l6"), ("tiny",))
    cells = [("base", 512), ("base", PASSAGES), ("large", 512), ("mono", PASSAGES)]
    cells += [(shape, length) for length in (PASSAGES, *LENGTHS) for shape in shapes]
    for shape, length in dict.fromkeys(task.choose(cells, [("tiny", 64), ("mono", PASSAGES)])):
        cell = functools.partial(_cell, task, shape, length)
        yield Part(f"{shape}, {length or 'passages'}", 25 if shape == "large" else 20, cell)
    yield Part("kernels, base, 512", 15, functools.partial(kernels, task, "base", 512))
    yield Part("two processes, base", 30, functools.partial(two_processes, task))
    for shape, length in task.choose((("base", 512), ("base", 128), ("large", 512)), (("tiny", 64),)):
        yield Part(f"compiled, {shape}, {length}", 60, functools.partial(compiled, task, shape, length))


def _model(task: Task, shape: str) -> Path:
    mono = task.luggage / "models" / "mono"
    if shape == "mono":
        return mono
    shape = task.choose(shape, "tiny")
    return make(task.scratch / shape, SHAPES[shape], mono / "tokenizer.json")


def load_of(task: Task, folder: Path, length: int, depth: int = 100) -> Load:
    """Return texts that are so many tokens with their query, or passages."""
    words = Words(task.luggage / "code")
    pairs = max(depth, task.choose(400_000 if "large" in folder.name else 1_000_000, 2_000) // (length or 96))
    queries = words.queries(max(1, pairs // depth), task.choose(depth, 10), words=length and length + 20)
    builder = InputBuilder.load(folder, card_of(folder, length))
    sequences = [
        builder.mono(query, document)
        for text, documents in queries
        for query in [builder.query(text)]
        for document in builder.documents(documents, query)
    ]
    return Load(queries, sequences, length or 512)


def card_of(folder: Path, length: int) -> ModelCard:
    """Return a model's card with another length, a joined one's as it is."""
    card = read_card(folder)
    if card.layout == "joined" or not length:
        return card
    return replace(card, max_tokens=length, max_query_tokens=min(64, length - 1))


def _cell(task: Task, shape: str, length: int) -> Found:
    folder = _model(task, shape)
    load = load_of(task, folder, length)
    shape_of = MONO if shape == "mono" else SHAPES[task.choose(shape, "tiny")]
    work, peak = flops(load.sequences, shape_of), matrix_peak()
    rows = {}
    for name, taken, memory in _ways(task, folder, load, length):
        rate = work / taken
        row: dict[str, Any] = {"pairs/s": round(len(load.sequences) / taken, 1), "tokens/s": round(load.tokens / taken)}
        row |= {"of the measured peak": round(rate / peak, 4), "MiB": memory}
        rows[name] = row | {"of the nominal peak": round(rate / NOMINAL_BF16, 4)} if ON_GPU else row
    mean = round(load.tokens / len(load.sequences), 1)
    return {"pairs": len(load.sequences), "mean tokens": mean, "peak TFLOP/s": round(peak / 1e12, 1), "rows": rows}


def _ways(task: Task, folder: Path, load: Load, length: int) -> Iterator[tuple[str, float, float | None]]:
    """Yield the name of a way, its seconds, and its memory."""
    card, rounds = card_of(folder, length), task.choose(3, 1)
    with peak_memory() as memory:
        backend = TorchBackend.load(folder, card)
        for budget in task.choose((16_384, 32_768, 65_536), (2_048,)):
            yield f"network alone, {budget} tokens", seconds(batches(backend, load.sequences, budget), rounds), memory()
        scorer = LocalScorer(folder, card, InputBuilder.load(folder, card), backend)
        for callers in task.choose((1, 8, 32), (2,)):
            yield f"osrerank, {callers} calls at once", seconds(whole(scorer, load, callers), rounds), memory()
        scorer.close()
    if card.layout == "standard" and find_spec("sentence_transformers") is not None:
        yield from _peer(task, folder, load, rounds)


def _peer(task: Task, folder: Path, load: Load, rounds: int) -> Iterator[tuple[str, float, float | None]]:
    """Yield sentence-transformers by batch size, until its time is over."""
    started = time.perf_counter()
    for size in task.choose((128, 512, 32), (32,)):
        if time.perf_counter() - started > PEER_SECONDS:
            return
        with peak_memory() as memory:
            taken = seconds(sentence_transformers(folder, load, size), min(2, rounds))
            yield f"sentence-transformers, batches of {size}", taken, memory()
        gc.collect()


def batches(backend: TorchBackend, sequences: Sequence[Tokens], budget: int) -> Callable[[], None]:
    """Return an action that computes sequences, longest first, in batches of a budget on the backend's threads."""
    lots: list[list[Tokens]] = [[]]
    for tokens in sorted(sequences, key=lambda tokens: -len(tokens.ids)):
        cost = (len(lots[-1]) + 1) * len(lots[-1][0].ids) if lots[-1] else 0
        if backend.packed and lots[-1]:
            cost = sum(len(other.ids) for other in lots[-1]) + len(tokens.ids)
        if cost > budget:
            lots.append([])
        lots[-1].append(tokens)

    def action() -> None:
        with ThreadPoolExecutor(backend.threads) as executor:
            list(executor.map(backend.run, lots))

    return action


def whole(scorer: LocalScorer, load: Load, callers: int) -> Callable[[], None]:
    """Return an action that scores every query's documents from their texts, so many queries at once."""

    def score(query: tuple[str, list[str]]) -> None:
        text, documents = query
        if scorer.score(text, documents, [(number,) for number in range(len(documents))]).failures:
            raise RuntimeError("a pair failed")

    def action() -> None:
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(score, load.queries))

    return action


def sentence_transformers(folder: Path, load: Load, size: int) -> Callable[[], None]:
    """Return an action that gives all pairs to one call of a CrossEncoder in fp16 with sdpa."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - a peer that may be absent

    given = {"dtype": torch.float16 if ON_GPU else torch.float32, "attn_implementation": "sdpa"}
    model = CrossEncoder(str(folder), device=DEVICE.type, max_length=load.max_tokens, model_kwargs=given)
    pairs = [(query, text) for query, documents in load.queries for text in documents]
    return lambda: model.predict(pairs, batch_size=size, show_progress_bar=False)


def compiled(task: Task, shape: str, length: int) -> Found:
    """Time transformers' network under a plain torch.compile on full batches of one length: nothing is padded."""
    folder = _model(task, shape)
    load = load_of(task, folder, length)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
    network = torch.compile(network.to(DEVICE, HALF).eval(), dynamic=False, backend=task.choose("inductor", "eager"))
    size = task.choose(32_768, 512) // length
    whole_batches = [load.sequences[at : at + size] for at in range(0, len(load.sequences) - size + 1, size)]
    inputs = [torch.tensor([tokens.ids[:length].tolist() for tokens in one], device=DEVICE) for one in whole_batches]

    def action() -> None:
        with torch.inference_mode():
            for one in inputs:
                network(input_ids=one, attention_mask=torch.ones_like(one)).logits.float().cpu()

    started = time.perf_counter()
    action()
    first = time.perf_counter() - started
    taken = seconds(action, task.choose(3, 1))
    count = size * len(inputs)
    work = flops([tokens for one in whole_batches for tokens in one], SHAPES[task.choose(shape, "tiny")])
    return {
        "pairs/s": round(count / taken, 1),
        "of the measured peak": round(work / taken / matrix_peak(), 4),
        "compile s": round(first - taken, 1),
    }


def kernels(task: Task, shape: str, length: int) -> Found:
    """Return the kernels by time of the network alone, which says where the rest of the peak is."""
    folder = _model(task, shape)
    load = load_of(task, folder, task.choose(length, 64))
    backend = TorchBackend.load(folder, card_of(folder, task.choose(length, 64)))
    size = task.choose(backend.budget_tokens // length, 4)
    lots = [load.sequences[at : at + size] for at in range(0, 4 * size, size)]
    lots = [lot for lot in lots if lot]

    def action() -> None:
        for lot in lots:
            backend.run(lot)

    action()
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if ON_GPU else [])]
    started = time.perf_counter()
    with torch.profiler.profile(activities=activities) as profile:
        action()
    wall_ms = (time.perf_counter() - started) * 1000
    field = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    entries = [entry for entry in profile.key_averages() if not ON_GPU or str(entry.device_type).endswith("CUDA")]
    rows = {entry.key[:120]: getattr(entry, field) / 1000 for entry in entries}
    total = sum(rows.values())
    longest = sorted(rows.items(), key=lambda row: -row[1])[:15]
    shown = {name: {"ms": round(ms, 3), "share": round(ms / total, 4) if total else 0.0} for name, ms in longest}
    return {"wall ms": round(wall_ms, 2), "kernels ms": round(total, 2), "rows": shown}


def two_processes(task: Task) -> Found:
    """Return the pairs a second of two processes on one GPU beside those of one."""
    folder = _model(task, "base")
    span = task.choose(6.0, 1.0)
    found: dict[str, Any] = {}
    for count in task.choose((1, 2), (2,)):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, mp_context=context) as processes:
            begin_at = time.time() + task.choose(15.0, 0.0)  # both have loaded by then
            rates = list(processes.map(_rate, [(folder, task, begin_at, span)] * count))
        found[f"{count} processes"] = {"pairs/s": round(sum(rates), 1), "each": [round(rate, 1) for rate in rates]}
    return found


def _rate(given: tuple[Path, Task, float, float]) -> float:
    """Score passages for a time, and return the pairs a second."""
    folder, task, begin_at, span = given
    load = load_of(task, folder, PASSAGES)
    scorer = LocalScorer(
        folder,
        read_card(folder),
        InputBuilder.load(folder, read_card(folder)),
        TorchBackend.load(folder, read_card(folder)),
    )
    action = whole(scorer, replace(load, queries=load.queries[:10]), 4)
    action()
    time.sleep(max(0.0, begin_at - time.time()))
    started, pairs = time.perf_counter(), 0
    with contextlib.closing(scorer):
        while time.perf_counter() - started < span:
            action()
            pairs += sum(len(documents) for _, documents in load.queries[:10])
        return pairs / (time.perf_counter() - started)
