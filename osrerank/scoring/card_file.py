"""Read a model's card: ``osrerank.json``, or a card made from the files that another library saved."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank._removed import replacement_for
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import CARD_VERSION, Calibration, Head, ModelCard
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    PICKLES,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    foreign_graphs,
    longest_sequence,
    tokenizer_file,
    weight_files,
    with_defaults,
)
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.modular.token_vectors import TokenVectors
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import is_bi_encoder, read_bi_encoder

MAX_QUERY_TOKENS = 64
"""The maximum query tokens of a model without a card; at most half of the sequence."""


def read_card(directory: Path, *, name: str = "") -> ModelCard:
    """Return the model card of a directory: ``osrerank.json``, or a card made from other files.

    These are the files of a bi-encoder that sentence-transformers saved, or a cross-encoder's ``config.json``.

    Raises:
        ModelLoadError: the model cannot rerank; the message says why.
    """
    _refuse_unusable(directory)
    if not (directory / CARD_FILE).exists() and is_bi_encoder(directory):
        return _bi_encoder_card(directory, name or directory.name)
    file = directory / CARD_FILE if (directory / CARD_FILE).exists() else directory / CONFIG_FILE
    content = read_json(file)
    try:
        card = (
            _parse_card(content) if file.name == CARD_FILE else _fields_from_config(with_defaults(content), directory)
        )
        return ModelCard(**{**card, "name": name or card.get("name") or directory.name})
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{file}: {error}", model=name or directory.name, path=str(file)) from error


def parameter_files(directory: Path) -> list[str]:
    """Return the files of a network's weights: safetensors, or else a graph from the card, fp32 before int8.

    A modular cross-encoder, and a bi-encoder with modules, also have safetensors in their modules' folders.

    Raises:
        ModelLoadError: there are no safetensors, and the card cannot be read.
    """
    safetensors = weight_files(directory)
    has_card = (directory / CARD_FILE).exists()
    if safetensors:
        cross_encoder = read_cross_encoder(directory)
        module_files = module_weights(read_card(directory)) if has_card or is_bi_encoder(directory) else ()
        return [*safetensors, *(cross_encoder.weights if cross_encoder else module_files)]
    if not has_card:
        return safetensors
    card = read_card(directory)
    return [card.onnx[name] for name in ("fp32", "int8") if name in card.onnx][:1]


def module_weights(card: ModelCard) -> list[str]:
    """Return the safetensors files of a bi-encoder's modules, relative to its directory; each has its own folder."""
    return [f"{step.name.partition('.')[0]}/{WEIGHTS_FILE}" for step in card.modules if step.name]


def _refuse_unusable(directory: Path) -> None:
    has_weights = bool(weight_files(directory))
    if not tokenizer_file(directory).exists():
        fix = "save it there with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        reason = f"{directory} has no {TOKENIZER_FILE}; {fix}"
        raise ModelLoadError(reason, path=str(directory))
    if has_weights or any(directory.rglob("*.onnx")):
        return
    pickled = next((name for name in PICKLES if (directory / name).exists()), None)
    if pickled:
        fix = "convert it where you trust it: model.save_pretrained(..., safe_serialization=True)"
        reason = f"{directory / pickled} is a pickle, which can run code when it is read; {fix}"
        raise ModelLoadError(reason, path=str(directory / pickled))
    raise ModelLoadError(f"{directory} has neither *.safetensors nor *.onnx files", path=str(directory))


def _bi_encoder_card(directory: Path, name: str) -> ModelCard:
    """Return the card of a bi-encoder that another library saved.

    A graph of another program ends with the last hidden states. It is used if no module after the pooling has weights.

    Raises:
        ModelLoadError: the files cannot be read, or the model must be exported first.
    """
    source = read_bi_encoder(directory, name)
    if source.directory != directory or source.is_static:
        reason = f"{directory} has a StaticEmbedding, or its transformer in a folder; run osrerank export on it"
        raise ModelLoadError(reason, model=name, path=str(directory))
    return source.card if source.weights else replace(source.card, onnx=foreign_graphs(directory))


def _parse_card(content: dict[str, Any]) -> dict[str, Any]:
    card = dict(content)
    card.pop("tokenizer", None)  # `tokenizer_file` reads it
    version = card.pop("version", None)
    if version != CARD_VERSION:
        raise ValueError(f"version is {version!r}; this osrerank reads {CARD_VERSION}: export the checkpoint again")
    card["calibration"] = Calibration(**card.pop("calibration", {}))
    card["languages"] = tuple(card.pop("languages", ()))
    card["modules"] = tuple(HeadStep(**step) for step in card.pop("modules", ()))
    card["tokens"] = TokenVectors.from_json(card.pop("tokens", {}))
    if card.pop("feedback", None):
        raise ValueError(f"feedback is gone; {replacement_for('feedback')}")
    return card


def _fields_from_config(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    cross_encoder = read_cross_encoder(directory)
    has_own_head = cross_encoder is not None and cross_encoder.head is not None
    settings, segment_rows = TokenizerSettings.read(directory), int(config.get("type_vocab_size", 0))
    max_tokens = longest_sequence(config, cross_encoder.max_tokens if cross_encoder else settings.limit)
    return {
        "head": _head_for_labels(cross_encoder.labels) if cross_encoder and has_own_head else _head(config),
        "max_tokens": max_tokens,
        "max_query_tokens": min(MAX_QUERY_TOKENS, max_tokens // 2),
        "segment_rows": segment_rows if settings.gives_token_types else min(1, segment_rows),
        "truncation_side": settings.truncation_side,
        "query_prefix": cross_encoder.query_prefix if cross_encoder else "",
        "onnx": {} if has_own_head else foreign_graphs(directory),  # these graphs end before the head
    }


def _head(config: Mapping[str, Any]) -> Head:
    """Return the head that a config describes.

    Raises:
        ValueError: the config is not that of a cross-encoder.
    """
    if "auto_map" in config:
        raise ValueError(
            "auto_map asks for the model's own Python code, which osrerank never runs; export the model to ONNX"
        )
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    if architecture == "BertForNextSentencePrediction":
        return "next-sentence"
    if not architecture.endswith("ForSequenceClassification"):
        expected = "a reranking model is a *ForSequenceClassification or BertForNextSentencePrediction"
        fix = "osrerank export MODEL OUTPUT makes a reranker of a bi-encoder or a late-interaction model"
        if architecture.endswith("ForPreTraining"):
            fix = "if it was trained as a reranker with that head: osrerank export MODEL OUTPUT --head next-sentence"
        raise ValueError(f"architectures names {architecture}; {expected}; {fix}")
    return _head_for_labels(len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 2)))


def _head_for_labels(labels: int) -> Head:
    if labels not in {1, 2}:
        raise ValueError(
            f"the classifier has {labels} labels; a reranking model has 1 (a logit) or 2 (the second is relevant)"
        )
    return "logit1" if labels == 1 else "logits2"
