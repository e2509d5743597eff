"""Read the files of sentence-transformers' StaticEmbedding, which averages the vectors of a text's tokens."""

import json
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, weight_files
from osrerank.scoring.modular.bi_encoder import MAX_TOKENS
from osrerank.scoring.modular.description import STATIC_MODEL_TYPE, file_error

EMPTY_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
"""A post-processor that adds no special tokens, because a StaticEmbedding's input has none."""


def read_token_vectors(directory: Path) -> Any:
    """Return the vectors of the vocabulary's tokens, fp32 ``(tokens, dimensions)``.

    In model2vec's files, several tokens can share a vector, and each token has a weight.

    Raises:
        ModelLoadError: the directory has no safetensors with these vectors.
    """
    file = directory / next(iter(weight_files(directory)), WEIGHTS_FILE)
    if not file.exists():
        raise file_error(file, "it is missing; save the model with safe_serialization=True")
    weights = require("safetensors.torch", extra="torch").load_file(file)
    rows = weights.get("embedding.weight", weights.get("embeddings"))
    if rows is None:
        raise file_error(file, "it has no tensor embedding.weight, which a StaticEmbedding needs")
    if "mapping" in weights:
        rows = rows[weights["mapping"].long()]
    if "weights" in weights:
        rows = rows.float() * weights["weights"][:, None]
    return rows.float().contiguous()


def make_config(rows: Any) -> dict[str, Any]:
    """Return the content of ``config.json`` for the vectors that `read_token_vectors` returns."""
    tokens, width = rows.shape
    return {
        "model_type": STATIC_MODEL_TYPE,
        "vocab_size": tokens,
        "hidden_size": width,
        "max_position_embeddings": MAX_TOKENS,
    }


def convert(directory: Path, folder: Path) -> None:
    """Convert a StaticEmbedding's files to the format that `osrerank.scoring` reads.

    Args:
        directory: the StaticEmbedding's files.
        folder: the directory to write to.
    """
    rows = read_token_vectors(directory)
    require("safetensors.torch", extra="torch").save_file({"embedding.weight": rows}, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(make_config(rows)), encoding="utf-8")
    tokenizer = {**read_json(directory / TOKENIZER_FILE), "post_processor": EMPTY_TEMPLATE}
    (folder / TOKENIZER_FILE).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
