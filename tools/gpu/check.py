"""Check the torch backend on a GPU, and measure it beside its peers in the same run: JSON and a Markdown table.

python tools/gpu/check.py OUTPUT_FOLDER                        # BERT-base and BERT-large, a few minutes
python tools/gpu/check.py OUTPUT_FOLDER --tiny                 # any machine: does the script itself work?

Models are randomly initialised (speed does not depend on the weights). Texts are SQuAD paragraphs, cut or joined to the
lengths of MS MARCO passages (85 tokens on average) or to more than fits 512 tokens. Every way is timed from texts to
floats, after a warm-up, median of the rounds, peers at the best of several batch sizes. Model FLOPs are those of a
whole forward pass without padding: 2 x weights of the matrices a token, and 4 x hidden x length for the attention.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import osrerank
from osrerank.formats.lines import numbered_objects
from osrerank.scoring.card import CrossBias, ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.model_files import read_card, read_json
from osrerank.scoring.networks.attention import PaddedAttention, choose_attention
from osrerank.scoring.networks.engine import PackedEngine, PaddedEngine
from osrerank.scoring.networks.load import load_packed
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.torch_scorer import TorchBackend, load_network, read_weights

PACKAGE = Path(osrerank.__file__).parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = {  # hidden, layers, heads, inner
    "tiny": (64, 2, 4, 128),
    "minilm-l6": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
PASSAGE_WORDS = (4.056, 0.4)
"""Mean and standard deviation of the logarithm of MS MARCO passages' words."""
DEPTH = 100


@dataclass(frozen=True)
class Load:
    """Queries, each with as many documents, and how many model tokens and FLOPs they are."""

    name: str
    queries: list[tuple[str, list[str]]]
    sequences: list[Tokens]

    @property
    def tokens(self) -> int:
        return sum(len(tokens.ids) for tokens in self.sequences)

    def flops(self, shape: tuple[int, int, int, int]) -> float:
        hidden, layers, _, inner = shape
        a_token = 2 * (4 * hidden**2 + 2 * hidden * inner)
        squares = sum(len(tokens.ids) ** 2 for tokens in self.sequences)
        return layers * (a_token * self.tokens + 4 * hidden * squares)


def paragraphs() -> list[str]:
    """Return the sample's texts."""
    return [line["text"] for _, line in numbered_objects(PACKAGE / "data" / "squad" / "corpus.jsonl.gz")]


