"""Score every development set with every setting of `protocol.toml`, without looking at the judgments.

python tools/models/joined/sweep.py MODELS SETS SCORES [--starts bge-small-en-v1.5 e5-small-v2] [--sets dl21 ...]

Each start and set gives one file of scores, ``START.SET.npz``: an array per setting, in the order of the candidates of
the set's queries. What is there already is not made again. fp32.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from osrerank.scoring.card import BLOCKED, Joining, Pooling, Rows
from osrerank.scoring.networks.joined import DocumentKeys, JoinedEncoder, TextStates, joined_from_bert, merged

MOST_LAYERS = 2
BIASES = (-2.0, -3.0, -4.0, -5.0)
SECOND_LAYER_BIAS = -4.0
"""The only one tried where all rows look in two layers, which costs most."""
FACTORS = (1.0, 4.0, 8.0)
TOKENS_AT_A_TIME = 6000
ROWS_AT_A_TIME = 40_000

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Start:
    """A bi-encoder to start from.

    Attributes:
        pooling: of its states.
        prefixes: of queries, by the name of the setting.
        document_prefix: of documents.
    """

    pooling: Pooling
    prefixes: Mapping[str, str]
    document_prefix: str = ""


STARTS = {
    "bge-small-en-v1.5": Start("cls", {"none": "", "own": "Represent this sentence for searching relevant passages: "}),
    "e5-small-v2": Start("mean", {"own": "query: "}, "passage: "),
}


def joinings(pooling: Pooling) -> dict[str, Joining]:
    """Return the settings of the grid by name: layers, rows, bias."""
    found = {"plain": Joining(0, rows="all", pooling=pooling)}
    rows: Rows = "cls" if pooling == "cls" else "all"
    for layers, bias in product(range(1, MOST_LAYERS + 1), BIASES):
        if layers == 1 or rows == "cls" or bias == SECOND_LAYER_BIAS:
            found[f"m{layers}.{rows}.g{bias:g}"] = Joining(layers, bias, rows, pooling)
    return found


class Texts:
    """Documents' states, kept in memory without padding.

    Args:
        encoder: of the start.
        tokenizer: of the start.
        prefix: of documents.
    """

    def __init__(self, encoder: JoinedEncoder, tokenizer: Tokenizer, prefix: str) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._prefix = prefix
        self._states: list[list[tuple[Tensor, ...]]] = []
        self._log_pieces: list[list[Tensor]] = []
        self._vectors: list[Tensor] = []

    def encode(self, texts: Sequence[str]) -> None:
        """Encode texts, the longest first; their numbers are their places."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch([self._prefix + text for text in texts])]
        self._states = [[] for _ in ids]
        self._log_pieces = [[] for _ in ids]
        self._vectors = [torch.zeros(0)] * len(ids)
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        for batch in _by_tokens(order, [len(one) for one in ids]):
            input_ids, mask = _padded([ids[number] for number in batch])
            whole = self._encoder.encode(input_ids, mask, MOST_LAYERS)
            for factor in FACTORS:
                documents = merged(whole, factor)
                for row, number in enumerate(batch):
                    there = documents.log_pieces[row] > BLOCKED / 2
                    self._states[number].append(tuple(one[row][there].clone() for one in documents.layers))
                    self._log_pieces[number].append(documents.log_pieces[row][there].clone())
                    self._vectors[number] = documents.vectors[row].clone()

    def keys(self, numbers: Sequence[int], factor: int) -> Iterator[DocumentKeys]:
        """Yield keys and values of texts in their order, in batches that fit memory.

        Args:
            numbers: of the texts.
            factor: the place of the factor of merging.
        """
        for batch in _by_tokens(numbers, [len(one[factor]) for one in self._log_pieces], ROWS_AT_A_TIME):
            log_pieces = [self._log_pieces[number][factor] for number in batch]
            layers = tuple(
                pad_sequence([self._states[number][factor][layer] for number in batch], batch_first=True)
                for layer in range(MOST_LAYERS)
            )
            padded = pad_sequence(log_pieces, batch_first=True, padding_value=BLOCKED)
            vectors = torch.stack([self._vectors[number] for number in batch])
            yield self._encoder.project(TextStates(layers, padded, vectors))


