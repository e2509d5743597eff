"""Add a third row to the token type table, which BERT's checkpoints lack and duoBERT's second document needs.

In Nogueira et al. 2019 (arXiv 1910.14424, section 3.3), query, first and second document have a segment each. The
tables of BERT's checkpoints have two rows. The released duoBERT kept two rows. Its lookup multiplies by one-hot vectors
of length two, so the embedding of segment 2 is zero, in training and in use. The third row can start in two ways:

- ``zeros``: as the released code computes. Training either keeps the row at zero or changes it.
- ``copy``: a copy of the first document's row, as the paper's text, with an embedding for each segment, suggests.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.model_files import CONFIG_FILE, TOKENIZER_FILE, read_config, weight_files

TABLE = "token_type_embeddings"
ThirdRow = Literal["zeros", "copy"]


def third_row(table: Tensor, start: ThirdRow) -> Tensor:
    """Return the table ``(2, hidden)`` with a third row ``(3, hidden)``.

    Raises:
        ValueError: the table does not have two rows.
    """
    if table.shape[0] != 2:
        raise ValueError(f"the token type table has {table.shape[0]} rows; it must have two")
    row = torch.zeros_like(table[1]) if start == "zeros" else table[1].clone()
    return torch.cat([table, row.unsqueeze(0)])


def write_with_third_row(source: Path, folder: Path, start: ThirdRow) -> None:
    """Write a copy of a checkpoint whose token type table has a third row: config, tokenizer and safetensors.

    Args:
        source: a Hugging Face directory.
        folder: an empty directory.
        start: initial values of the third row.

    Raises:
        ModelLoadError: the checkpoint does not have one token type table of two rows.
    """
    safetensors: Any = require("safetensors.torch", extra="torch")
    config = read_config(source)
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "type_vocab_size": 3}, indent=2), encoding="utf-8")
    for file in source.glob(f"{TOKENIZER_FILE.removesuffix('.json')}*.json"):
        shutil.copyfile(file, folder / file.name)
    widened = 0
    for name in weight_files(source):
        weights = safetensors.load_file(source / name)
        widened += sum(_is_table(key, weights) for key in weights)
        changed = {
            key: third_row(tensor, start) if _is_table(key, weights) else tensor for key, tensor in weights.items()
        }
        safetensors.save_file(changed, folder / name, metadata={"format": "pt"})
    if widened != 1:
        reason = f"{source} has {widened} token type tables of two rows; a duo model needs a BERT with one such table"
        raise ModelLoadError(reason, path=str(source))


def _is_table(name: str, weights: Mapping[str, Tensor]) -> bool:
    return name.endswith(f"{TABLE}.weight") and weights[name].shape[0] == 2
