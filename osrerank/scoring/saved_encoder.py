"""Make the card of a bi-encoder that sentence-transformers saved; `osrerank.scoring.modular.bi_encoder` reads it."""

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring import static
from osrerank.scoring.card import CHOICES, Calibration, ModelCard, Pooling
from osrerank.scoring.locate import hub_id
from osrerank.scoring.model_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    find_graphs,
    max_sequence_tokens,
    read_config,
    weight_files,
)
from osrerank.scoring.modular import bi_encoder as files
from osrerank.scoring.modular import late_interaction
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.modular.description import FAMILIES, GRAPH_FAMILIES, file_error, read_model_type
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings

OTHER_MODEL_TYPES = ("CrossEncoder", *late_interaction.MODEL_TYPES)
"""The ``model_type`` of sentence-transformers' models that are not bi-encoders."""
UNCALIBRATED = Calibration(20.0, -15.0)
"""A provisional calibration, which maps usual cosines, .6 to .9, to logits around 0. Until a calibration is fitted, the
probabilities mean nothing."""
FIRST_PASS_WEIGHTS: Mapping[Pooling, float] = {"cls": 0.1}
"""Pooling -> what the best first-pass score adds to a cosine; measured in docs/research/joined.md."""
DEFAULT_FIRST_PASS_WEIGHT = 0.05
"""The weight for all other poolings."""
POSITION_BUCKETS = 32
"""The number of relative position buckets in MPNet."""
PUBLIC_MODELS = Path(__file__).with_name("public_models.toml")


@dataclass(frozen=True, slots=True)
class EncoderOverrides:
    """Values that take precedence over an encoder's files; None to use the files' value.

    Attributes:
        pooling: how the states of a text's tokens become its vector.
        query_prefix: the prefix of every query.
        document_prefix: the prefix of every document.
        dimensions: the number of dimensions to which vectors are truncated.
        pool_factor: late interaction only; how many token vectors of a document are merged into one, on average.
    """

    pooling: Pooling | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    dimensions: int | None = None
    pool_factor: float | None = None


@dataclass(frozen=True, slots=True)
class BiEncoderSource:
    """A bi-encoder of another library.

    Attributes:
        directory: the directory of ``config.json``, ``tokenizer.json`` and the safetensors.
        card: the card, with a provisional calibration.
        weights: the modules' safetensors, relative to the model's directory.
        is_static: whether the model is a StaticEmbedding.
    """

    directory: Path
    card: ModelCard
    weights: tuple[str, ...]
    is_static: bool = False

    def write_modules(self, source: Path, folder: Path) -> None:
        """Copy the modules' safetensors from the model's directory to another one; write a StaticEmbedding's files."""
        for name in self.weights:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
        if self.is_static:
            static.convert(self.directory, folder)


def is_bi_encoder(directory: Path) -> bool:
    """Return whether a directory has a bi-encoder: saved by sentence-transformers, or listed in `PUBLIC_MODELS`."""
    kind = read_model_type(directory)
    return kind not in OTHER_MODEL_TYPES if kind else "pooling" in public_model(directory)


def read_bi_encoder(directory: Path, name: str, overrides: EncoderOverrides | None = None) -> BiEncoderSource:
    """Read a bi-encoder's files, and make its card.

    If the files of a public model from the hub leave a value out, it comes from `public_model`.

    Args:
        directory: the model's directory, with ``modules.json`` if sentence-transformers saved the model.
        name: the model's name in the card.
        overrides: values that take precedence over the files; the pooling is required if the files do not name it.

    Raises:
        ConfigError: ``overrides`` has more dimensions than the model.
        ModelLoadError: a file is missing, cannot be read, or has a value that osrerank does not know.
    """
    overrides = overrides or EncoderOverrides()
    description = files.read_bi_encoder(directory)
    transformer = directory / description.transformer
    config = (
        static.table_config(static.read_table(transformer))
        if description.is_static
        else read_encoder_config(transformer)
    )
    published = public_model(directory)
    pooling = overrides.pooling or description.pooling or published.get("pooling")
    if pooling is None:
        fix = f"choose one: --pooling {', '.join(CHOICES['pooling'])}"
        raise ModelLoadError(f"{directory} does not say how texts are pooled; {fix}", path=str(directory))
    own_prefixes = {"query_prefix": description.query_prefix, "document_prefix": description.document_prefix}
    prefixes = own_prefixes if any(own_prefixes.values()) else published
    query_prefix = prefixes.get("query_prefix", "") if overrides.query_prefix is None else overrides.query_prefix
    document_prefix = (
        prefixes.get("document_prefix", "") if overrides.document_prefix is None else overrides.document_prefix
    )
    if not description.counts_prompts and (query_prefix or document_prefix):
        reason = f"{directory}: include_prompt is false, which leaves the tokens of prefixes out of the pooling"
        fix = "osrerank cannot do this; use the model without prefixes: --query-prefix '' --document-prefix ''"
        raise ModelLoadError(f"{reason}; {fix}", path=str(directory))
    max_tokens = max_sequence_tokens(config, description.limits.sequence or published.get("max_tokens"))
    is_cosine = description.similarity == "cosine"
    card = ModelCard(
        name=name,
        head=description.similarity,
        kind="bi-encoder",
        max_tokens=min(max_tokens, description.limits.document or max_tokens),
        max_query_tokens=min(max_tokens, description.limits.query or max_tokens),
        segment_rows=int(config.get("type_vocab_size", 0)),
        calibration=UNCALIBRATED if is_cosine else Calibration(),
        first_pass_weight=FIRST_PASS_WEIGHTS.get(pooling, DEFAULT_FIRST_PASS_WEIGHT) * UNCALIBRATED.scale
        if is_cosine
        else 0.0,
        pooling=pooling,
        modules=description.steps,
        dimensions=_card_dimensions(directory, config, description, overrides.dimensions),
        query_prefix=query_prefix,
        document_prefix=document_prefix,
        truncation_side=TokenizerSettings.read(transformer).truncation_side,
    )
    return BiEncoderSource(transformer, card, description.weights, description.is_static)


