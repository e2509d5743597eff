"""Parity: every model family and layout in 16 bits on the GPU against transformers in fp32, on the lists of candidates.

Of each precision: the largest difference of a raw score, and the mean share of the first ten that are the same ten. The
exact scores are transformers' in fp32 on the same device; of the layouts, which transformers does not have, they are
those of the plain module that the tests hold to the definition.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.model_files import padding_id, read_card, read_json
from osrerank.scoring.networks.attention import PaddedAttention, choose_attention
from osrerank.scoring.networks.engine import DTYPES, Engine, PackedEngine, PaddedEngine
from osrerank.scoring.networks.load import load_packed, obstacle
from osrerank.scoring.torch_scorer import OUT_OF_MEMORY, TorchBackend, load_network, read_weights
from tools.gpu.luggage import read_sequences
from tools.gpu.measure import DEVICE, ON_GPU
from tools.gpu.networks import FAMILIES, SHAPES, Family, make
from tools.gpu.task import Found, Part, Task
from tools.gpu.texts import Words

Scores = npt.NDArray[np.float32]
BUDGET_TOKENS = 16_384
FIRST = 10
MEMORY_BYTES = 256 << 20
"""Left to a process that is to run out of memory."""


def parts(task: Task) -> Iterator[Part]:
    """Yield what is compared."""
    yield Part("mono", 15, lambda: compare(task, task.luggage / "models" / "mono", "joined"))
    for name, family in FAMILIES.items():
        yield Part(name, 8, lambda name=name, family=family: _family(task, name, family))  # type: ignore[misc]
    yield Part("out of memory", 10, lambda: out_of_memory(task))
    yield Part("int8 graph on CUDA", 20, lambda: int8_graph(task))


def _family(task: Task, name: str, family: Family) -> Found:
    shape = "base" if name == "bert, one logit" else "minilm-l6"
    folder = task.scratch / name.replace(" ", "-").replace(",", "")
    tokenizer = task.luggage / "models" / "mono" / "tokenizer.json"
    make(folder, SHAPES[task.choose(shape, "tiny")], tokenizer, family)
    layout = "joined" if family.card and family.card.layout == "joined" else "standard"
    return {"shape": task.choose(shape, "tiny"), **compare(task, folder, layout)}


def compare(task: Task, folder: Path, layout: str) -> Found:
    """Return the differences of a model's scores from the exact ones, by precision and way."""
    card, config = read_card(folder), read_json(folder / "config.json")
    lists = candidates(task, folder, card, layout)
    sequences = [tokens for one in lists for tokens in one]
    sizes = [len(one) for one in lists]
    exact = _first_column(PaddedEngine(load_network(folder, card), DEVICE, padding_id(folder)), sequences, card)
    found: dict[str, Any] = {"sequences": len(sequences), "spread": float(np.ptp(exact)), "rows": {}}
    ways = _packed if not obstacle(config, card) else _padded
    for name, way, engine in ways(folder, card, config):
        scores = _first_column(engine, sequences, card)
        row = {"difference": float(np.abs(scores - exact).max()), "first ten": _same_first(scores, exact, sizes)}
        if name != "fp32" and way == "ours":
            alone = _first_column(engine, sequences[: task.choose(64, 4)], card, budget=1)
            row["alone or together"] = float(np.abs(alone - scores[: len(alone)]).max())
        found["rows"][f"{name}, {way}"] = row
    return found


def candidates(task: Task, folder: Path, card: ModelCard, layout: str) -> list[list[Tokens]]:
    """Return lists of sequences that the model reads; a duo model's are of made texts, all pairs of a few documents."""
    if card.kind == "duo":
        builder, words = InputBuilder.load(folder, card), Words(task.luggage / "code")
        return [_pairs(builder, *query) for query in words.queries(task.choose(8, 2), task.choose(12, 4))]
    lists = read_sequences(task.luggage / "texts" / f"{layout}.npz")
    pad = padding_id(folder)
    if card.layout == "cross-bias":
        lists = [[_own_cls(tokens) for tokens in one] for one in lists]
    if pad:  # of RoBERTa, to which BERT's padding is a piece, and its own an ordinary one of BERT's
        lists = [
            [Tokens(np.where(tokens.ids == pad, 3, tokens.ids), tokens.segments) for tokens in one] for one in lists
        ]
    few = 2 if folder.name == "mono" else 5  # of a rehearsal: 16 bits are slow on a CPU
    return [one[: task.choose(len(one), few)] for one in lists[: task.choose(len(lists), 2)]]


def _own_cls(tokens: Tokens) -> Tokens:
    """Return the sequence with a [CLS] of the document's, too."""
    at = int(np.count_nonzero(tokens.segments == 0))
    ids, segments = np.insert(tokens.ids, at, tokens.ids[0]), np.insert(tokens.segments, at, 1)
    return Tokens(ids[:512], segments[:512])


def _pairs(builder: InputBuilder, query: str, texts: Sequence[str]) -> list[Tokens]:
    pieces = builder.query(query)
    documents = builder.documents(texts, pieces)
    return [builder.duo(pieces, one, other) for one in documents for other in documents if one is not other]


def _packed(folder: Path, card: ModelCard, config: dict[str, Any]) -> Iterator[tuple[str, str, Engine]]:
    """Yield our own forward pass in each precision, with packed attention and with padded."""
    weights = read_weights(folder)
    width = config["hidden_size"] // config["num_attention_heads"]
    for name, dtype in DTYPES.items():
        attention, _ = choose_attention(DEVICE, dtype, width)
        yield name, "ours", PackedEngine(load_packed(weights, config, card, attention=attention, dtype=dtype), DEVICE)
        if attention.packed:
            padded = load_packed(weights, config, card, attention=PaddedAttention(), dtype=dtype)
            yield name, "ours, padded", PackedEngine(padded, DEVICE)
    if card.layout == "standard":
        yield from ((name, "transformers", engine) for name, _, engine in _padded(folder, card, config))


