"""The tiny bi-encoder as sentence-transformers saves it, and as bare files."""

import json
import shutil
from pathlib import Path

import pytest

from osrerank.export.export_model import write_card
from osrerank.scoring.card import ModelCard, Pooling

TINY = Path(__file__).parent / "data" / "tiny-bert-bi-encoder"


def saved(folder: Path, pooling: str = "cls", **prompts: str) -> Path:
    """Have sentence-transformers save the tiny bi-encoder."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    transformer = modules.Transformer(str(plain(folder.with_name(f"{folder.name}-plain"))), max_seq_length=24)
    width = json.loads((TINY / "config.json").read_text("utf-8"))["hidden_size"]
    parts = [transformer, modules.Pooling(width, pooling), modules.Normalize()]
    sentence_transformer = library.SentenceTransformer(modules=parts, prompts=prompts, device="cpu")
    sentence_transformer.save_pretrained(str(folder))
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
