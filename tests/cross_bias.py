"""The layout cross-bias from its definition: sequence by sequence in float64, under an explicit mask."""

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from osrerank.scoring.card import CrossBias

CLS, SEP = 2, 3
HEADS = 4
"""Of the tiny models."""


def defined(directory: Path, query: str, documents: Sequence[str], cross_bias: CrossBias) -> float:
    """Return the raw score of a query with one document, or with two; no text may be so long that it is cut."""
    from safetensors.torch import load_file

    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    layers = json.loads((directory / "config.json").read_bytes())["num_hidden_layers"]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = [[CLS, *tokenizer.encode(text, add_special_tokens=False).ids, SEP] for text in (query, *documents)]
    part = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    position = np.concatenate([np.arange(len(text)) for text in texts])
    table = "embeddings.{}_embeddings.weight"
    states = weights[table.format("word")][np.concatenate(texts)] + weights[table.format("position")][position]
    states = norm(states + weights[table.format("token_type")][0], weights, "embeddings.LayerNorm")
    factors = [1.0, *[cross_bias.pool_factor] * len(documents)]
    states, part = pooled(states, part, factors)
    bias = attention_bias(part, cross_bias)
    for index in range(layers):
        states = layer(states, bias, weights, f"encoder.layer.{index}")
    means = [states[part == index].mean(axis=0) for index in range(len(texts))]
    cosines = [means[0] @ mean / np.linalg.norm(means[0]) / np.linalg.norm(mean) for mean in means[1:]]
    return float(cross_bias.temperature * (cosines[0] - sum(cosines[1:])))


def pooled(states: np.ndarray, part: np.ndarray, factors: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return means of runs, and which part each is of; a part's runs end where neighbours are least alike."""
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    rows, parts = [], []
    for one, factor in enumerate(factors):
        (places,) = np.nonzero(part == one)
        count = math.ceil(Fraction(len(places)) / Fraction(str(factor)))
        borders = sorted(places[1:], key=lambda place: float(unit[place] @ unit[place - 1]))[: count - 1]
        for run in np.split(places, np.searchsorted(places, sorted(borders))):
            rows.append(states[run].mean(axis=0))
            parts.append(one)
    return np.array(rows), np.array(parts)


def attention_bias(part: np.ndarray, cross_bias: CrossBias) -> np.ndarray:
    """Return what is added where token i looks at token j ``(tokens, tokens)``."""
    bias = np.zeros((len(part), len(part)))
    for row, column in product(range(len(part)), repeat=2):
        if part[row] != part[column]:
            name = "query" if part[row] == 0 else "document" if part[column] == 0 else "other"
            bias[row, column] = -np.inf if (added := getattr(cross_bias, name)) == "closed" else added
    return bias


def layer(states: np.ndarray, bias: np.ndarray, weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    query, key, value = (dense(states, weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
    width = states.shape[1] // HEADS
    context = np.zeros_like(states)
    for start in range(0, states.shape[1], width):
        head = slice(start, start + width)
        weight = np.exp(query[:, head] @ key[:, head].T / width**0.5 + bias)
        context[:, head] = weight / weight.sum(axis=1, keepdims=True) @ value[:, head]
    attended = dense(context, weights, f"{name}.attention.output.dense")
    states = norm(states + attended, weights, f"{name}.attention.output.LayerNorm")
    inner = gelu(dense(states, weights, f"{name}.intermediate.dense"))
    return norm(states + dense(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def gelu(values: np.ndarray) -> np.ndarray:
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(values)).numpy()


def dense(states: np.ndarray, weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(states: np.ndarray, weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    centred = states - states.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