def loads(builder: InputBuilder, pairs: int) -> Iterator[Load]:
    """Yield passages of MS MARCO's lengths, and documents that fill the model."""
    texts = paragraphs()
    draw = np.random.default_rng(19)
    words = " ".join(texts).split()

    def piece(length: int) -> str:
        start = int(draw.integers(len(words) - length))
        return " ".join(words[start : start + length])

    def batch(name: str, count: int, length: Callable[[], int]) -> Load:
        queries = [(piece(7), [piece(length()) for _ in range(DEPTH)]) for _ in range(max(1, count // DEPTH))]
        sequences = [
            builder.mono(query, document)
            for text, documents in queries
            for query in [builder.query(text)]
            for document in builder.documents(documents, query)
        ]
        return Load(name, queries, sequences)

    yield batch("passages", pairs, lambda: int(np.clip(draw.lognormal(*PASSAGE_WORDS), 10, 200)))
    yield batch("512 tokens", pairs // 4, lambda: 600)


def make_model(folder: Path, shape: tuple[int, int, int, int]) -> Path:
    """Write a random BERT classifier with BERT's tokenizer, whose scores differ."""
    hidden, layers, heads, inner = shape
    config = transformers.BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner, num_labels=1
    )
    torch.manual_seed(1)
    network = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        for layer in network.bert.encoder.layer.parameters():
            layer.mul_(2 if layer.dim() == 2 else 1)
        network.classifier.weight.normal_(std=0.5)
    network.save_pretrained(folder)
    specials = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(PACKAGE / "models" / "mono" / "tokenizer.json"),
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **specials,
    ).save_pretrained(folder)
    return folder


def wait() -> None:
    """Return when the device has done all that it was asked for."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(action: Callable[[], Any], rounds: int) -> float:
    """Return the median wall time of an action, after one that does not count."""
    action()
    wait()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        wait()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def matrix_peak(dtype: torch.dtype, size: int) -> float:
    """Return the FLOP/s of a large matrix product of random numbers."""
    left, right = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))

    def ten() -> None:
        for _ in range(10):
            torch.mm(left, right)

    return 10 * 2 * size**3 / seconds(ten, 5)


def parity(folder: Path, sequences: Sequence[Tokens]) -> dict[str, float]:
    """Return the largest difference of a logit from transformers in fp32 on this device, and what a score is wide."""
    weights, config, card = read_weights(folder), read_json(folder / "config.json"), read_card(folder)
    exact = PaddedEngine(load_network(folder, card), DEVICE, 0)(sequences)
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    found = {"spread": float(np.ptp(exact))}
    for name, dtype in {"fp32": torch.float32, **halves}.items():
        attention, _ = choose_attention(DEVICE, dtype, config["hidden_size"] // config["num_attention_heads"])
        engine = PackedEngine(load_packed(weights, config, card, attention=attention, dtype=dtype), DEVICE)
        together = engine(sequences)
        alone = np.concatenate([engine([tokens]) for tokens in sequences])
        found[f"ours {name}, {attention.name}"] = float(np.abs(together - exact).max())
        found[f"ours {name}, alone or together"] = float(np.abs(together - alone).max())
    for name, dtype in halves.items():
        network = load_network(folder, card).to(dtype)
        found[f"transformers {name}"] = float(np.abs(PaddedEngine(network, DEVICE, 0)(sequences) - exact).max())
    return found


def cross_bias_parity(folder: Path, sequences: Sequence[Tokens]) -> dict[str, float]:
    """Return the largest difference of a cosine in the layout cross-bias from fp32, for both sides opened."""
    weights, config = read_weights(folder), read_json(folder / "config.json")
    cross_bias = CrossBias(-2.0, -1.0, temperature=1.0)
    card = ModelCard("made", "cosine", layout="cross-bias", cross_bias=cross_bias)
    exact = PackedEngine(
        load_packed(weights, config, card, attention=PaddedAttention(), dtype=torch.float32), torch.device("cpu")
    )(sequences)
    found = {}
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        attention, _ = choose_attention(DEVICE, dtype, config["hidden_size"] // config["num_attention_heads"])
        engine = PackedEngine(load_packed(weights, config, card, attention=attention, dtype=dtype), DEVICE)
        found[f"cross-bias {name}, {attention.name}"] = float(np.abs(engine(sequences) - exact).max())
    return found


def engine_batches(backend: TorchBackend, sequences: Sequence[Tokens], budget: int) -> Callable[[], None]:
    """Return an action that computes sequences, longest first, in batches of a budget on the backend's threads."""
    ordered = sorted(sequences, key=lambda tokens: -len(tokens.ids))
    batches: list[list[Tokens]] = [[]]
    for tokens in ordered:
        cost = sum(len(other.ids) for other in batches[-1]) if backend.packed else 0
        cost = cost or (len(batches[-1][0].ids) * len(batches[-1]) if batches[-1] else 0)
        if batches[-1] and cost + len(tokens.ids) > budget:
            batches.append([])
        batches[-1].append(tokens)

    def action() -> None:
        with ThreadPoolExecutor(backend.threads) as executor:
            list(executor.map(backend.run, batches))

    return action


def whole(scorer: LocalScorer, load: Load, callers: int) -> Callable[[], None]:
    """Return an action that scores every query's documents from their texts, so many queries at once."""
    tuples = [(index,) for index in range(DEPTH)]

    def score(query: tuple[str, list[str]]) -> None:
        if scorer.score(*query, tuples).failures:
            raise RuntimeError("a pair failed")

    def action() -> None:
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(score, load.queries))

    return action


def through_transformers(folder: Path, load: Load, dtype: torch.dtype, size: int) -> Callable[[], None]:
    """Return an action that tokenises and scores pairs as transformers' own documents do, sorted by length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
    network = network.to(DEVICE, dtype).eval()
    pairs = sorted(
        ((query, text) for query, documents in load.queries for text in documents), key=lambda pair: -len(pair[1])
    )

    def action() -> None:
        with torch.inference_mode():
            for start in range(0, len(pairs), size):
                batch = [list(part) for part in zip(*pairs[start : start + size], strict=True)]
                inputs = tokenizer(*batch, padding=True, truncation="only_second", max_length=512, return_tensors="pt")
                network(**inputs.to(DEVICE)).logits.float().cpu().numpy()

    return action


def through_sentence_transformers(folder: Path, load: Load, dtype: torch.dtype, size: int) -> Callable[[], None]:
    """Return an action that gives all pairs to one call of a CrossEncoder."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - a peer that may be absent

    model = CrossEncoder(str(folder), device=DEVICE.type, max_length=512, model_kwargs={"dtype": dtype})
    pairs = [(query, text) for query, documents in load.queries for text in documents]
    return lambda: model.predict(pairs, batch_size=size, show_progress_bar=False)


def measure(folder: Path, load: Load, options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yield the name of a way and the seconds that it took."""
    half = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    rounds = options.rounds
    card = read_card(folder)
    backend = TorchBackend.load(folder, card)
    for budget in options.budgets:
        yield (
            f"osrerank, network alone, {budget} tokens",
            seconds(engine_batches(backend, load.sequences, budget), rounds),
        )
    if options.compile:
        compiled = TorchBackend.load(folder, card, compiled=True)
        action = engine_batches(compiled, load.sequences, compiled.budget_tokens)
        yield f"osrerank, network alone, compiled, {compiled.budget_tokens} tokens", seconds(action, rounds)
        del compiled, action
    del backend
    scorer = load_scorer(str(folder), backend="torch")
    for callers in options.callers:
        yield f"osrerank, {callers} calls at once", seconds(whole(scorer, load, callers), rounds)
    scorer.close()
    for size in options.batch_sizes:
        yield f"transformers, batches of {size}", seconds(through_transformers(folder, load, half, size), rounds)
    if find_spec("sentence_transformers") is not None:
        for size in options.batch_sizes:
            action = through_sentence_transformers(folder, load, half, size)
            yield f"sentence-transformers, batches of {size}", seconds(action, rounds)


def rows(name: str, folder: Path, peak: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured of a model."""
    shape = SHAPES[name]
    builder = InputBuilder.load(folder, read_card(folder))
    for load in loads(builder, options.pairs):
        for way, taken in measure(folder, load, options):
            if DEVICE.type == "cuda":
                memory = torch.cuda.max_memory_allocated() / 2**20
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            else:
                memory = None
            row = {
                "model": name, "load": load.name, "name": way, "seconds": taken, "pairs": len(load.sequences),
                "pairs_per_s": len(load.sequences) / taken, "tokens_per_s": load.tokens / taken,
                "mfu": load.flops(shape) / taken / peak, "memory_mib": memory,
            }  # fmt: skip
            print(_line(row), flush=True)
            yield row


def goals(measured: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the figures that the backend is judged by; None where one was not measured."""

    def best(field: str, start: str, end: str = "") -> float | None:
        names = (row for row in here if row["name"].startswith(start) and row["name"].endswith(end))
        return max((row[field] for row in names), default=None)

    figures: dict[str, float | None] = {}
    for model, load in dict.fromkeys((row["model"], row["load"]) for row in measured):
        here = [row for row in measured if (row["model"], row["load"]) == (model, load)]
        ours = best("pairs_per_s", "osrerank, ", "at once")
        for peer in ("sentence-transformers", "transformers"):
            theirs = best("pairs_per_s", f"{peer}, ")
            figures[f"{model}, {load}: times {peer}"] = ours / theirs if ours and theirs else None
        for field in ("pairs_per_s", "tokens_per_s", "mfu"):
            figures[f"{model}, {load}: {field}, from texts"] = best(field, "osrerank, ", "at once")
            figures[f"{model}, {load}: {field}, network alone"] = best(field, "osrerank, network alone")
    return figures


def _line(row: dict[str, Any]) -> str:
    return (
        f"| {row['model']} | {row['load']} | {row['name']} | {row['pairs_per_s']:,.0f} | {row['tokens_per_s']:,.0f} "
        f"| {row['mfu']:.3f} | {'' if row['memory_mib'] is None else format(row['memory_mib'], ',.0f')} |"
    )


def table(found: dict[str, Any]) -> str:
    """Return all of it as Markdown."""
    lines = [f"# {found['machine']['device']}", "", ", ".join(f"{k} {v}" for k, v in found["machine"].items()), ""]
    lines += ["| model | pairs | way | pairs/s | tokens/s | share of the matrix peak | peak MiB |", "|---" * 7 + "|"]
    lines += [_line(row) for row in found["rows"]]
    for title in ("parity", "goals"):
        lines += ["", f"## {title}", "", "| what | figure |", "|---|---|"]
        lines += [
            f"| {name} | {'not measured' if figure is None else f'{figure:,.5g}'} |"
            for name, figure in found[title].items()
        ]
    return "\n".join([*lines, ""])


def machine(peak: float) -> dict[str, Any]:
    """Return what the figures depend on."""
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.processor() or DEVICE.type,
        "matrix peak TFLOP/s": round(peak / 1e12, 2),
    }
    for name in ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: dict[str, Any] = {"type": int, "nargs": "+"}
    parser.add_argument("output", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["base", "large", "minilm-l6"])
    parser.add_argument("--pairs", type=int, default=4000, help="of passage length; a quarter as many of 512 tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budgets", **numbers, default=[8192, 16384, 32768, 65536])
    parser.add_argument("--callers", **numbers, default=[1, 8, 32])
    parser.add_argument("--batch-sizes", **numbers, default=[32, 128, 256])
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few pairs")
    options = parser.parse_args()
    if options.tiny:
        options.shapes, options.pairs, options.rounds = ["tiny"], 400, 1
        options.budgets, options.callers, options.batch_sizes = [2048], [1, 2], [32]
    return options


def main() -> None:
    """Check, measure, and write ``gpu_check.json`` and ``gpu_check.md``."""
    options = arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    on_gpu = DEVICE.type == "cuda"
    peak = matrix_peak(torch.bfloat16 if on_gpu else torch.float32, 8192 if on_gpu else 512)
    found: dict[str, Any] = {"machine": machine(peak), "rows": [], "parity": {}}
    for name in options.shapes:
        folder = make_model(options.output / f"model-{name}", SHAPES[name])
        card = read_card(folder)
        sequences = next(loads(InputBuilder.load(folder, card), DEPTH)).sequences[:32]
        differences = parity(folder, sequences) | cross_bias_parity(folder, sequences[:8])
        found["parity"] |= {f"{name}: {what}": figure for what, figure in differences.items()}
        print(json.dumps(differences), flush=True)
        found["rows"] += rows(name, folder, peak, options)
        found["goals"] = goals(found["rows"])
        (options.output / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (options.output / "gpu_check.md").write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
