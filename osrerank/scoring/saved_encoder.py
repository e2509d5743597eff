"""Infer the model card of a bi-encoder from the files that sentence-transformers saved."""

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
from osrerank.scoring.locate import read_hub_id
from osrerank.scoring.model_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    find_graphs,
    max_sequence_tokens,
    read_config,
    weight_files,
)
from osrerank.scoring.modular import bi_encoder, late_interaction, modern_bert
from osrerank.scoring.modular.description import FAMILIES, GRAPH_FAMILIES, file_error, read_model_type
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings

OTHER_MODEL_TYPES = ("CrossEncoder", *late_interaction.MODEL_TYPES)
"""The values of ``model_type`` for sentence-transformers' models that are not bi-encoders."""
PROVISIONAL_CALIBRATION = Calibration(20.0, -15.0)
"""Maps common cosines, 0.6 to 0.9, to logits from -3 to 3. Probabilities are meaningless until it is replaced."""
FIRST_PASS_WEIGHTS: Mapping[Pooling, float] = {"cls": 0.1}
"""Pooling -> weight of the first-pass score relative to the cosine, as measured in docs/research/joined.md."""
DEFAULT_FIRST_PASS_WEIGHT = 0.05
"""The weight of the first-pass score for all other poolings."""
POSITION_BUCKETS = 32
"""The number of relative position buckets in MPNet."""
PUBLIC_MODELS_FILE = Path(__file__).with_name("public_models.toml")
"""Contains values that the files of well-known models leave out, from these models' published cards."""


@dataclass(frozen=True, slots=True)
class EncoderOverrides:
    """Values that take precedence over those in an encoder's files. None keeps the value in the files.

    Attributes:
        pooling: the way to get a text's vector from the states of its tokens.
        query_prefix: the prefix of every query.
        document_prefix: the prefix of every document.
        dimensions: the number of values to which a vector is truncated.
        pool_factor: for late interaction, the mean number of a document's token vectors that are merged into one.
    """

    pooling: Pooling | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    dimensions: int | None = None
    pool_factor: float | None = None


@dataclass(frozen=True, slots=True)
class BiEncoderSource:
    """A bi-encoder that another library saved.

    Attributes:
        directory: the directory of ``config.json``, ``tokenizer.json`` and the transformer's safetensors.
        card: the inferred card, with a provisional calibration.
        module_weights: the safetensors of later modules, such as ``2_Dense/model.safetensors``.
        is_static: whether the model is a StaticEmbedding, which looks tokens up in a table instead of a transformer.
    """

    directory: Path
    card: ModelCard
    module_weights: tuple[str, ...]
    is_static: bool = False

    def write_modules(self, model_directory: Path, folder: Path) -> None:
        """Copy the modules' safetensors from the model's directory to a folder. Convert a StaticEmbedding's files."""
        for name in self.module_weights:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(model_directory / name, folder / name)
        if self.is_static:
            static.convert(self.directory, folder)


def is_bi_encoder(directory: Path) -> bool:
    """Return whether a directory contains a bi-encoder: one that sentence-transformers saved, or a well-known one."""
    model_type = read_model_type(directory)
    if model_type is None:  # sentence-transformers did not save the model
        return "pooling" in find_public_values(directory)
    return model_type not in OTHER_MODEL_TYPES


def read_bi_encoder(directory: Path, name: str, overrides: EncoderOverrides | None = None) -> BiEncoderSource:
    """Infer a bi-encoder's card from its files. `find_public_values` supplies values that the files leave out.

    Args:
        directory: the model's directory, with ``modules.json`` if sentence-transformers saved the model.
        name: the model's name in the card.
        overrides: values that take precedence over the files.

    Raises:
        ConfigError: ``overrides.dimensions`` is greater than the size of the model's vectors.
        ModelLoadError: a file is missing, cannot be read, or contains an unknown value; or the pooling is unknown.
    """
    overrides = overrides or EncoderOverrides()
    description = bi_encoder.read_bi_encoder(directory)
    transformer = directory / description.transformer_folder
    if description.is_static:
        config = static.make_config(static.read_token_vectors(transformer))
    else:
        config = read_encoder_config(transformer)
    public_values = find_public_values(directory)
    pooling = overrides.pooling or description.pooling or public_values.get("pooling")
    if pooling is None:
        fix = f"choose one: --pooling {', '.join(CHOICES['pooling'])}"
        raise ModelLoadError(f"{directory} does not say how texts are pooled; {fix}", path=str(directory))
    query_prefix, document_prefix = _choose_prefixes(directory, description, overrides)
    max_tokens = max_sequence_tokens(config, description.token_limits.sequence or public_values.get("max_tokens"))
    calibration, first_pass_weight = Calibration(), 0.0
    if description.similarity == "cosine":
        calibration = PROVISIONAL_CALIBRATION
        first_pass_weight = FIRST_PASS_WEIGHTS.get(pooling, DEFAULT_FIRST_PASS_WEIGHT) * calibration.scale
    card = ModelCard(
        name=name,
        head=description.similarity,
        kind="bi-encoder",
        max_tokens=min(max_tokens, description.token_limits.document or max_tokens),
        max_query_tokens=min(max_tokens, description.token_limits.query or max_tokens),
        segment_rows=int(config.get("type_vocab_size", 0)),
        calibration=calibration,
        first_pass_weight=first_pass_weight,
        pooling=pooling,
        modules=description.steps,
        dimensions=_choose_dimensions(directory, config, description, overrides.dimensions),
        query_prefix=query_prefix,
        document_prefix=document_prefix,
        truncation_side=TokenizerSettings.read(transformer).truncation_side,
    )
    return BiEncoderSource(transformer, card, description.weight_files, description.is_static)


