"""Add a third row to BERT's table of token types (segments), for the second document that a duo model reads.

In Nogueira et al. 2019 (arXiv 1910.14424, section 3.3), the query and the two documents are segments 0, 1 and 2, but
the table of a BERT checkpoint has two rows. The released duoBERT kept two rows. Its code looks rows up by one-hot
vectors of length two, so that segment 2 always gets zeros. The third row has one of two initial values:

- ``zeros``, as in the released code. Training can then change the row or keep it at zero.
- ``copy``, a copy of the first document's row, because the paper suggests an embedding for each segment.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.model_files import CONFIG_FILE, read_config, weight_files

TABLE = "token_type_embeddings"
"""The last part of the table's name, without ``.weight``."""
ThirdRow = Literal["zeros", "copy"]


def add_third_row(table: Tensor, third_row: ThirdRow) -> Tensor:
    """Return a table ``(2, hidden)`` with a third row, either zeros or a copy of the second row.

    Raises:
        ValueError: the table does not have two rows.
    """
    if table.shape[0] != 2:
        raise ValueError(f"the token type table has {table.shape[0]} rows; it must have two")
    row = torch.zeros_like(table[1]) if third_row == "zeros" else table[1].clone()
    return torch.cat([table, row.unsqueeze(0)])


def write_with_third_segment(source: Path, folder: Path, third_row: ThirdRow) -> None:
    """Copy a checkpoint's config, tokenizer and safetensors, with a third row in its table of token types.

    Raises:
        ModelLoadError: the checkpoint does not have one token type table of two rows.
    """
    safetensors: Any = require("safetensors.torch", extra="torch")
    config = read_config(source)
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "type_vocab_size": 3}, indent=2), encoding="utf-8")
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, folder / file.name)
    n_tables = 0
    for name in weight_files(source):
        weights = safetensors.load_file(source / name)
        for key, tensor in weights.items():
            if key.endswith(f"{TABLE}.weight") and tensor.shape[0] == 2:
                weights[key] = add_third_row(tensor, third_row)
                n_tables += 1
        safetensors.save_file(weights, folder / name, metadata={"format": "pt"})
    if n_tables != 1:
        reason = f"{source} has {n_tables} token type tables of two rows; a duo model needs a BERT with one"
        raise ModelLoadError(reason, path=str(source))
