"""A bi-encoder's directory as sentence-transformers saves it (Reimers, Gurevych 2019, arXiv 1908.10084).

Its modules are a Transformer and Pooling, or a StaticEmbedding, and then Dense, LayerNorm, Normalize and Dropout, as
many as there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import (
    CLASSIFIERS,
    KINDS,
    MODEL_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TRANSFORMER_FILE,
    Modules,
    TokenLimits,
    limits_of,
    listed,
    model_type,
    refused,
    transformer_task,
)
from osrerank.scoring.modular.head import HeadStep, Mode

NAME = "SentenceTransformer"
TABLE = "StaticEmbedding"
MOST_TOKENS = 1 << 18
"""Of a StaticEmbedding's texts, which have no limit: as many as `osrerank.scoring.inputs` reads characters."""
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts of each side; the first one that is not empty counts."""

Similarity = Literal["cosine", "dot"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot")


@dataclass(frozen=True, slots=True)
class BiEncoderDescription:
    """What a bi-encoder's files say.

    Attributes:
        transformer: folder of the first module's files, relative to the directory; "" for the directory itself.
        pooling: how a text's states become its vector; None where the files do not say.
        steps: from there to the vector that is compared, without a last division by its norm.
        width: numbers of the last Dense; 0 for the pooling's.
        dimensions: how many of them, the first ones, are used; 0 for all.
        similarity: the similarity of two vectors: ``dot`` where their norms count.
        query_prefix: stands before every query.
        document_prefix: stands before every document.
        counts_prompts: whether the tokens of a prefix count in pooling.
        limits: the files' own.
        weights: the modules' safetensors, relative to the directory.
        is_static: whether the first module is a StaticEmbedding.
    """

    transformer: str
    pooling: Mode | None
    steps: tuple[HeadStep, ...]
    width: int
    dimensions: int
    similarity: Similarity
    query_prefix: str
    document_prefix: str
    counts_prompts: bool
    limits: TokenLimits
    weights: tuple[str, ...]
    is_static: bool = False


def read_bi_encoder(directory: Path) -> BiEncoderDescription:
    """Return what a directory's files say of a bi-encoder; without ``modules.json``, only its limits.

    Args:
        directory: the model's.

    Raises:
        ModelLoadError: a file cannot be read, or asks for what is not known; the message names the field.
    """
    kind = model_type(directory)
    if kind is None:
        return BiEncoderDescription("", None, (), 0, 0, "cosine", "", "", True, limits_of(directory), ())  # noqa: FBT003 - it has many fields
    file = directory / MODEL_FILE
    model: Mapping[str, Any] = read_json(file) if file.exists() else {}
    if kind != NAME:
        raise refused(file, f"model_type is {kind!r}; a bi-encoder's is {NAME}")
    (first, transformer), *modules = listed(directory / MODULES_FILE, KINDS, first=("Transformer", TABLE))
    is_static = first == TABLE
    if not is_static and transformer_task(directory / transformer) == CLASSIFIERS:
        raise refused(directory / transformer / TRANSFORMER_FILE, f"transformer_task is {CLASSIFIERS!r}")
    parts = Modules(directory)
    pooling: Mode = "mean" if is_static else _pooling(directory, parts, modules)
    steps, width = _steps(directory, parts, modules if is_static else modules[1:])
    similarity, dimensions = _similarity(file, model), int(model.get("truncate_dim") or 0)
    if steps and steps[-1].kind == "unit" and (similarity == "cosine" or not dimensions):
        steps, similarity = steps[:-1], "cosine"
    return BiEncoderDescription(
        transformer,
        pooling,
        tuple(steps),
        width,
        dimensions,
        similarity,
        prompt_of(file, model, QUERY_PROMPTS),
        prompt_of(file, model, DOCUMENT_PROMPTS),
        is_static or parts.includes_prompt(modules[0][1]) or pooling == "lasttoken",
        _truncation(directory / transformer) if is_static else limits_of(directory / transformer),
        parts.weights,
        is_static,
    )


def _truncation(directory: Path) -> TokenLimits:
    """Return the limit of a tokenizer's own file."""
    truncation = read_json(directory / TOKENIZER_FILE).get("truncation") or {}
    return TokenLimits(int(truncation.get("max_length", MOST_TOKENS)))


def _pooling(directory: Path, parts: Modules, modules: Sequence[tuple[str, str]]) -> Mode:
    """Return the pooling behind a Transformer."""
    if not modules or modules[0][0] != "Pooling":
        named = ", ".join(kind for kind, _ in modules) or "nothing"
        reason = f"behind the Transformer stands {named}; it must be one Pooling, and others after it"
        raise refused(directory / MODULES_FILE, reason)
    (mode, *more), folder = parts.pooling(modules[0][1]), modules[0][1]
    if more:
        reason = f"pooling_mode is {', '.join((mode, *more))}; of a bi-encoder it must be a single one"
        raise refused(directory / folder / "config.json", reason)
    return mode


def _steps(directory: Path, parts: Modules, modules: Sequence[tuple[str, str]]) -> tuple[list[HeadStep], int]:
    """Return the steps behind the pooling, and how many numbers the last Dense gives."""
    steps: list[HeadStep] = []
    width = 0
    for kind, folder in modules:
        if kind == "Pooling":
            raise refused(directory / MODULES_FILE, f"the Pooling in {folder} is one too many")
        if kind == "Dense":
            step, width = parts.dense(folder)
            steps.append(step)
        elif kind == "LayerNorm":
            steps.append(parts.norm(folder))
        elif kind == "Normalize":
            steps.append(parts.unit(folder))
    return steps, width


def _similarity(file: Path, model: Mapping[str, Any]) -> Similarity:
    named = model.get("similarity_fn_name") or "cosine"
    known = next((one for one in SIMILARITIES if one == named), None)
    if known is None:
        raise refused(file, f"similarity_fn_name is {named!r}; it must be one of {', '.join(SIMILARITIES)}")
    return known


def prompt_of(file: Path, model: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return a side's prompt; where none of its names is there, the default one, which then precedes all texts."""
    prompts, default = model.get("prompts") or {}, model.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise refused(file, f"default_prompt_name is {default!r}, but prompts has no prompt of that name")
    own = [prompts[name] or "" for name in names if name in prompts]
    return str(next(filter(None, own), "") if own or default is None else prompts[default] or "")
