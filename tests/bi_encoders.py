"""The tiny bi-encoder as sentence-transformers saves it, and as bare files."""

import json
import shutil
from pathlib import Path

import pytest

TINY = Path(__file__).parent / "data" / "tiny-bert-cross-bias"


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


def plain(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(TINY / name, folder / name)
    return folder
