"""Give a bi-encoder that sentence-transformers saved a card: `osrerank.scoring.modular.bi_encoder` reads its files."""

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
    longest_sequence,
    other_graphs,
    read_config,
    weight_files,
)
from osrerank.scoring.modular import bi_encoder as files
from osrerank.scoring.modular import late_interaction
from osrerank.scoring.modular import modern_bert as modern_shape
from osrerank.scoring.modular.description import FAMILIES, GRAPH_FAMILIES, file_error, model_type
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings

OTHERS = ("CrossEncoder", *late_interaction.MODEL_TYPES)
"""What sentence-transformers saves that is no bi-encoder, by the ``model_type`` in its files."""
UNCALIBRATED = Calibration(20.0, -15.0)
"""Spreads the logits of usual cosines, .6 to .9, around 0; their probabilities mean nothing until they are fitted."""
FIRST_PASS_WEIGHTS: Mapping[Pooling, float] = {"cls": 0.1}
"""What the best first-pass score adds to a cosine; `OTHER_WEIGHT` for other poolings. Measured for bge-small-en-v1.5
and e5-small-v2 in docs/research/joined.md."""
OTHER_WEIGHT = 0.05
BUCKETS = 32
"""How many kinds of relative positions an MPNet has."""
PUBLIC_MODELS = Path(__file__).with_name("public_models.toml")


@dataclass(frozen=True, slots=True)
class Given:
    """What is given of an encoder; None for what its files say.

    Attributes:
        pooling: how a text's states become its vector.
        query_prefix: stands before every query.
        document_prefix: stands before every document.
        dimensions: how many numbers of a vector are used, the first ones.
        pool_factor: about how many of a document's token vectors late interaction merges into one.
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
        directory: where ``config.json``, ``tokenizer.json`` and the safetensors are.
        card: its card, with a provisional calibration.
        weights: the modules' safetensors, relative to the model's directory.
        is_static: whether it is a StaticEmbedding.
    """

    directory: Path
    card: ModelCard
    weights: tuple[str, ...]
    is_static: bool = False

    def write_modules(self, source: Path, folder: Path) -> None:
        """Copy the modules' safetensors from the model's directory to another one; write a table as osrerank's own."""
        for name in self.weights:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
        if self.is_static:
            static.write(self.directory, folder)


def is_bi_encoder(directory: Path) -> bool:
    """Return whether a directory has a bi-encoder: sentence-transformers saved it, or the table has its pooling."""
    kind = model_type(directory)
    return kind not in OTHERS if kind else "pooling" in public_model(directory)


def read_bi_encoder(directory: Path, name: str, given: Given | None = None) -> BiEncoderSource:
    """Read a bi-encoder's files.

    Args:
        directory: the model's, with ``modules.json`` where sentence-transformers saved it.
        name: the model's, for its card.
        given: takes precedence over the files; the pooling is needed where they do not name it. Of a public model that
            was downloaded from the hub, what its files do not name is as its published card says (`public_model`).

    Raises:
        ConfigError: more dimensions are given than the model has.
        ModelLoadError: a file is missing, cannot be read, or asks for what is not known.
    """
    given = given or Given()
    found = files.read_bi_encoder(directory)
    transformer = directory / found.transformer
    config = static.config_of(static.table(transformer)) if found.is_static else config_of(transformer)
    published = public_model(directory)
    pooling = given.pooling or found.pooling or published.get("pooling")
    if pooling is None:
        fix = f"name it: --pooling {', '.join(CHOICES['pooling'])}"
        raise ModelLoadError(f"{directory} does not say how texts are pooled; {fix}", path=str(directory))
    said = {"query_prefix": found.query_prefix, "document_prefix": found.document_prefix}
    prefixes = said if any(said.values()) else published
    query_prefix = prefixes.get("query_prefix", "") if given.query_prefix is None else given.query_prefix
    document_prefix = prefixes.get("document_prefix", "") if given.document_prefix is None else given.document_prefix
    if not found.counts_prompts and (query_prefix or document_prefix):
        reason = f"{directory}: include_prompt is false, so that the tokens of prefixes are left out of the pooling"
        fix = "which osrerank does not do; it can be used without: --query-prefix '' --document-prefix ''"
        raise ModelLoadError(f"{reason}, {fix}", path=str(directory))
    longest = longest_sequence(config, found.limits.sequence or published.get("max_tokens"))
    is_cosine = found.similarity == "cosine"
    card = ModelCard(
        name=name,
        head=found.similarity,
        kind="bi-encoder",
        max_tokens=min(longest, found.limits.document or longest),
        max_query_tokens=min(longest, found.limits.query or longest),
        segment_rows=int(config.get("type_vocab_size", 0)),
        calibration=UNCALIBRATED if is_cosine else Calibration(),
        first_pass_weight=FIRST_PASS_WEIGHTS.get(pooling, OTHER_WEIGHT) * UNCALIBRATED.scale if is_cosine else 0.0,
        pooling=pooling,
        modules=found.steps,
        dimensions=_dimensions(directory, config, found, given.dimensions),
        query_prefix=query_prefix,
        document_prefix=document_prefix,
        truncation_side=TokenizerSettings.read(transformer).truncation_side,
    )
    return BiEncoderSource(transformer, card, found.weights, found.is_static)


