"""Read a late-interaction model's directory as sentence-transformers, PyLate or Stanford's code saves it.

sentence-transformers 6 (``MultiVectorEncoder``) and PyLate (``ColBERT``) list modules: a Transformer and Dense.
sentence-transformers adds MultiVectorMask, Normalize and HierarchicalTokenPooling. Stanford's code (ColBERT, arXiv
2004.12832) writes ``artifact.metadata``, and saves its projection with the BERT's weights, as ``linear.weight``.
"""

import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.bi_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, select_prompt
from osrerank.scoring.modular.description import (
    ENCODERS,
    LIBRARY,
    MODEL_FILE,
    MODULE_FILE,
    MODULE_WEIGHTS_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TOKENIZER_SETTINGS_FILE,
    TRANSFORMER_FILE,
    VECTORS_OF_TOKENS,
    Content,
    check_field,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_settings,
    read_transformer_task,
    refuse_unknown,
)
from osrerank.scoring.modular.token_vectors import TokenVectors

MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
"""The ``model_type`` that sentence-transformers and PyLate write."""
STANFORD, METADATA_FILE = "HF_ColBERT", "artifact.metadata"
LATER_MODULES = ("Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling")
LIBRARIES = (LIBRARY, "pylate.models.")
EXPANSION = "query_expansion"
SIMILARITIES = ("maxsim", "meanmaxsim")
"""``meanmaxsim`` divides by the number of the query's tokens, which changes no order."""
DENSE_FIELDS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
MASK_FIELDS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
POOLING_FIELDS: Content = {"num_protected_tokens": 1, "normalize_embeddings": True, "tasks": ["document"]}
"""Field of a HierarchicalTokenPooling, except for its factor -> the only value that osrerank supports."""
DEFAULT_LENGTHS = (32, 180)
"""Most tokens of a query and of a document in PyLate and Stanford's code, if the files do not set them."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix that each token's state is multiplied by.

    Attributes:
        file: safetensors file with the matrix, relative to the directory.
        name: name of the matrix in the file, without ``.weight``.
        residual: residual connection, which is added to the product: ``same`` adds the state itself, another name adds
            the state's product with the matrix of that name, and an empty name adds nothing.
    """

    file: str
    name: str
    residual: str = ""


@dataclass(frozen=True, slots=True)
class LateInteractionDescription:
    """The description of a late-interaction model in its files.

    Attributes:
        transformer: folder of the transformer's files, relative to the directory; "" for the directory itself.
        projections: projections from a state to a token's vector, in order.
        dimensions: size of a token's vector; 0 for the size of the state.
        query_prefix: text that precedes every query, after the marker.
        document_prefix: text that precedes every document, after the marker.
        max_query_tokens: maximum tokens in a query, with special and filling tokens; None for the model's limit.
        max_document_tokens: maximum tokens in a document, with special tokens; None for the model's limit.
        tokens: markers, expansion, and which token vectors are kept.
    """

    transformer: str
    projections: tuple[Projection, ...]
    dimensions: int
    query_prefix: str
    document_prefix: str
    max_query_tokens: int | None
    max_document_tokens: int | None
    tokens: TokenVectors


