"""Find and read the files of a model directory: config, tokenizer, weights and graphs."""

import hashlib
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from osrerank.errors import ModelLoadError
from osrerank.formats.files import hash_file
from osrerank.scoring.card import is_inside
from osrerank.scoring.json_file import read_json

SHIPPED = Path(__file__).parent.parent / "models"
"""The folder of the models that osrerank ships."""
CARD_FILE = "osrerank.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"
PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.pt", "model.pt", "model.pth")
LEGACY_PICKLE_PREFIX = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""The first bytes of the files that torch.save wrote before 1.6. Later versions write zip archives."""
ONNX_FILES = {
    "int8": ("onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
    "fp32": ("onnx/model.onnx", "model.onnx"),
}
"""Paths of graphs that other programs export, by precision. Graphs for one processor (qint8_avx512) are ignored."""
GRAPH_PATTERNS = (ONNX_FILES["int8"], (*ONNX_FILES["fp32"], "onnx/model.onnx_data", "model.onnx_data"))
"""Lists of patterns of graph files, best first. Only the files of the first list that matches any are downloaded."""
WEIGHT_PATTERNS = (
    ("*.safetensors", WEIGHTS_INDEX_FILE),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
"""Lists of patterns of weight files, used like `GRAPH_PATTERNS`."""
OLD_PARAMETERS = {".gamma": ".weight", ".beta": ".bias"}
"""Suffix of a LayerNorm's weight in TensorFlow, which some versions of transformers write -> PyTorch's suffix."""
DEFAULT_MAX_TOKENS = 512
"""Sequences have at most this many tokens if the model's files set no limit, except in `LONG_FAMILIES`."""
LONG_FAMILIES = ("modernbert",)
"""The ``model_type`` of families whose default limit is the number of their position embeddings, such as 8192."""
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
"""ModernBERT has further defaults in `osrerank.scoring.modular.modern_bert`, because they changed in transformers 5."""
# The following dictionaries contain only what differs from _BERT.
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
"""For each supported ``model_type``, transformers' defaults for the keys that a config leaves out."""


def read_config(directory: Path) -> dict[str, Any]:
    """Return a directory's ``config.json`` with transformers' defaults. Raises `ModelLoadError` if it is unreadable."""
    return add_defaults(read_json(directory / CONFIG_FILE))


def tokenizer_file(directory: Path) -> Path:
    """Return the path of a model's tokenizer: ``tokenizer.json``, or the path in the card's key ``tokenizer``.

    Only the models that osrerank ships can share a tokenizer outside their folders.

    Raises:
        ModelLoadError: the path is outside the model's folder.
    """
    default_file, card = directory / TOKENIZER_FILE, directory / CARD_FILE
    if default_file.exists() or not card.exists():
        return default_file
    name = str(read_json(card).get("tokenizer", TOKENIZER_FILE))
    if not is_inside(name) and directory.resolve().parent != SHIPPED:
        reason = f"{card}: tokenizer is {name!r}; it must be a file in the model's folder"
        raise ModelLoadError(reason, path=str(card))
    return directory / name


def current_name(name: str) -> str:
    """Return transformers' current name of a weight: ``a.LayerNorm.gamma`` -> ``a.LayerNorm.weight``."""
    for old, new in OLD_PARAMETERS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def read_padding_id(directory: Path) -> int:
    """Return the id of the padding token in a directory's ``config.json``, or 0 if it sets none."""
    config = read_config(directory) if (directory / CONFIG_FILE).exists() else {}
    return int(config.get("pad_token_id") or 0)


def is_pickled(file: Path) -> bool:
    """Return whether the content of a file is what torch.save writes."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        if stream.read(len(LEGACY_PICKLE_PREFIX)) == LEGACY_PICKLE_PREFIX:
            return True
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def hash_files(directory: Path, files: Iterable[str]) -> str:
    """Return the SHA-256 of the names and contents of files in a directory. The order of ``files`` does not matter."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}:{hash_file(directory / name)};".encode())
    return total.hexdigest()


def copy_existing(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy the files with these names that exist in ``source`` to ``target``."""
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def weight_files(directory: Path) -> list[str]:
    """Return the names of the safetensors that transformers loads: one file, or the files that an index lists.

    Other safetensors in the directory, such as older weights, are ignored.

    Raises:
        ModelLoadError: the directory contains an adapter, or several safetensors without an index, or an index without
            valid names.
    """
    adapter, index = directory / ADAPTER_FILE, directory / WEIGHTS_INDEX_FILE
    if adapter.exists():
        fix = "merge it into the weights: peft's merge_and_unload(), then save_pretrained(...)"
        reason = f"{adapter}: an adapter (such as LoRA) changes the model's weights, and osrerank cannot apply it"
        raise ModelLoadError(f"{reason}; {fix}", path=str(adapter))
    if (directory / WEIGHTS_FILE).exists():
        return [WEIGHTS_FILE]
    if index.exists():
        files_of_weights = read_json(index).get("weight_map")
        if not isinstance(files_of_weights, dict) or not all(
            is_inside(str(name)) for name in files_of_weights.values()
        ):
            reason = f"{index} has no weight_map with files of the model's folder; save the model again"
            raise ModelLoadError(reason, path=str(index))
        return sorted({str(name) for name in files_of_weights.values()})
    names = sorted(file.name for file in directory.glob("*.safetensors"))
    if len(names) > 1:
        reason = f"{directory} contains {', '.join(names)}, but neither {WEIGHTS_FILE} nor {WEIGHTS_INDEX_FILE}"
        raise ModelLoadError(
            f"{reason}; rename the file with the model's weights to {WEIGHTS_FILE}", path=str(directory)
        )
    return names


def find_graphs(directory: Path) -> dict[str, str]:
    """Return the paths of a directory's graphs by precision, such as ``{"int8": "onnx/model_int8.onnx"}``."""
    graphs: dict[str, str] = {}
    for precision, names in ONNX_FILES.items():
        for name in names:
            if (directory / name).exists():
                graphs[precision] = name
                break
    return graphs


def max_sequence_tokens(config: Mapping[str, Any], limit: int | None) -> int:
    """Return the maximum number of tokens in a sequence: ``limit``, but at most the number of position embeddings.

    Args:
        config: the content of ``config.json``, with defaults.
        limit: the limit in the model's other files. If None, the default of the model's family is used.
    """
    positions = int(config.get("max_position_embeddings", DEFAULT_MAX_TOKENS)) - first_position_id(config)
    default_limit = positions if config.get("model_type") in LONG_FAMILIES else DEFAULT_MAX_TOKENS
    return min(positions, limit or default_limit)


def first_position_id(config: Mapping[str, Any]) -> int:
    """Return the position id of a sequence's first token: 0, or the padding id plus 1 for MPNet and RoBERTa models."""
    family = str(config.get("model_type"))
    if "roberta" in family or family in ("camembert", "mpnet"):
        return int(config.get("pad_token_id") or 0) + 1
    return 0


def add_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with transformers' defaults for the keys that it leaves out, if its family is in `DEFAULTS`."""
    fields = {**DEFAULTS.get(str(config.get("model_type")), {}), **config}
    if "dim" in fields:  # DistilBERT's name for hidden_size
        return {"hidden_size": fields["dim"], **fields}
    return fields