def _padded(folder: Path, card: ModelCard, _config: dict[str, Any]) -> Iterator[tuple[str, str, Engine]]:
    """Yield transformers' forward pass in 16 bits, which is ours too where we have none of our own."""
    for name in ("bf16", "fp16"):
        network = load_network(folder, card).to(DTYPES[name])
        yield (
            name,
            "ours" if obstacle(_config, card) else "transformers",
            PaddedEngine(network, DEVICE, padding_id(folder)),
        )


def _first_column(engine: Engine, sequences: Sequence[Tokens], card: ModelCard, budget: int = BUDGET_TOKENS) -> Scores:
    """Return raw scores ``(n,)``, computed longest first in batches of a budget of padded tokens."""
    order = sorted(range(len(sequences)), key=lambda at: -len(sequences[at].ids))
    found = np.zeros(len(sequences), dtype=np.float32)
    while order:
        count = max(1, budget // len(sequences[order[0]].ids))
        rows = engine([sequences[at] for at in order[:count]])
        found[order[:count]] = rows[:, 1] - rows[:, 0] if card.head == "logits2" else rows[:, -1]
        order = order[count:]
    return found


def _same_first(scores: Scores, exact: Scores, sizes: Sequence[int]) -> float:
    """Return the mean share of each list's first ten that are the same ten."""
    shares, start = [], 0
    for size in sizes:
        ours, theirs = (set(np.argsort(-one[start : start + size], kind="stable")[:FIRST]) for one in (scores, exact))
        shares.append(len(ours & theirs) / len(theirs))
        start += size
    return round(float(np.mean(shares)), 4)


class _Small:
    """An engine that has no memory for long batches: what stands for a full GPU where there is none."""

    packed = True

    def __init__(self, engine: Engine, most_tokens: int) -> None:
        self._engine, self._most = engine, most_tokens

    def __call__(self, sequences: Sequence[Tokens]) -> Scores:
        if sum(len(tokens.ids) for tokens in sequences) > self._most:
            raise torch.OutOfMemoryError("made for the rehearsal")
        return self._engine(sequences)


def out_of_memory(task: Task) -> Found:
    """Score more than fits into the memory; return what was lost, and how scores differ from those of small batches."""
    folder = task.scratch / "bert-one-logit"
    make(folder, SHAPES[task.choose("base", "tiny")], task.luggage / "models" / "mono" / "tokenizer.json")
    card = read_card(folder)
    (query, texts), *_ = Words(task.luggage / "code").queries(1, task.choose(2000, 40), words=400)
    tuples = [(number,) for number in range(len(texts))]
    scorer = _scorer(folder, card)
    first = task.choose(20, 3)
    few = scorer.score(query, texts[:first], tuples[:first])
    before = OUT_OF_MEMORY._value.get()  # noqa: SLF001 - prometheus has no other way to read one
    with full_memory() as allowed:
        found = scorer.score(query, texts, tuples)
    difference = float(np.abs(found.values[:first] - few.values).max())
    times = OUT_OF_MEMORY._value.get() - before  # noqa: SLF001 - likewise
    return {
        "pairs": len(texts),
        "failures": len(found.failures),
        "out of memory": times,
        "difference": difference,
        "limit": allowed,
    }


def _scorer(folder: Path, card: ModelCard) -> LocalScorer:
    backend = TorchBackend.load(folder, card)
    if not ON_GPU:
        backend._engine = _Small(backend._engine, 2048)  # type: ignore[arg-type]  # noqa: SLF001 - for a GPU
        backend.budget_tokens = 8192
    return LocalScorer(folder, card, InputBuilder.load(folder, card), backend)


@contextlib.contextmanager
def full_memory() -> Iterator[str]:
    """Leave this process little memory of the GPU; yield how little."""
    if not ON_GPU:
        yield "2048 tokens, made"
        return
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + MEMORY_BYTES) / total)
    try:
        yield f"{MEMORY_BYTES >> 20} MiB beyond the weights"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def int8_graph(task: Task) -> Found:
    """Compare an int8 graph in ONNX Runtime on CUDA with the same graph on the CPU."""
    import onnxruntime  # noqa: PLC0415 - for this part alone

    providers = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in providers and not task.tiny:
        return {"providers": providers, "note": "ONNX Runtime here has no CUDA provider"}
    folder, exported = task.scratch / "bert-one-logit", task.scratch / "int8"
    make(folder, SHAPES[task.choose("base", "tiny")], task.luggage / "models" / "mono" / "tokenizer.json")
    if not exported.exists():
        export_model(folder, exported, ExportOptions(precision="int8"))
    lists = candidates(task, folder, read_card(folder), "standard")[:4]
    found = {}
    for provider in [one for one in providers if one in {"CUDAExecutionProvider", "CPUExecutionProvider"}]:
        session = onnxruntime.InferenceSession(exported / read_card(exported).onnx["int8"], providers=[provider])
        names = [entry.name for entry in session.get_inputs()]
        found[provider] = np.array([_run_graph(session, names, tokens) for one in lists for tokens in one[:10]])
    cpu = found["CPUExecutionProvider"]
    return {
        "providers": providers,
        "differences": {name: float(np.abs(one - cpu).max()) for name, one in found.items()},
    }


def _run_graph(session: Any, names: Sequence[str], tokens: Tokens) -> float:
    given = {"input_ids": tokens.ids, "token_type_ids": tokens.segments, "attention_mask": np.ones_like(tokens.ids)}
    return float(session.run(None, {name: given[name][None] for name in names})[0].ravel()[-1])