def is_late_interaction(directory: Path) -> bool:
    """Return whether a directory has a late-interaction model that one of the libraries saved.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    saved_type, config_file = read_model_type(directory), directory / MODULE_FILE
    if saved_type is None and config_file.exists():
        return STANFORD in (read_json(config_file).get("architectures") or ())
    return saved_type in MODEL_TYPES


def read_late_interaction(directory: Path) -> LateInteractionDescription:
    """Return the description of a late-interaction model.

    Args:
        directory: a directory for which `is_late_interaction` is true.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know; the message names it.
    """
    saved_type = read_model_type(directory)
    return _read_stanford(directory) if saved_type is None else _SavedModules(directory, saved_type).read()


class _SavedModules:
    """Reads a directory that sentence-transformers or PyLate saved.

    Args:
        directory: the model's directory.
        saved_type: one of `MODEL_TYPES`.
    """

    def __init__(self, directory: Path, saved_type: str) -> None:
        self._directory = directory
        self._is_pylate = saved_type == "ColBERT"
        self._file = directory / MODEL_FILE
        self._model: Content = read_json(self._file)
        (_, self._transformer), *self._modules = list_modules(directory / MODULES_FILE, LATER_MODULES, LIBRARIES)
        self._vocabulary = _Vocabulary(directory / self._transformer)

    def read(self) -> LateInteractionDescription:
        """Return the description of the model.

        Raises:
            ModelLoadError: as `read_late_interaction`.
        """
        similarity = str(self._model.get("similarity_fn_name") or SIMILARITIES[0]).lower()
        if similarity not in SIMILARITIES:
            reason = f"similarity_fn_name is {similarity!r}; it must be {' or '.join(SIMILARITIES)}"
            raise file_error(self._file, reason)
        transformer = self._directory / self._transformer
        task = read_transformer_task(transformer, (EXPANSION,))
        check_field(transformer / TRANSFORMER_FILE, "transformer_task", task, ENCODERS)
        projections, dimensions = self._projections()
        query_marker, query_prefix = self._marker_and_prefix("query", QUERY_PROMPTS)
        document_marker, document_prefix = self._marker_and_prefix("document", DOCUMENT_PROMPTS)
        expansion, max_query_tokens, max_document_tokens = self._lengths(transformer)
        tokens = TokenVectors(
            query_marker=query_marker,
            document_marker=document_marker,
            **expansion,
            skipped=self._vocabulary.tokens_among(self._skipped_words()),
            pool_factor=self._pool_factor(),
        )
        return LateInteractionDescription(
            self._transformer,
            projections,
            dimensions,
            query_prefix,
            document_prefix,
            max_query_tokens,
            max_document_tokens,
            tokens,
        )

    def _marker_and_prefix(self, side: str, names: Sequence[str]) -> tuple[str, str]:
        """Return the marker token of queries or documents, and the text after it."""
        prompt = select_prompt(self._file, self._model, names)
        if not self._is_pylate:
            return self._vocabulary.split_marker(prompt)
        setting = self._model.get(f"{side}_prefix")
        marker = {"query": "[Q] ", "document": "[D] "}[side] if setting is None else str(setting)
        if marker and not self._vocabulary.has(marker):
            fix = "load the model with PyLate and save it again"
            raise file_error(
                self._file, f"{side}_prefix is {marker!r}, which is not a token of {TOKENIZER_FILE}; {fix}"
            )
        return marker, prompt.removeprefix(marker)

    def _lengths(self, transformer: Path) -> tuple[dict[str, Any], int | None, int | None]:
        """Return the query expansion, and the maximum numbers of tokens in a query and a document."""
        if self._is_pylate:
            query, document = _lengths_in(self._model, ("query_length", "document_length"))
            is_on = self._model.get("do_query_expansion") is not False
            attends = bool(self._model.get("attend_to_expansion_tokens"))
            return self._vocabulary.expansion(query if is_on else 0, attends=attends), query, document
        limits = read_token_limits(transformer, (EXPANSION,))
        file, settings = read_transformer_settings(transformer, (EXPANSION,))
        content = settings.get(EXPANSION) or {"length": 0}
        refuse_unknown(file, content, ("strategy", "attend", "token", "length"), EXPANSION)
        strategy = content.get("strategy")
        if strategy not in (None, "fixed", "min"):
            raise file_error(file, f"{EXPANSION} has the strategy {strategy!r}; it must be fixed or min")
        expansion = self._vocabulary.expansion(
            content["length"], attends=bool(content.get("attend")), token=content.get("token")
        )
        max_query_tokens = int(content["length"]) if strategy == "fixed" else limits.query or limits.sequence
        return expansion, max_query_tokens, limits.document or limits.sequence

    def _projections(self) -> tuple[tuple[Projection, ...], int]:
        """Return the projections of the Dense modules, and the size of the last one's output; 0 without a Dense."""
        projections: list[Projection] = []
        width = 0
        for kind, folder in self._modules:
            if kind == "Dense":
                projection, width = self._projection(folder)
                projections.append(projection)
        return tuple(projections), width

    def _projection(self, folder: str) -> tuple[Projection, int]:
        """Return the projection of a Dense, and the size of its output."""
        file = self._directory / folder / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown(file, content, DENSE_FIELDS, "Dense")
        source = content.get("module_input_name", VECTORS_OF_TOKENS)
        check_field(file, "module_input_name", source, VECTORS_OF_TOKENS)
        check_field(file, "module_output_name", content.get("module_output_name") or source, VECTORS_OF_TOKENS)
        activation = str(content.get("activation_function", "Tanh")).rpartition(".")[2]
        check_field(file, "activation_function", activation, "Identity")
        check_field(file, "bias", content.get("bias", True), expected=False)
        weights = f"{folder}/{MODULE_WEIGHTS_FILE}"
        if not (self._directory / weights).exists():
            fix = "save the model with safe_serialization=True, because osrerank does not read pickled weights here"
            raise file_error(self._directory / weights, f"it is missing; {fix}")
        is_square = content.get("in_features") == content.get("out_features")
        residual = ("same" if is_square else "residual") if content.get("use_residual") else ""
        return Projection(weights, "linear", residual), int(content["out_features"])

    def _skipped_words(self) -> Sequence[str]:
        """Return the words whose tokens have no vector in a document."""
        if self._is_pylate:
            words = self._model.get("skiplist_words")
            return list(string.punctuation) if words is None else list(words)
        mask_file, mask = self._module("MultiVectorMask", MASK_FIELDS)
        check_field(mask_file, "skiplist_tasks", list(mask.get("skiplist_tasks") or ["document"]), ["document"])
        check_field(mask_file, "keep_only_token_ids", mask.get("keep_only_token_ids") or None, None)
        normalize_file, normalize = self._module("Normalize", ("module_input_name", "module_output_name"))
        for name, value in normalize.items():
            check_field(normalize_file, name, value or VECTORS_OF_TOKENS, VECTORS_OF_TOKENS)
        return list(mask.get("skiplist_words") or ())

    def _pool_factor(self) -> float:
        kinds = [kind for kind, _ in self._modules]
        if "HierarchicalTokenPooling" not in kinds:
            return 1
        if kinds[-1] != "HierarchicalTokenPooling":
            reason = f"HierarchicalTokenPooling must be the last module, but {kinds[-1]} is the last"
            raise file_error(self._directory / MODULES_FILE, reason)
        file, content = self._module("HierarchicalTokenPooling", ("pool_factor", *POOLING_FIELDS))
        for name, expected in POOLING_FIELDS.items():
            default = False if name == "normalize_embeddings" else expected
            check_field(file, name, content.get(name, default), expected)
        return float(content.get("pool_factor", 1))

    def _module(self, kind: str, known_fields: Collection[str]) -> tuple[Path, Content]:
        """Return the file of the only module of a kind, and its content."""
        folders = [folder for module_kind, folder in self._modules if module_kind == kind]
        if len(folders) != 1:
            reason = f"it lists {len(folders)} modules of the type {kind}; a late-interaction model must have one"
            raise file_error(self._directory / MODULES_FILE, reason)
        file = self._directory / folders[0] / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown(file, content, known_fields, kind)
        return file, content


