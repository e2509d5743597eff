"""Read a bi-encoder's directory as sentence-transformers saves it (Reimers, Gurevych 2019, arXiv 1908.10084).

Its first modules are a Transformer and a Pooling, or a StaticEmbedding. Any number of Dense, LayerNorm, Normalize and
Dropout modules follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import (
    CLASSIFIERS,
    LATER_MODULES,
    MODEL_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TRANSFORMER_FILE,
    ModuleReader,
    TokenLimits,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_task,
)
from osrerank.scoring.modular.head import HeadStep, Mode

MODEL_TYPE = "SentenceTransformer"
STATIC_EMBEDDING = "StaticEmbedding"
MAX_TOKENS = 1 << 18
"""The maximum number of tokens in a StaticEmbedding's text, which has no limit of its own. It equals the number of
characters that `osrerank.scoring.inputs` reads."""
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of each side's prompts; the first prompt that is not empty counts."""

Similarity = Literal["cosine", "dot"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot")


@dataclass(frozen=True, slots=True)
class BiEncoderDescription:
    """The description of a bi-encoder in its files.

    Attributes:
        transformer: folder of the first module's files, relative to the directory; "" for the directory itself.
        pooling: pooling of a text's states; None if the files do not name it.
        steps: steps from the pooled states to the vector, without a last division by its norm.
        width: size of the last Dense's output; 0 without a Dense.
        dimensions: number of the vector's leading values that are used; 0 for all of them.
        similarity: similarity of two vectors: ``cosine``, or ``dot`` if their norms count.
        query_prefix: text that precedes every query.
        document_prefix: text that precedes every document.
        counts_prompts: whether pooling includes the tokens of a prefix.
        limits: token limits that the files set.
        weights: safetensors of the modules, relative to the directory.
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
    """Return the description of a bi-encoder; without ``modules.json``, it has nothing but the token limits.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know; the message names it.
    """
    saved_type = read_model_type(directory)
    if saved_type is None:
        return BiEncoderDescription("", None, (), 0, 0, "cosine", "", "", True, read_token_limits(directory), ())  # noqa: FBT003 - it has many fields
    file = directory / MODEL_FILE
    model: Mapping[str, Any] = read_json(file) if file.exists() else {}
    if saved_type != MODEL_TYPE:
        raise file_error(file, f"model_type is {saved_type!r}; a bi-encoder's must be {MODEL_TYPE}")
    (first_kind, transformer), *modules = list_modules(
        directory / MODULES_FILE, LATER_MODULES, first_kinds=("Transformer", STATIC_EMBEDDING)
    )
    is_static = first_kind == STATIC_EMBEDDING
    if not is_static and read_transformer_task(directory / transformer) == CLASSIFIERS:
        raise file_error(directory / transformer / TRANSFORMER_FILE, f"transformer_task is {CLASSIFIERS!r}")
    reader = ModuleReader(directory)
    pooling: Mode = "mean" if is_static else _read_pooling(directory, reader, modules)
    steps, width = reader.read_steps(modules if is_static else modules[1:])
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
        select_prompt(file, model, QUERY_PROMPTS),
        select_prompt(file, model, DOCUMENT_PROMPTS),
        is_static or reader.includes_prompt(modules[0][1]) or pooling == "lasttoken",
        _static_limits(directory / transformer) if is_static else read_token_limits(directory / transformer),
        reader.weights,
        is_static,
    )


def _static_limits(directory: Path) -> TokenLimits:
    """Return the token limit of a StaticEmbedding, from its tokenizer's truncation."""
    truncation = read_json(directory / TOKENIZER_FILE).get("truncation") or {}
    return TokenLimits(int(truncation.get("max_length", MAX_TOKENS)))


def _read_pooling(directory: Path, reader: ModuleReader, modules: Sequence[tuple[str, str]]) -> Mode:
    """Return the only mode of the Pooling after a Transformer."""
    modes = reader.read_pooling(modules)
    if len(modes) > 1:
        reason = f"pooling_mode is {', '.join(modes)}; a bi-encoder must have a single one"
        raise file_error(directory / modules[0][1] / "config.json", reason)
    return modes[0]


def _similarity(file: Path, model: Mapping[str, Any]) -> Similarity:
    name = model.get("similarity_fn_name") or "cosine"
    for similarity in SIMILARITIES:
        if similarity == name:
            return similarity
    raise file_error(file, f"similarity_fn_name is {name!r}; it must be one of {', '.join(SIMILARITIES)}")


def select_prompt(file: Path, model: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the prompt of queries or documents.

    If the model has no prompt of these names, its default prompt precedes all texts.

    Args:
        file: the file with the prompts, for errors.
        model: the file's content.
        names: names that the prompt may have; the first prompt that is not empty counts.

    Raises:
        ModelLoadError: the file names a default prompt that it does not have.
    """
    prompts, default = model.get("prompts") or {}, model.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise file_error(file, f"default_prompt_name is {default!r}, but prompts has no prompt of that name")
    candidates = [prompts[name] for name in names if name in prompts]
    if not candidates and default is not None:
        candidates = [prompts[default]]
    return str(next(filter(None, candidates), ""))
