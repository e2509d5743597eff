"""Read the files of a model directory, and reject directories that cannot be used."""

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from osrerank.errors import ModelLoadError
from osrerank.scoring.card import is_inside
from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.cross_encoder import CrossEncoderDescription, read_cross_encoder

SHIPPED = Path(__file__).parent.parent / "models"
CARD_FILE = "osrerank.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"
PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.pt", "model.pt", "model.pth")
LEGACY_START = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""The first bytes of files that torch.save wrote before 1.6; later ones are zip archives."""
ONNX_FILES = {
    "int8": ("onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
    "fp32": ("onnx/model.onnx", "model.onnx"),
}
"""Precision -> where other programs' exports keep their graphs; files for a single processor are not among them."""
GRAPHS = (ONNX_FILES["int8"], (*ONNX_FILES["fp32"], "onnx/model.onnx_data", "model.onnx_data"))
WEIGHTS = (
    ("*.safetensors", WEIGHTS_INDEX_FILE),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
"""What to fetch from a hub repository: the first list of which it has a file, so that not every form is downloaded."""
MOST_TOKENS = 512
"""The most tokens of a sequence where the model's files set no limit, except for the families in `LONG`."""
LONG = ("modernbert",)
"""Families that were trained with longer sequences, by ``model_type``."""
_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_MPNET = {**_BERT, "vocab_size": 30527, "pad_token_id": 1, "relative_attention_num_buckets": 32}
del _MPNET["type_vocab_size"]
_MODERN_BERT = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "pad_token_id": 50283,
}
"""The others are in `osrerank.scoring.modular.modern_bert`, by the version of transformers."""
_ELECTRA = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
_ALBERT = {
    "vocab_size": 30000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
}
_DEBERTA = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert": _BERT,
        "roberta": {**_BERT, "vocab_size": 50265, "pad_token_id": 1},
        "xlm-roberta": {**_BERT, "pad_token_id": 1},
        "camembert": {**_BERT, "pad_token_id": 1},
        "electra": {**_BERT, **_ELECTRA},
        "albert": {**_BERT, **_ALBERT},
        "deberta-v2": {**_BERT, **_DEBERTA},
        "distilbert": {"vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0, "dim": 768},
        "mpnet": _MPNET,
        "modernbert": _MODERN_BERT,
    }
)
"""``model_type`` -> transformers' defaults for keys that a config leaves out, of families that osrerank computes."""


def read_config(directory: Path) -> dict[str, Any]:
    """Return a directory's ``config.json``, with transformers' defaults for the keys that it leaves out.

    Raises:
        ModelLoadError: as `read_json`.
    """
    return filled(read_json(directory / CONFIG_FILE))


def tokenizer_file(directory: Path) -> Path:
    """Return the file of a model's tokenizer: its own, or the one that ``tokenizer`` in its card names.

    Shipped models share a tokenizer; the card of any other names a file in its own folder.

    Raises:
        ModelLoadError: the card names a file elsewhere.
    """
    own, card = directory / TOKENIZER_FILE, directory / CARD_FILE
    if own.exists() or not card.exists():
        return own
    name = str(read_json(card).get("tokenizer", TOKENIZER_FILE))
    if not is_inside(name) and directory.resolve().parent != SHIPPED:
        reason = f"{card}: tokenizer is {name!r}; it must be a file in the model's folder"
        raise ModelLoadError(reason, path=str(card))
    return directory / name


def padding_id(directory: Path) -> int:
    """Return the id of the padding token from the directory's ``config.json``; 0 if it names none."""
    config = read_config(directory) if (directory / CONFIG_FILE).exists() else {}
    return int(config.get("pad_token_id") or 0)


def is_pickled(file: Path) -> bool:
    """Return whether a file's content shows that torch.save wrote it."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        if opened.read(len(LEGACY_START)) == LEGACY_START:
            return True
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def digest(directory: Path, files: Iterable[str]) -> str:
    """Return the SHA-256 of the named files' names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        with (directory / name).open("rb") as opened:
            total.update(f"{name}:{hashlib.file_digest(opened, 'sha256').hexdigest()};".encode())
    return total.hexdigest()


def weight_files(directory: Path) -> list[str]:
    """Return the names of the safetensors that transformers reads: one file, or those that an index names.

    Others beside them, such as older weights, are not read.

    Raises:
        ModelLoadError: there is an adapter, or several files and nothing says which of them to read.
    """
    if (adapter := directory / ADAPTER_FILE).exists():
        fix = "merge it into the weights: peft's merge_and_unload(), then save_pretrained(...)"
        reason = f"{adapter}: an adapter (LoRA or the like) changes the model's weights, and osrerank applies none"
        raise ModelLoadError(f"{reason}; {fix}", path=str(adapter))
    if (directory / WEIGHTS_FILE).exists():
        return [WEIGHTS_FILE]
    if (index := directory / WEIGHTS_INDEX_FILE).exists():
        return sorted(set(read_json(index).get("weight_map", {}).values()))
    found = sorted(file.name for file in directory.glob("*.safetensors"))
    if len(found) > 1:
        reason = f"{directory} has {', '.join(found)}, and neither {WEIGHTS_FILE} nor {WEIGHTS_INDEX_FILE}"
        raise ModelLoadError(f"{reason}; name the model's weights {WEIGHTS_FILE}", path=str(directory))
    return found


def other_graphs(directory: Path) -> dict[str, str]:
    """Return the graphs that another program exported: precision -> file, relative to the directory."""
    return {
        precision: name
        for precision, names in ONNX_FILES.items()
        if (name := next((name for name in names if (directory / name).exists()), None))
    }


def modular(directory: Path) -> CrossEncoderDescription | None:
    """Return the cross-encoder that sentence-transformers' files describe; None if there are no such files.

    Raises:
        ModelLoadError: a file asks for something that osrerank does not know; the message names the file and the field.
    """
    return read_cross_encoder(directory)


def longest_sequence(config: Mapping[str, Any], limit: int | None) -> int:
    """Return the most tokens of a sequence: the limit of the model's files, within the positions that it has."""
    room = int(config.get("max_position_embeddings", MOST_TOKENS)) - first_position(config)
    usual = room if config.get("model_type") in LONG else MOST_TOKENS
    return min(room, limit or usual)


def first_position(config: Mapping[str, Any]) -> int:
    """Return the position id of a sequence's first token: after the padding id for MPNet and RoBERTa's kin, else 0."""
    kind = str(config.get("model_type"))
    return int(config.get("pad_token_id") or 0) + 1 if "roberta" in kind or kind in ("camembert", "mpnet") else 0


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add transformers' defaults for the keys that a config leaves out; other families' configs stay unchanged."""
    fields = {**DEFAULTS.get(str(config.get("model_type")), {}), **config}
    return {"hidden_size": fields["dim"], **fields} if "dim" in fields else fields  # DistilBERT's name of it
