"""Read a bi-encoder's directory in sentence-transformers' layout (Reimers, Gurevych 2019, arXiv 1908.10084)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError
from osrerank.scoring.card import Calibration, ModelCard, Pooling
from osrerank.scoring.model_files import CONFIG_FILE, MOST_TOKENS, TOKENIZER_FILE, read_config, read_json, weight_files

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
LENGTHS = {"sentence_bert_config.json": "max_seq_length", "tokenizer_config.json": "model_max_length"}
"""File -> its field for the most tokens of a text; older versions of the library write the first, newer the second."""
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean"}
MODES: Mapping[str, Pooling] = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
MODEL_TYPE = "CrossEncoder"
"""The ``model_type`` in `PROMPTS_FILE` of a cross-encoder; any other model is a bi-encoder."""
UNCALIBRATED = Calibration(20.0, -15.0)
"""Spreads the logits of usual cosines, .6 to .9, around 0; their probabilities mean nothing until they are fitted."""
FIRST_PASS_WEIGHTS: Mapping[Pooling, float] = {"cls": 0.1, "mean": 0.05}
"""What the best first-pass score adds to a cosine; measured for bge-small-en-v1.5 and e5-small-v2 in
docs/research/joined.md."""


@dataclass(frozen=True, slots=True)
class BiEncoder:
    """A bi-encoder as its files describe it.

    Attributes:
        directory: where ``config.json``, ``tokenizer.json`` and the safetensors are.
        config: ``config.json``.
        pooling: how a text's hidden states become its vector.
        query_prefix: precedes every query.
        document_prefix: precedes every document.
        max_tokens: most tokens of a text, special tokens included.
    """

    directory: Path
    config: Mapping[str, Any]
    pooling: Pooling
    query_prefix: str
    document_prefix: str
    max_tokens: int


def is_bi_encoder(directory: Path) -> bool:
    """Return whether a directory contains a bi-encoder that sentence-transformers saved."""
    if not (directory / MODULES_FILE).exists():
        return False
    return _optional(directory / PROMPTS_FILE).get("model_type") != MODEL_TYPE


def card_of(model: BiEncoder, name: str) -> ModelCard:
    """Return a bi-encoder's card, with a provisional calibration."""
    return ModelCard(
        name=name,
        head="cosine",
        kind="bi-encoder",
        max_tokens=model.max_tokens,
        max_query_tokens=model.max_tokens,
        segment_rows=int(model.config["type_vocab_size"]),
        calibration=UNCALIBRATED,
        first_pass_weight=FIRST_PASS_WEIGHTS[model.pooling] * UNCALIBRATED.scale,
        pooling=model.pooling,
        query_prefix=model.query_prefix,
        document_prefix=model.document_prefix,
    )


def read_bi_encoder(
    directory: Path,
    *,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    document_prefix: str | None = None,
) -> BiEncoder:
    """Read a bi-encoder's files; arguments override what they say.

    Args:
        directory: the model's, with ``modules.json`` where sentence-transformers saved it.
        pooling: ``cls`` or ``mean``; needed if the files do not name it.
        query_prefix: None for the files' prefix; if they name none, it is empty.
        document_prefix: likewise.

    Raises:
        ModelLoadError: a file is missing or cannot be read, the model is not a BERT, or it has a module besides
            transformer, pooling and normalisation.
    """
    modules = _modules(directory)
    transformer = directory / modules.get("Transformer", "")
    for file in (CONFIG_FILE, TOKENIZER_FILE):
        if not (transformer / file).exists():
            reason = f"{transformer / file} is missing; save the model with transformers' fast tokenizer"
            raise ModelLoadError(reason, path=str(transformer / file))
    if not weight_files(transformer):
        fix = "save the model with safe_serialization=True"
        raise ModelLoadError(f"{transformer} has no *.safetensors; {fix}", path=str(transformer))
    config = read_config(transformer)
    _check_architecture(transformer / CONFIG_FILE, config)
    prompts = _optional(directory / PROMPTS_FILE).get("prompts") or {}
    limits = [_optional(transformer / file).get(name) for file, name in LENGTHS.items()]
    found = BiEncoder(
        transformer,
        config,
        pooling or _pooling(directory, modules),
        _prompt(prompts, QUERY_PROMPTS) if query_prefix is None else query_prefix,
        _prompt(prompts, DOCUMENT_PROMPTS) if document_prefix is None else document_prefix,
        min(MOST_TOKENS, int(config["max_position_embeddings"]), *(int(limit) for limit in limits if limit)),
    )
    _check_prompts(directory, modules, found)
    return found


def _modules(directory: Path) -> dict[str, str]:
    """Return kind of module -> its folder; empty if the directory has no ``modules.json``."""
    file = directory / MODULES_FILE
    if not file.exists():
        return {}
    content: Any = read_json(file, kind=list)
    try:
        found = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in content}
    except (KeyError, TypeError) as error:
        raise ModelLoadError(f"{file} is not a list of modules with type and path: {error!r}", path=str(file)) from None
    if others := sorted(set(found) - {"Transformer", "Pooling", "Normalize"}):
        reason = f"{file} has a module {others[0]}; only Transformer, Pooling and Normalize can be exported"
        raise ModelLoadError(reason, path=str(file))
    return found


def _check_architecture(file: Path, config: Mapping[str, Any]) -> None:
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    positions = config.get("position_embedding_type", "absolute")
    if kind != "bert":
        reason = f"model_type is {kind!r}; only bert can be exported, such as bge v1.5, e5 v2, gte v1, all-MiniLM"
    elif "auto_map" in config:
        reason = "auto_map asks for the model's own Python code, which osrerank never runs"
    elif activation != "gelu" or positions != "absolute" or config.get("is_decoder"):
        reason = f"hidden_act is {activation!r}, positions are {positions!r}; only GELU and absolute can be exported"
    else:
        return
    raise ModelLoadError(f"{file}: {reason}", path=str(file))


def _pooling(directory: Path, modules: Mapping[str, str]) -> Pooling:
    fix = "name it: --pooling cls or --pooling mean"
    if "Pooling" not in modules:
        raise ModelLoadError(f"{directory} does not say how texts are pooled; {fix}", path=str(directory))
    file = directory / modules["Pooling"] / CONFIG_FILE
    content = read_json(file)
    if content.get("pooling_mode") in POOLINGS:
        return POOLINGS[content["pooling_mode"]]
    modes = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]]
    named = ", ".join(modes) or content.get("pooling_mode") or "nothing"
    raise ModelLoadError(f"{file} names {named}; only [CLS] or the mean of all tokens can be exported", path=str(file))


def _check_prompts(directory: Path, modules: Mapping[str, str], found: BiEncoder) -> None:
    """Refuse prefixes whose tokens are left out of the mean: the graph averages all tokens."""
    file = directory / modules.get("Pooling", "") / CONFIG_FILE
    is_left_out = "Pooling" in modules and _optional(file).get("include_prompt") is False
    if is_left_out and found.pooling == "mean" and (found.query_prefix or found.document_prefix):
        reason = f"{file} leaves prefixes out of the mean (include_prompt is false), which cannot be exported"
        raise ModelLoadError(reason, path=str(file))


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _prompt(prompts: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(prompts[name]) for name in names if prompts.get(name)), "")
