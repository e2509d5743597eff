"""Prepare the export of a late-interaction model that another library saved: create its card, merge its projections.

A projection is a matrix that turns a token's state into the token's vector. Several of them are multiplied into one.
`osrerank.scoring.modular.late_interaction` reads the model's files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import WEIGHTS_FILE, max_sequence_tokens
from osrerank.scoring.modular import late_interaction as saved_files
from osrerank.scoring.modular.description import GRAPH_FAMILIES, TOKENIZER_SETTINGS_FILE, file_error
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import PROVISIONAL_CALIBRATION, EncoderOverrides, read_encoder_config

PROJECTION = "1_Dense"
"""The folder of the merged projection in an exported model directory."""
MATRIX = "linear.weight"
"""The name of a projection's matrix in its file."""
FIRST_PASS_WEIGHT = 0.05
"""How much the best first-pass score of a query adds to the mean cosine of its document."""


@dataclass(frozen=True, slots=True)
class LateInteractionSource:
    """A late-interaction model that another library saved.

    Attributes:
        directory: the directory of ``config.json``, ``tokenizer.json`` and the safetensors.
        card: the model's card, with a provisional calibration.
        projections: the projections that turn a token's state into its vector, in order.
    """

    directory: Path
    card: ModelCard
    projections: tuple[saved_files.Projection, ...]

    def write_modules(self, source: Path, folder: Path) -> None:
        """Multiply the projections into one matrix, and write it as a module of ``folder``, if there are any.

        ``source`` is the model's directory, to which the projections' files are relative.

        Raises:
            ModelLoadError: a matrix is missing.
        """
        if not self.projections:
            return
        safetensors: Any = require("safetensors.torch", extra="torch")
        product: Any = None
        for projection in self.projections:
            weights = safetensors.load_file(source / projection.file)
            matrix = _projection_matrix(source / projection.file, weights, projection)
            product = matrix if product is None else matrix @ product
        (folder / PROJECTION).mkdir()
        safetensors.save_file({MATRIX: product.contiguous()}, folder / PROJECTION / WEIGHTS_FILE)


def read_late_interaction(directory: Path, name: str, overrides: EncoderOverrides) -> LateInteractionSource:
    """Read the files of a late-interaction model. ``overrides``, the user's options, take precedence over the files.

    Raises:
        ConfigError: the options set a pooling, or more dimensions than the model has.
        ModelLoadError: a file is missing, cannot be read, or has a setting that osrerank does not support.
    """
    description = saved_files.read_late_interaction(directory)
    transformer = directory / description.transformer_folder
    config = read_encoder_config(transformer, GRAPH_FAMILIES)
    if TokenizerSettings.read(transformer).truncation_side != "right":
        reason = "truncation_side is 'left'; a late-interaction model needs 'right'"
        raise file_error(transformer / TOKENIZER_SETTINGS_FILE, reason)
    width = _projected_width(directory, description) or int(config["hidden_size"])
    if overrides.pooling is not None:
        reason = f"{directory} is a late-interaction model, which pools no token vectors; leave --pooling out"
        raise ConfigError(reason, setting="pooling", source="argument")
    if overrides.dimensions is not None and overrides.dimensions > width:
        reason = f"dimensions is {overrides.dimensions}, but {directory}'s vectors have only {width} dimensions"
        raise ConfigError(reason, setting="dimensions", source="argument")
    # in a card, 0 dimensions mean those of the transformer's states
    dimensions = overrides.dimensions or (width if description.projections else 0)
    pool_factor = description.tokens.pool_factor if overrides.pool_factor is None else overrides.pool_factor
    modules = (HeadStep("dense", f"{PROJECTION}.linear", has_bias=False),) if description.projections else ()
    card = ModelCard(
        name=name,
        head="cosine",
        kind="late-interaction",
        max_tokens=max_sequence_tokens(config, description.max_document_tokens),
        max_query_tokens=max_sequence_tokens(config, description.max_query_tokens),
        segment_rows=int(config.get("type_vocab_size", 0)),
        calibration=PROVISIONAL_CALIBRATION,
        first_pass_weight=FIRST_PASS_WEIGHT * PROVISIONAL_CALIBRATION.scale,
        modules=modules,
        dimensions=dimensions,
        query_prefix=description.query_prefix if overrides.query_prefix is None else overrides.query_prefix,
        document_prefix=description.document_prefix if overrides.document_prefix is None else overrides.document_prefix,
        tokens=replace(description.tokens, pool_factor=pool_factor),
    )
    return LateInteractionSource(transformer, card, description.projections)


def _projected_width(directory: Path, description: saved_files.LateInteractionDescription) -> int:
    """Return the number of dimensions after the last projection, or 0 if there is no projection."""
    if not description.projections:
        return 0
    last = description.projections[-1]
    file = directory / last.file
    with require("safetensors", extra="torch").safe_open(file, framework="numpy") as tensors:
        n_rows = 0
        if MATRIX in tensors.keys():  # noqa: SIM118 - no mapping
            n_rows = int(tensors.get_slice(MATRIX).get_shape()[0])
    if not n_rows:
        raise ModelLoadError(f"{file} has no tensor {MATRIX!r}; save or download the model again", path=str(file))
    if description.dimensions not in (0, n_rows):  # 0 if the config file does not say
        reason = f"{file} projects to {n_rows} dimensions, but the model's config file says {description.dimensions}"
        raise ModelLoadError(reason, path=str(file))
    return n_rows


def _projection_matrix(file: Path, weights: Mapping[str, Any], projection: saved_files.Projection) -> Any:
    """Return a projection's matrix, with its residual connection added, in fp32 ``(outputs, inputs)``."""
    torch: Any = require("torch", extra="torch")
    try:
        matrix = weights[MATRIX].float()
        if projection.residual == "same":  # the state itself is added to the product
            return matrix + torch.eye(len(matrix))
        if projection.residual:
            matrix = matrix + weights[f"{projection.residual}.weight"].float()
    except KeyError as error:
        raise ModelLoadError(
            f"{file} has no tensor {error}; save or download the model again", path=str(file)
        ) from None
    return matrix