def _read_stanford(directory: Path) -> LateInteractionDescription:
    """Read a directory that Stanford's code saved."""
    file, vocabulary = directory / METADATA_FILE, _Vocabulary(directory)
    content: Mapping[str, Any] = read_json(file) if file.exists() else {}
    check_field(file, "similarity", content.get("similarity", "cosine"), "cosine")
    check_field(file, "interaction", content.get("interaction", "colbert"), "colbert")
    markers = content.get("query_token_id") or "[unused0]", content.get("doc_token_id") or "[unused1]"
    for name, marker in zip(("query_token_id", "doc_token_id"), markers, strict=True):
        if not vocabulary.has(marker):
            raise file_error(file, f"{name} is {marker!r}, which is not a token of {TOKENIZER_FILE}")
    query, document = _lengths_in(content, ("query_maxlen", "doc_maxlen"))
    tokens = TokenVectors(
        *markers,
        **vocabulary.expansion(query, attends=bool(content.get("attend_to_mask_tokens"))),
        skipped=vocabulary.tokens_among(string.punctuation if content.get("mask_punctuation", True) else ()),
    )
    projection = Projection(MODULE_WEIGHTS_FILE, "linear")
    return LateInteractionDescription("", (projection,), int(content.get("dim") or 0), "", "", query, document, tokens)


def _lengths_in(content: Content, fields: tuple[str, str]) -> tuple[int, int]:
    """Return the maximum numbers of tokens in a query and a document: the two fields, or the defaults."""
    query, document = (
        int(content.get(field) or default) for field, default in zip(fields, DEFAULT_LENGTHS, strict=True)
    )
    return query, document


class _Vocabulary:
    """The tokens of a tokenizer.

    Args:
        directory: the transformer's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / TOKENIZER_FILE
        content: Content = read_json(self._file)
        vocabulary = (content.get("model") or {}).get("vocab") or {}
        self._added = frozenset(str(entry.get("content")) for entry in content.get("added_tokens") or ())
        self._tokens = self._added.union(
            vocabulary if isinstance(vocabulary, dict) else (token for token, *_ in vocabulary)
        )
        settings = directory / TOKENIZER_SETTINGS_FILE
        mask = read_json(settings).get("mask_token") if settings.exists() else None
        self._mask = str(mask["content"] if isinstance(mask, dict) else mask or "[MASK]")

    def has(self, token: str) -> bool:
        """Return whether the tokenizer has a token."""
        return token in self._tokens

    def tokens_among(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words that are tokens."""
        return tuple(word for word in words if self.has(word))

    def split_marker(self, prompt: str) -> tuple[str, str]:
        """Split a prompt into the added token that it begins with, or an empty string, and the remaining text.

        The text keeps its leading space, because a byte-level tokenizer reads it as a part of the next word.
        """
        if prompt in self._added:
            return prompt, ""
        marker = prompt.partition(" ")[0]
        return (marker, prompt.removeprefix(marker)) if marker in self._added else ("", prompt)

    def expansion(self, length: int, *, attends: bool, token: str | None = None) -> dict[str, Any]:
        """Return the fields of `TokenVectors` that fill queries to a length; empty for length 0.

        Raises:
            ModelLoadError: the tokenizer lacks the token.
        """
        if not length:
            return {}
        token = token or self._mask
        if not self.has(token):
            raise file_error(self._file, f"it lacks {token!r}, the token that fills short queries")
        return {"expansion": token, "expanded_to": int(length), "attends_to_expansion": attends}
