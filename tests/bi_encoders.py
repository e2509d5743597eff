"""The tiny bi-encoder as sentence-transformers saves it, as bare files, and from its definition."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from osrerank.export.export_model import write_card
from osrerank.scoring.card import ModelCard, Pooling

CLS, SEP = 2, 3
HEADS = 4
Weights = Mapping[str, np.ndarray]

TINY = Path(__file__).parent / "data" / "tiny-bert-bi-encoder"


def saved(folder: Path, pooling: str = "cls", **prompts: str) -> Path:
    """Have sentence-transformers save the tiny bi-encoder."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(str(plain(folder.with_name(f"{folder.name}-plain"))), max_seq_length=24)
    width = json.loads((TINY / "config.json").read_text("utf-8"))["hidden_size"]
    parts = [transformer, modules.Pooling(width, pooling), modules.Normalize()]
    made = library.SentenceTransformer(modules=parts, prompts=prompts, device="cpu")
    made.save_pretrained(str(folder))
    return folder


def plain(folder: Path, source: Path = TINY) -> Path:
    """Copy a model without its card and its graph."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(source / name, folder / name)
    return folder


def carded(folder: Path, pooling: Pooling = "cls", query_prefix: str = "") -> Path:
    """Write the tiny bi-encoder with its weights and its card, without a graph."""
    card = ModelCard("tiny", "cosine", kind="bi-encoder", pooling=pooling, query_prefix=query_prefix)
    write_card(plain(folder), card)
    return folder


def defined(directory: Path, query: str, document: str, pooling: str, prefixes: tuple[str, str] = ("", "")) -> float:
    """Return the cosine of two texts, each encoded alone in float64; neither may be so long that it is cut."""
    from safetensors.torch import load_file

    weights = {name: tensor.double().numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    layers = json.loads((directory / "config.json").read_bytes())["num_hidden_layers"]
    vectors = []
    for text in (prefixes[0] + query, prefixes[1] + document):
        ids = [CLS, *tokenizer.encode(text, add_special_tokens=False).ids, SEP]
        table = "embeddings.{}_embeddings.weight"
        states = weights[table.format("word")][ids] + weights[table.format("position")][: len(ids)]
        states = _norm(states + weights[table.format("token_type")][0], weights, "embeddings.LayerNorm")
        for index in range(layers):
            states = _layer(states, weights, f"encoder.layer.{index}")
        pooled = states[0] if pooling == "cls" else states.mean(axis=0)
        vectors.append(pooled / np.linalg.norm(pooled))
    return float(vectors[0] @ vectors[1])


def _layer(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    query, key, value = (_dense(states, weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
    width = states.shape[1] // HEADS
    context = np.zeros_like(states)
    for start in range(0, states.shape[1], width):
        head = slice(start, start + width)
        weight = np.exp(query[:, head] @ key[:, head].T / width**0.5)
        context[:, head] = weight / weight.sum(axis=1, keepdims=True) @ value[:, head]
    attended = _dense(context, weights, f"{name}.attention.output.dense")
    states = _norm(states + attended, weights, f"{name}.attention.output.LayerNorm")
    inner = _gelu(_dense(states, weights, f"{name}.intermediate.dense"))
    return _norm(states + _dense(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def _gelu(values: np.ndarray) -> np.ndarray:
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(values)).numpy()


def _dense(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = states - states.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