def public_model(directory: Path) -> Mapping[str, Any]:
    """Return the values of a public model's published card, by the hub id of its directory; empty if not listed."""
    return _public_models().get(hub_id(directory), {})


@cache
def _public_models() -> Mapping[str, Mapping[str, Any]]:
    """Read `PUBLIC_MODELS`: hub id -> values of the model's published card."""
    models = tomllib.loads(PUBLIC_MODELS.read_text("utf-8"))["models"]
    return {name: model for model in models for name in model["names"]}


def read_encoder_config(transformer: Path, families: Sequence[str] = FAMILIES) -> dict[str, Any]:
    """Return a transformer's config, and check that osrerank can compute the transformer.

    Args:
        transformer: the directory of the transformer's files.
        families: the ``model_type`` of each family that osrerank can compute here.

    Raises:
        ModelLoadError: a file is missing, or osrerank cannot compute the encoder.
    """
    has_safetensors = bool(weight_files(transformer))
    for file in (CONFIG_FILE, TOKENIZER_FILE):
        if not (transformer / file).exists():
            reason = f"{transformer / file} is missing; save the model with transformers' fast tokenizer"
            raise ModelLoadError(reason, path=str(transformer / file))
    if not has_safetensors and not find_graphs(transformer):
        fix = "save the model with safe_serialization=True"
        raise ModelLoadError(f"{transformer} has no *.safetensors; {fix}", path=str(transformer))
    config = read_config(transformer)
    check_architecture(transformer / CONFIG_FILE, config, families)
    return config


def check_architecture(file: Path, config: Mapping[str, Any], families: Sequence[str]) -> None:
    """Refuse an encoder that osrerank cannot compute as transformers does.

    Args:
        file: path of the config, for the error.
        config: the content of ``config.json``.
        families: the ``model_type`` of each family that osrerank can compute here.

    Raises:
        ModelLoadError: osrerank cannot compute the encoder; the message names the field.
    """
    family = config.get("model_type")
    if "auto_map" in config:
        raise file_error(file, "auto_map asks for the model's own Python code, which osrerank never runs")
    if family not in families:
        raise file_error(file, f"model_type is {family!r}; for an encoder it must be one of {', '.join(families)}")
    if family == modern_shape.MODEL_TYPE:
        if obstacle := modern_shape.unsupported_reason(config):
            raise file_error(file, f"{obstacle}, which osrerank does not compute")
        return
    required: dict[str, Any] = {"is_decoder": False}
    required |= {"hidden_act": "gelu", "position_embedding_type": "absolute"} if family in GRAPH_FAMILIES else {}
    required |= {"relative_attention_num_buckets": POSITION_BUCKETS, "pad_token_id": 1} if family == "mpnet" else {}
    for name, value in required.items():
        if config.get(name, value) != value:
            raise file_error(file, f"{name} is {config[name]!r}; for a {family} bi-encoder it must be {value!r}")


def _card_dimensions(
    directory: Path, config: Mapping[str, Any], description: files.BiEncoderDescription, requested: int | None
) -> int:
    """Return a card's ``dimensions``: 0 if the vectors are as long as the encoder's states."""
    hidden = int(config["hidden_size"])
    width = description.width or hidden
    if requested is not None and requested > width:
        reason = f"dimensions is {requested}, and {directory}'s vectors have only {width} dimensions"
        raise ConfigError(reason, setting="dimensions", source="argument")
    dimensions = min(width, requested or description.dimensions or width)
    return 0 if dimensions == hidden and not description.width else dimensions
