"""Read the files of a bi-encoder that sentence-transformers saved (Reimers, Gurevych 2019, arXiv 1908.10084).

The first modules are a Transformer and a Pooling, or a StaticEmbedding. Any number of Dense, LayerNorm, Normalize and
Dropout modules follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osrerank.scoring.json_file import read_json, read_optional_json
from osrerank.scoring.modular.description import (
    CLASSIFIER_TASK,
    ENCODER_TASK,
    LATER_MODULES,
    MODEL_FILE,
    MODULE_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TRANSFORMER_FILE,
    Module,
    ModuleReader,
    TokenLimits,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_task,
    select_prompt,
)
from osrerank.scoring.modular.head import HeadStep, Mode

MODEL_TYPE = "SentenceTransformer"
STATIC_EMBEDDING = "StaticEmbedding"
MAX_TOKENS = 1 << 18
"""The token limit of a StaticEmbedding whose tokenizer sets none. At most this many characters of a text are read."""
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""The names that the prompts for queries and documents can have. The first prompt that is not empty is used."""

Similarity = Literal["cosine", "dot"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot")


@dataclass(frozen=True, slots=True)
class BiEncoderDescription:
    """What the files of a bi-encoder say about the model.

    Attributes:
        token_limits: the maximum numbers of tokens in a query and in a document.
        transformer_folder: folder of the first module's files, relative to the directory. "" is the directory itself.
        weight_files: the safetensors of the modules, relative to the directory.
        is_static: whether the first module is a StaticEmbedding.
        query_prefix: text that precedes every query.
        document_prefix: text that precedes every document.
        pools_prompts: whether the pooling includes the tokens of ``query_prefix`` and ``document_prefix``.
        pooling: how the tokens' states are combined, such as ``mean``. None if the files do not specify it.
        steps: the steps from the pooled states to the vector. A final division by the norm is left out, because the
            cosine contains it.
        dense_size: the output size of the last Dense, or 0 without a Dense.
        dimensions: the number of leading values of the vector that are used. 0 means all of them.
        similarity: the similarity of two vectors, ``cosine`` or ``dot``.
    """

    token_limits: TokenLimits
    transformer_folder: str = ""
    weight_files: tuple[str, ...] = ()
    is_static: bool = False
    query_prefix: str = ""
    document_prefix: str = ""
    pools_prompts: bool = True
    pooling: Mode | None = None
    steps: tuple[HeadStep, ...] = ()
    dense_size: int = 0
    dimensions: int = 0
    similarity: Similarity = "cosine"


def read_bi_encoder(directory: Path) -> BiEncoderDescription:
    """Read the description of a bi-encoder. Without ``modules.json``, it contains only the token limits.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know. The message names the field.
    """
    model_type = read_model_type(directory)
    if model_type is None:
        return BiEncoderDescription(read_token_limits(directory))
    file = directory / MODEL_FILE
    model = read_optional_json(file)
    if model_type != MODEL_TYPE:
        raise file_error(file, f"model_type is {model_type!r}; a bi-encoder's must be {MODEL_TYPE}")
    first_kinds = ("Transformer", STATIC_EMBEDDING)
    first, *modules = list_modules(directory / MODULES_FILE, LATER_MODULES, first_kinds=first_kinds)
    reader = ModuleReader(directory)
    is_static = first.kind == STATIC_EMBEDDING
    pooling: Mode = "mean"
    pools_prompts = True
    if is_static:
        token_limits = _read_static_limits(directory / first.folder)
        steps, dense_size = reader.read_steps(modules)
    else:
        if read_transformer_task(directory / first.folder) == CLASSIFIER_TASK:
            reason = f"transformer_task is {CLASSIFIER_TASK!r}; a bi-encoder's must be {ENCODER_TASK!r}"
            raise file_error(directory / first.folder / TRANSFORMER_FILE, reason)
        pooling = _read_pooling(directory, reader, modules)
        pooling_module, *later_modules = modules
        steps, dense_size = reader.read_steps(later_modules)
        # The last token is never part of a prompt, so leaving prompts out makes no difference to it.
        pools_prompts = reader.includes_prompt(pooling_module) or pooling == "lasttoken"
        token_limits = read_token_limits(directory / first.folder)
    similarity = _read_similarity(file, model)
    dimensions = int(model.get("truncate_dim") or 0)
    # The cosine contains a final division by the norm. The dot product of unit vectors is a cosine, too, except if only
    # some of their dimensions are used.
    if steps and steps[-1].kind == "unit" and (similarity == "cosine" or not dimensions):
        steps, similarity = steps[:-1], "cosine"
    return BiEncoderDescription(
        token_limits,
        transformer_folder=first.folder,
        weight_files=reader.weight_files,
        is_static=is_static,
        query_prefix=select_prompt(file, model, QUERY_PROMPTS),
        document_prefix=select_prompt(file, model, DOCUMENT_PROMPTS),
        pools_prompts=pools_prompts,
        pooling=pooling,
        steps=tuple(steps),
        dense_size=dense_size,
        dimensions=dimensions,
        similarity=similarity,
    )


def _read_static_limits(directory: Path) -> TokenLimits:
    """Read the token limit of a StaticEmbedding from its tokenizer's truncation."""
    truncation = read_json(directory / TOKENIZER_FILE).get("truncation") or {}
    return TokenLimits(int(truncation.get("max_length", MAX_TOKENS)))


def _read_pooling(directory: Path, reader: ModuleReader, modules: Sequence[Module]) -> Mode:
    """Read the mode of the Pooling after a Transformer, such as ``mean``. There must be only one mode."""
    modes = reader.read_pooling(modules)
    if len(modes) > 1:
        reason = f"pooling_mode is {', '.join(modes)}; a bi-encoder must have only one mode"
        raise file_error(directory / modules[0].folder / MODULE_FILE, reason)
    return modes[0]


def _read_similarity(file: Path, model: Mapping[str, Any]) -> Similarity:
    name = model.get("similarity_fn_name") or "cosine"
    for similarity in SIMILARITIES:
        if similarity == name:
            return similarity
    raise file_error(file, f"similarity_fn_name is {name!r}; it must be one of {', '.join(SIMILARITIES)}")
