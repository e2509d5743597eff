"""Read a model's card from ``osrerank.json``, or infer it from the files that another library saved."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank._bad_value import describe_bad_value
from osrerank._removed import find_replacement
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import CARD_VERSION, Calibration, Head, ModelCard
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    PICKLES,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    add_defaults,
    find_graphs,
    max_sequence_tokens,
    tokenizer_file,
    weight_files,
)
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.modular.token_vectors import TokenVectorSettings
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import is_bi_encoder, read_bi_encoder

MAX_QUERY_TOKENS = 64
"""The maximum number of a query's tokens for models without a card, but never more than half of the sequence."""


def read_card(directory: Path, *, name: str = "") -> ModelCard:
    """Return the model card of a directory.

    Without ``osrerank.json``, the card is inferred from the files of a bi-encoder that sentence-transformers saved, or
    from a cross-encoder's ``config.json``.

    Args:
        directory: the model's directory.
        name: the name for the card. If empty, the card keeps the name in its file, or gets the directory's name.

    Raises:
        ModelLoadError: the files do not describe a model that can rerank.
    """
    _check_files(directory)
    has_card = (directory / CARD_FILE).exists()
    if not has_card and is_bi_encoder(directory):
        return _infer_bi_encoder_card(directory, name or directory.name)
    file = directory / (CARD_FILE if has_card else CONFIG_FILE)
    content = read_json(file)
    try:
        fields = _parse_card(content) if has_card else _infer_fields(add_defaults(content), directory)
        fields["name"] = name or fields.get("name") or directory.name
        return ModelCard(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{file}: {describe_bad_value(error)}"
        raise ModelLoadError(reason, model=name or directory.name, path=str(file)) from error


def list_parameter_files(directory: Path) -> list[str]:
    """Return the files that contain a model's weights, relative to its directory.

    These are its safetensors: the transformer's, and those in the folders of modules after it, such as
    ``2_Dense/model.safetensors``. For a model without safetensors, it is one graph: the card's fp32 graph, or else its
    int8 graph.

    Raises:
        ModelLoadError: there are no safetensors, and the card cannot be read.
    """
    safetensors = weight_files(directory)
    has_card = (directory / CARD_FILE).exists()
    if safetensors:
        cross_encoder = read_cross_encoder(directory)
        if cross_encoder is not None:
            return [*safetensors, *cross_encoder.weight_files]
        if has_card or is_bi_encoder(directory):
            return [*safetensors, *module_weights(read_card(directory))]
        return safetensors
    if not has_card:
        return []
    graphs = read_card(directory).onnx
    for precision in ("fp32", "int8"):
        if precision in graphs:
            return [graphs[precision]]
    return []


def module_weights(card: ModelCard) -> list[str]:
    """Return the safetensors of a bi-encoder's modules, relative to its directory: ``2_Dense/model.safetensors``."""
    # The weights of the module in 2_Dense have names such as 2_Dense.linear. A module without weights has the name "".
    return [f"{step.name.partition('.')[0]}/{WEIGHTS_FILE}" for step in card.modules if step.name]


def _check_files(directory: Path) -> None:
    """Raise `ModelLoadError` unless a directory contains a tokenizer, and safetensors or a graph."""
    has_weights = bool(weight_files(directory))
    if not tokenizer_file(directory).exists():
        fix = "save it there with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        raise ModelLoadError(f"{directory} has no {TOKENIZER_FILE}; {fix}", path=str(directory))
    if has_weights or any(directory.rglob("*.onnx")):
        return
    for file in (directory / name for name in PICKLES):
        if file.exists():
            fix = "if you trust it, convert it with model.save_pretrained(..., safe_serialization=True)"
            raise ModelLoadError(f"{file} is a pickle, which can run code when it is read; {fix}", path=str(file))
    raise ModelLoadError(
        f"{directory} has neither *.safetensors nor *.onnx files; copy the whole model", path=str(directory)
    )


def _infer_bi_encoder_card(directory: Path, name: str) -> ModelCard:
    """Return the card of a bi-encoder that another library saved.

    An ONNX graph that another program exported ends at the last hidden states, so it is used only if no module after
    the transformer has weights.

    Raises:
        ModelLoadError: the files cannot be read, or the model must be exported first.
    """
    source = read_bi_encoder(directory, name)
    if source.directory != directory or source.is_static:
        reason = f"{directory} has a StaticEmbedding, or its transformer in a folder; run osrerank export on it"
        raise ModelLoadError(reason, model=name, path=str(directory))
    return source.card if source.module_weights else replace(source.card, onnx=find_graphs(directory))


def _parse_card(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``osrerank.json`` as fields of `ModelCard`."""
    card = dict(content)
    card.pop("tokenizer", None)  # read by `tokenizer_file`
    version = card.pop("version", None)
    if version != CARD_VERSION:
        raise ValueError(f"version is {version!r}; this osrerank reads {CARD_VERSION}: export the checkpoint again")
    card["calibration"] = Calibration(**card.pop("calibration", {}))
    card["languages"] = tuple(card.pop("languages", ()))
    card["modules"] = tuple(HeadStep(**step) for step in card.pop("modules", ()))
    card["tokens"] = TokenVectorSettings.from_json(card.pop("tokens", {}))
    if card.pop("feedback", None):
        raise ValueError(f"feedback was removed; {find_replacement('feedback')}")
    return card


def _infer_fields(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the fields of `ModelCard` for a cross-encoder without a card."""
    cross_encoder = read_cross_encoder(directory)
    settings = TokenizerSettings.read(directory)
    segment_rows = int(config.get("type_vocab_size", 0))
    if not settings.uses_token_types:
        segment_rows = min(1, segment_rows)  # all tokens have the segment 0
    limit = cross_encoder.max_tokens if cross_encoder else settings.limit
    max_tokens = max_sequence_tokens(config, limit)
    if cross_encoder is None or cross_encoder.head is None:  # a transformers classifier
        head, graphs = _infer_head(config), find_graphs(directory)
    else:
        # graphs that other programs exported end at the last hidden states, before the modules of the head
        head, graphs = _head_for_labels(cross_encoder.labels), {}
    return {
        "head": head,
        "max_tokens": max_tokens,
        "max_query_tokens": min(MAX_QUERY_TOKENS, max_tokens // 2),
        "segment_rows": segment_rows,
        "truncation_side": settings.truncation_side,
        "query_prefix": cross_encoder.query_prefix if cross_encoder else "",
        "onnx": graphs,
    }


def _infer_head(config: Mapping[str, Any]) -> Head:
    """Return the head that a cross-encoder's config describes.

    Raises:
        ValueError: the config describes another kind of model.
    """
    if "auto_map" in config:
        reason = "auto_map requires the model's own Python code, which osrerank never runs"
        raise ValueError(f"{reason}; export the model to ONNX")
    architecture = next(iter(config.get("architectures") or ["nothing"]))  # the message: "architectures lists nothing"
    if architecture == "BertForNextSentencePrediction":
        return "next-sentence"
    if not architecture.endswith("ForSequenceClassification"):
        requirement = "a reranking model is a *ForSequenceClassification or BertForNextSentencePrediction"
        fix = "osrerank export MODEL OUTPUT makes a reranker from a bi-encoder or a late-interaction model"
        if architecture.endswith("ForPreTraining"):
            fix = "if it was trained as a reranker with that head: osrerank export MODEL OUTPUT --head next-sentence"
        raise ValueError(f"architectures lists {architecture}; {requirement}; {fix}")
    return _head_for_labels(len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 2)))


def _head_for_labels(n_labels: int) -> Head:
    if n_labels not in {1, 2}:
        requirement = "a reranking model has 1 (a logit) or 2 (the second means relevant)"
        raise ValueError(f"the classifier has {n_labels} labels; {requirement}")
    return "logit1" if n_labels == 1 else "logits2"
