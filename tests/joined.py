"""The layout joined from its definition: one query and one document in float64, row by row."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from osrerank.scoring.card import Joining, Pooling
from tests.cross_bias import CLS, HEADS, SEP, dense, gelu, layer, norm, pooled

Weights = Mapping[str, np.ndarray]


def defined(directory: Path, query: str, document: str, joining: Joining, factor: float = 1.0) -> float:
    """Return the raw score; neither text may be so long that it is cut."""
    return _defined(directory, query, [document], joining, factor)


def defined_pair(directory: Path, query: str, first: str, second: str, joining: Joining) -> float:
    """Return the raw score of two documents, with the bias of a duo model."""
    return _defined(directory, query, [first, second], joining, 1.0)


def add_own_weights(directory: Path, joining: Joining) -> None:
    """Give the joined layers weights of their own, a little unlike the encoder's."""
    import torch
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    weights, random = load_file(file), torch.Generator().manual_seed(1)
    layers = json.loads((directory / "config.json").read_bytes())["num_hidden_layers"]
    for place in range(joining.layers):
        theirs = f"encoder.layer.{layers - joining.layers + place}."
        for name in [name for name in weights if name.startswith(theirs)]:
            noise = 0.2 * torch.randn(weights[name].shape, generator=random)
            weights[f"joined.layer.{place}.{name.removeprefix(theirs)}"] = weights[name] + noise
    save_file(weights, file)


def _defined(directory: Path, query: str, documents: list[str], joining: Joining, factor: float) -> float:
    from safetensors.torch import load_file

    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    layers = json.loads((directory / "config.json").read_bytes())["num_hidden_layers"]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = [joining.query_prefix + query, *(joining.document_prefix + document for document in documents)]
    ids = [[CLS, *tokenizer.encode(text, add_special_tokens=False).ids, SEP] for text in texts]
    queries, *others = (encoded(one, weights, layers) for one in ids)
    alone, *vectors = (vector(one[-1], joining.pooling) for one in (queries, *others))
    its = vectors[0] - sum(vectors[1:])
    if joining.layers == 0:
        return float(alone @ its)
    first = layers - joining.layers
    rows = [runs(one[first], factor) for one in others]
    moving = 1 if joining.rows == "cls" else len(queries[0])
    states = queries[first]
    for index in range(first, layers):
        seen = np.array(
            [one[index][run].mean(axis=0) for one, its_runs in zip(others, rows, strict=True) for run in its_runs]
        )
        log_pieces = np.log([len(run) for its_runs in rows for run in its_runs])
        after = queries[index + 1].copy()
        for row in range(moving):
            name = f"joined.layer.{index - first}" if joining.own_weights else f"encoder.layer.{index}"
            after[row] = looked(states[row], states, seen, joining.bias + log_pieces, weights, name)
        states = after
    joined = vector(states, joining.pooling)
    return float((1 - joining.cosine_share) * (joined @ its) + joining.cosine_share * (alone @ its))


def encoded(ids: list[int], weights: Weights, layers: int) -> list[np.ndarray]:
    """Return what enters each layer, and what leaves the last ``(tokens, hidden)``."""
    table = "embeddings.{}_embeddings.weight"
    states = weights[table.format("word")][ids] + weights[table.format("position")][: len(ids)]
    found = [norm(states + weights[table.format("token_type")][0], weights, "embeddings.LayerNorm")]
    for index in range(layers):
        found.append(layer(found[-1], np.zeros((len(ids), len(ids))), weights, f"encoder.layer.{index}"))
    return found


def runs(states: np.ndarray, factor: float) -> list[np.ndarray]:
    """Return the places of each run of neighbours that are most alike."""
    means, _ = pooled(states, np.zeros(len(states), dtype=int), [factor])
    found, start = [], 0
    for mean in means:
        end = start + 1
        while not np.allclose(states[start:end].mean(axis=0), mean):
            end += 1
        found.append(np.arange(start, end))
        start = end
    return found


def looked(
    row: np.ndarray, own: np.ndarray, seen: np.ndarray, bias: np.ndarray, weights: Weights, name: str
) -> np.ndarray:
    """Return a query's row after a layer in which it sees its own query and the document."""
    states = np.concatenate([own, seen])
    bias = np.concatenate([np.zeros(len(own)), bias])
    asked = dense(row[None], weights, f"{name}.attention.self.query")[0]
    keys, values = (dense(states, weights, f"{name}.attention.self.{part}") for part in ("key", "value"))
    width = len(row) // HEADS
    context = np.zeros_like(row)
    for start in range(0, len(row), width):
        head = slice(start, start + width)
        weight = np.exp(keys[:, head] @ asked[head] / width**0.5 + bias)
        context[head] = weight / weight.sum() @ values[:, head]
    attended = dense(context[None], weights, f"{name}.attention.output.dense")
    states = norm(row[None] + attended, weights, f"{name}.attention.output.LayerNorm")
    inner = gelu(dense(states, weights, f"{name}.intermediate.dense"))
    return norm(states + dense(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")[0]


def vector(states: np.ndarray, pooling: Pooling) -> np.ndarray:
    found = states[0] if pooling == "cls" else states.mean(axis=0)
    return found / np.linalg.norm(found)