def _choose_prefixes(
    directory: Path, description: bi_encoder.BiEncoderDescription, overrides: EncoderOverrides
) -> tuple[str, str]:
    """Return the prefixes of queries and of documents: the overrides, else those in the files or the public values."""
    query_prefix, document_prefix = description.query_prefix, description.document_prefix
    if not query_prefix and not document_prefix:
        public_values = find_public_values(directory)
        query_prefix, document_prefix = public_values.get("query_prefix", ""), public_values.get("document_prefix", "")
    if overrides.query_prefix is not None:
        query_prefix = overrides.query_prefix
    if overrides.document_prefix is not None:
        document_prefix = overrides.document_prefix
    if not description.pools_prompts and (query_prefix or document_prefix):
        reason = f"{directory}: include_prompt is false, which leaves the tokens of prefixes out of the pooling"
        fix = "osrerank does not support this; use the model without prefixes: --query-prefix '' --document-prefix ''"
        raise ModelLoadError(f"{reason}; {fix}", path=str(directory))
    return query_prefix, document_prefix


def find_public_values(directory: Path) -> Mapping[str, Any]:
    """Return the values that `PUBLIC_MODELS_FILE` has for a directory's model. The map is empty for other models."""
    return _read_public_models().get(read_hub_id(directory), {})


@cache
def _read_public_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the values in `PUBLIC_MODELS_FILE` by the models' hub ids, such as ``BAAI/bge-small-en-v1.5``."""
    models = tomllib.loads(PUBLIC_MODELS_FILE.read_text("utf-8"))["models"]
    return {hub_id: model for model in models for hub_id in model["names"]}


def read_encoder_config(transformer: Path, families: Sequence[str] = FAMILIES) -> dict[str, Any]:
    """Return the config of a transformer that osrerank supports.

    Args:
        transformer: the directory of the transformer's files.
        families: the ``model_type`` of each supported family of models.

    Raises:
        ModelLoadError: a file is missing, or the transformer is not supported.
    """
    has_safetensors = bool(weight_files(transformer))
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        if not (transformer / name).exists():
            reason = f"{transformer / name} is missing; save the model with transformers' fast tokenizer"
            raise ModelLoadError(reason, path=str(transformer / name))
    if not has_safetensors and not find_graphs(transformer):
        fix = "save the model with safe_serialization=True"
        raise ModelLoadError(f"{transformer} has no *.safetensors; {fix}", path=str(transformer))
    config = read_config(transformer)
    check_architecture(transformer / CONFIG_FILE, config, families)
    return config


def check_architecture(file: Path, config: Mapping[str, Any], families: Sequence[str]) -> None:
    """Check that osrerank implements an encoder's architecture exactly as transformers does.

    Args:
        file: path of ``config.json``, for the error.
        config: the content of ``config.json``.
        families: the ``model_type`` of each supported family of models.

    Raises:
        ModelLoadError: the encoder is not supported. The message names the field that says so.
    """
    family = config.get("model_type")
    if "auto_map" in config:
        raise file_error(
            file, "auto_map requires the model's own Python code, which osrerank never runs; use another model"
        )
    if family not in families:
        raise file_error(file, f"model_type is {family!r}; for an encoder it must be one of {', '.join(families)}")
    if family == modern_bert.MODEL_TYPE:
        reason = modern_bert.unsupported_reason(config)
        if reason:
            raise file_error(file, f"{reason}, which osrerank does not support")
        return
    required_values: dict[str, Any] = {"is_decoder": False}
    if family in GRAPH_FAMILIES:
        required_values |= {"hidden_act": "gelu", "position_embedding_type": "absolute"}
    if family == "mpnet":
        required_values |= {"relative_attention_num_buckets": POSITION_BUCKETS, "pad_token_id": 1}
    for name, value in required_values.items():
        if config.get(name, value) != value:
            raise file_error(file, f"{name} is {config[name]!r}; for a {family} bi-encoder it must be {value!r}")


def _choose_dimensions(
    directory: Path, config: Mapping[str, Any], description: bi_encoder.BiEncoderDescription, requested: int | None
) -> int:
    """Return a card's ``dimensions``, which is 0 if a vector is as long as the transformer's hidden states."""
    hidden_size = int(config["hidden_size"])
    vector_size = description.dense_size or hidden_size
    if requested is not None and requested > vector_size:
        reason = f"dimensions is {requested}, but {directory}'s vectors have only {vector_size} dimensions"
        raise ConfigError(reason, setting="dimensions", source="argument")
    dimensions = min(vector_size, requested or description.dimensions or vector_size)
    has_hidden_size = dimensions == hidden_size and not description.dense_size
    return 0 if has_hidden_size else dimensions