def _by_tokens(numbers: Sequence[int], lengths: Sequence[int], most: int = TOKENS_AT_A_TIME) -> Iterator[list[int]]:
    batch: list[int] = []
    longest = 0
    for number in numbers:
        longest = max(longest, lengths[number])
        if batch and (len(batch) + 1) * longest > most:
            yield batch
            batch, longest = [], lengths[number]
        batch.append(number)
    if batch:
        yield batch


def _padded(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    rows = pad_sequence([torch.tensor(one) for one in ids], batch_first=True)
    lengths = torch.tensor([len(one) for one in ids])
    return rows, (torch.arange(rows.shape[1]) < lengths.unsqueeze(1)).long()


def scored(
    one: Mapping[str, Any],
    start: Start,
    encoder: JoinedEncoder,
    tokenizer: Tokenizer,
    wanted: Sequence[str] | None = None,
) -> dict[str, Floats]:
    """Return the scores of a set's candidates, queries one after the other, for each setting that is wanted."""
    place: dict[str, list[int]] = {}
    texts: list[str] = []
    for doc_id, passages in one["texts"].items():
        place[doc_id] = list(range(len(texts), len(texts) + len(passages)))
        texts += passages
    documents = Texts(encoder, tokenizer, start.document_prefix)
    documents.encode(texts)
    settings = joinings(start.pooling)
    found: dict[str, list[Floats]] = {}
    for query_id, text in one["queries"].items():
        candidates = list(one["candidates"][query_id])
        numbers = [number for doc_id in candidates for number in place[doc_id]]
        bounds = np.cumsum([0, *(len(place[doc_id]) for doc_id in candidates)])[:-1]
        queries = {
            name: encoder.encode(*_padded([tokenizer.encode(prefix + text).ids]), MOST_LAYERS)
            for name, prefix in start.prefixes.items()
        }
        for name, values in _of_query(encoder, documents, numbers, queries, settings, wanted).items():
            best = np.maximum.reduceat(values, bounds) if candidates else values
            found.setdefault(name, []).append(best.astype(np.float32))
    return {name: np.concatenate(values) for name, values in found.items()}


def _of_query(
    encoder: JoinedEncoder,
    documents: Texts,
    numbers: Sequence[int],
    queries: Mapping[str, TextStates],
    settings: Mapping[str, Joining],
    wanted: Sequence[str] | None,
) -> dict[str, Floats]:
    """Return the scores of some texts for each setting that is wanted."""
    found: dict[str, list[Floats]] = {}
    for place, factor in enumerate(FACTORS):
        for keys in documents.keys(numbers, place):
            for (prefix, query), (name, joining) in product(queries.items(), settings.items()):
                setting = f"{prefix}/{name}/r{factor:g}"
                if factor > 1 and (joining.layers != 1 or joining.bias < -4):  # whole rows decide about those
                    continue
                if wanted is None or setting in wanted:
                    found.setdefault(setting, []).append(encoder.scores(query, keys, joining).numpy())
    return {name: np.concatenate(values) for name, values in found.items()}


def main() -> None:
    """Make the files of scores that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--only", nargs="+", help="names of sets; all but articles if not given")
    parser.add_argument("--settings", nargs="+", help="names of settings; all if not given")
    options = parser.parse_args()
    options.scores.mkdir(parents=True, exist_ok=True)
    names = options.only or ["wikiqa", "dl21", "checkthat", "squad", "nfcorpus", "scifact"]
    files = [options.sets / f"{name}.json" for name in names]
    for file, name in product(files, options.starts):
        output = options.scores / f"{name}.{file.stem}.npz"
        if output.exists():
            continue
        began = time.perf_counter()
        folder = options.models / name
        config = json.loads((folder / "config.json").read_text("utf-8"))
        plain = joinings(STARTS[name].pooling)["plain"]
        encoder = joined_from_bert(load_file(folder / "model.safetensors"), config, plain)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(config["max_position_embeddings"])
        with torch.inference_mode():
            found = scored(json.loads(file.read_text("utf-8")), STARTS[name], encoder, tokenizer, options.settings)
        partial = output.with_suffix(".partial.npz")
        np.savez(partial, allow_pickle=False, **found)
        partial.replace(output)
        print(f"{output.name}: {len(found)} settings, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
