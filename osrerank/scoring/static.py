"""Read a StaticEmbedding of sentence-transformers: a model that averages the fixed vectors of a text's tokens."""

import json
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, weight_files
from osrerank.scoring.modular.bi_encoder import MAX_TOKENS
from osrerank.scoring.modular.description import STATIC_MODEL_TYPE, file_error

NO_SPECIAL_TOKENS = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
"""A post-processor for ``tokenizer.json`` that adds no special tokens, because a StaticEmbedding's input has none."""


def read_token_vectors(directory: Path) -> Any:
    """Return the vectors of all tokens in the vocabulary, fp32 ``(tokens, dimensions)``.

    In the files of the library model2vec, ``mapping`` has the row of each token's vector, because tokens can share a
    vector, and ``weights`` has each token's weight.

    Raises:
        ModelLoadError: the directory has no safetensors with these vectors.
    """
    file = directory / next(iter(weight_files(directory)), WEIGHTS_FILE)
    if not file.exists():
        raise file_error(file, "the file is missing; save the model with safe_serialization=True")
    tensors = require("safetensors.torch", extra="torch").load_file(file)
    vectors = tensors.get("embedding.weight", tensors.get("embeddings"))
    if vectors is None:
        raise file_error(
            file, "the file has no tensor 'embedding.weight', which a StaticEmbedding needs; save the model again"
        )
    if "mapping" in tensors:
        vectors = vectors[tensors["mapping"].long()]
    if "weights" in tensors:
        vectors = vectors.float() * tensors["weights"][:, None]
    return vectors.float().contiguous()


def make_config(token_vectors: Any) -> dict[str, Any]:
    """Return the content of ``config.json`` for the vectors that `read_token_vectors` returns."""
    n_tokens, dimensions = token_vectors.shape
    return {
        "model_type": STATIC_MODEL_TYPE,
        "vocab_size": n_tokens,
        "hidden_size": dimensions,
        "max_position_embeddings": MAX_TOKENS,
    }


def convert(source: Path, target: Path) -> None:
    """Convert a StaticEmbedding's files in a directory, for `osrerank.scoring`, and write them to another one."""
    token_vectors = read_token_vectors(source)
    require("safetensors.torch", extra="torch").save_file({"embedding.weight": token_vectors}, target / WEIGHTS_FILE)
    (target / CONFIG_FILE).write_text(json.dumps(make_config(token_vectors)), encoding="utf-8")
    tokenizer = {**read_json(source / TOKENIZER_FILE), "post_processor": NO_SPECIAL_TOKENS}
    (target / TOKENIZER_FILE).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