def public_model(directory: Path) -> Mapping[str, Any]:
    """Return what the published card of a model says, by the hub id of its directory; empty where no row has it."""
    return _public_models().get(hub_id(directory), {})


@cache
def _public_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of `PUBLIC_MODELS` by hub id."""
    models = tomllib.loads(PUBLIC_MODELS.read_text("utf-8"))["models"]
    return {name: model for model in models for name in model["names"]}


def config_of(transformer: Path, families: Sequence[str] = FAMILIES) -> dict[str, Any]:
    """Return a transformer's config.

    Args:
        transformer: the directory of its files.
        families: that osrerank computes, by ``model_type``.

    Raises:
        ModelLoadError: a file is missing, or osrerank cannot compute the encoder.
    """
    has_weights = bool(weight_files(transformer))
    for file in (CONFIG_FILE, TOKENIZER_FILE):
        if not (transformer / file).exists():
            reason = f"{transformer / file} is missing; save the model with transformers' fast tokenizer"
            raise ModelLoadError(reason, path=str(transformer / file))
    if not has_weights and not other_graphs(transformer):
        fix = "save the model with safe_serialization=True"
        raise ModelLoadError(f"{transformer} has no *.safetensors; {fix}", path=str(transformer))
    config = read_config(transformer)
    check_architecture(transformer / CONFIG_FILE, config, families)
    return config


def check_architecture(file: Path, config: Mapping[str, Any], families: Sequence[str]) -> None:
    """Refuse an encoder that osrerank cannot compute as transformers does.

    Args:
        file: the config's, for the error.
        config: ``config.json``.
        families: that osrerank computes, by ``model_type``.

    Raises:
        ModelLoadError: the message names the field.
    """
    kind = config.get("model_type")
    if "auto_map" in config:
        raise file_error(file, "auto_map asks for the model's own Python code, which osrerank never runs")
    if kind not in families:
        raise file_error(file, f"model_type is {kind!r}; of an encoder it must be one of {', '.join(families)}")
    if kind == modern_shape.MODEL_TYPE:
        if obstacle := modern_shape.obstacle(config):
            raise file_error(file, f"{obstacle}, which osrerank does not compute")
        return
    wanted: dict[str, Any] = {"is_decoder": False}
    wanted |= {"hidden_act": "gelu", "position_embedding_type": "absolute"} if kind in GRAPH_FAMILIES else {}
    wanted |= {"relative_attention_num_buckets": BUCKETS, "pad_token_id": 1} if kind == "mpnet" else {}
    for name, value in wanted.items():
        if config.get(name, value) != value:
            raise file_error(file, f"{name} is {config[name]!r}; of a {kind} bi-encoder it must be {value!r}")


def _dimensions(
    directory: Path, config: Mapping[str, Any], found: files.BiEncoderDescription, given: int | None
) -> int:
    """Return a card's ``dimensions``: 0 where the vector is as long as the encoder's states."""
    hidden = int(config["hidden_size"])
    width = found.width or hidden
    if given is not None and given > width:
        reason = f"{directory} gives vectors of {width} numbers, and {given} dimensions are asked for"
        raise ConfigError(reason, setting="dimensions", source="argument")
    used = min(width, given or found.dimensions or width)
    return 0 if used == hidden and not found.width else used
