"""Give a late-interaction model of another library a card and one projection.

`osrerank.scoring.modular.late_interaction` reads its files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.model_files import WEIGHTS_FILE, max_sequence_tokens
from osrerank.scoring.modular import late_interaction as files
from osrerank.scoring.modular.description import GRAPH_FAMILIES, TOKENIZER_SETTINGS_FILE, file_error
from osrerank.scoring.modular.head import HeadStep
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import UNCALIBRATED, EncoderOverrides, read_encoder_config

PROJECTION = "1_Dense"
"""The projection's folder in our directories; several projections are multiplied into one."""
FIRST_PASS_WEIGHT = 0.05
"""How much the best first-pass score adds to a mean of cosines."""


@dataclass(frozen=True, slots=True)
class LateInteractionSource:
    """A late-interaction model of another library.

    Attributes:
        directory: the directory of ``config.json``, ``tokenizer.json`` and the safetensors.
        card: the model's card, with a provisional calibration.
        projections: the projections from a state to a token's vector, in order.
    """

    directory: Path
    card: ModelCard
    projections: tuple[files.Projection, ...]

    def write_modules(self, source: Path, folder: Path) -> None:
        """Multiply the projections in the model's directory, and write the product, if any, as a module in another.

        Raises:
            ModelLoadError: a matrix is missing.
        """
        if not self.projections:
            return
        safetensors: Any = require("safetensors.torch", extra="torch")
        product: Any = None
        for projection in self.projections:
            matrix = _matrix(source / projection.file, safetensors.load_file(source / projection.file), projection)
            product = matrix if product is None else matrix @ product
        (folder / PROJECTION).mkdir()
        safetensors.save_file({"linear.weight": product.contiguous()}, folder / PROJECTION / WEIGHTS_FILE)


def is_late_interaction(directory: Path) -> bool:
    """Return whether a directory contains a late-interaction model of another library."""
    return files.is_late_interaction(directory)


def read_late_interaction(directory: Path, name: str, overrides: EncoderOverrides) -> LateInteractionSource:
    """Read a late-interaction model's files.

    Args:
        directory: the model's directory.
        name: the model's name, for its card.
        overrides: the user's choices, which take precedence over the files.

    Raises:
        ConfigError: the user asks for a pooling, or for more dimensions than the model has.
        ModelLoadError: a file is missing, cannot be read, or asks for something that osrerank does not know.
    """
    description = files.read_late_interaction(directory)
    transformer = directory / description.transformer
    config = read_encoder_config(transformer, GRAPH_FAMILIES)
    if TokenizerSettings.read(transformer).truncation_side != "right":
        reason = "truncation_side is 'left'; of late interaction it must be 'right'"
        raise file_error(transformer / TOKENIZER_SETTINGS_FILE, reason)
    width = _width(directory, description) or int(config["hidden_size"])
    if overrides.pooling is not None:
        reason = f"{directory} is of late interaction, whose tokens have a vector each: leave --pooling out"
        raise ConfigError(reason, setting="pooling", source="argument")
    if overrides.dimensions is not None and overrides.dimensions > width:
        reason = f"dimensions is {overrides.dimensions}, and {directory}'s vectors have only {width} dimensions"
        raise ConfigError(reason, setting="dimensions", source="argument")
    factor = description.tokens.pool_factor if overrides.pool_factor is None else overrides.pool_factor
    card = ModelCard(
        name=name,
        head="cosine",
        kind="late-interaction",
        max_tokens=max_sequence_tokens(config, description.max_document_tokens),
        max_query_tokens=max_sequence_tokens(config, description.max_query_tokens),
        segment_rows=int(config.get("type_vocab_size", 0)),
        calibration=UNCALIBRATED,
        first_pass_weight=FIRST_PASS_WEIGHT * UNCALIBRATED.scale,
        modules=(HeadStep("dense", f"{PROJECTION}.linear", has_bias=False),) if description.projections else (),
        dimensions=overrides.dimensions or (width if description.projections else 0),
        query_prefix=description.query_prefix if overrides.query_prefix is None else overrides.query_prefix,
        document_prefix=description.document_prefix if overrides.document_prefix is None else overrides.document_prefix,
        tokens=replace(description.tokens, pool_factor=factor),
    )
    return LateInteractionSource(transformer, card, description.projections)


def _width(directory: Path, description: files.LateInteractionDescription) -> int:
    """Return the output size of the last projection, from its weights; 0 without a projection."""
    if not description.projections:
        return 0
    last = description.projections[-1]
    file, name = directory / last.file, f"{last.name}.weight"
    with require("safetensors", extra="torch").safe_open(file, framework="numpy") as opened:
        rows = int(opened.get_slice(name).get_shape()[0]) if name in opened.keys() else 0  # noqa: SIM118 - no mapping
    if not rows or description.dimensions not in (0, rows):
        reason = f"{file} has {rows} rows of {name}, and the model's files say {description.dimensions or 'nothing'}"
        raise ModelLoadError(reason, path=str(file))
    return rows


def _matrix(file: Path, weights: Mapping[str, Any], projection: files.Projection) -> Any:
    """Return a projection's matrix plus its residual connection, fp32 ``(outputs, inputs)``."""
    torch: Any = require("torch", extra="torch")
    try:
        matrix = weights[f"{projection.name}.weight"].float()
        if projection.residual == "same":
            return matrix + torch.eye(len(matrix))
        return matrix + weights[f"{projection.residual}.weight"].float() if projection.residual else matrix
    except KeyError as error:
        raise ModelLoadError(f"{file} has no tensor {error}", path=str(file)) from None
