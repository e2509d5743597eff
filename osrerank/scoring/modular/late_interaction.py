"""Read the files of a late-interaction model that sentence-transformers, PyLate or Stanford's ColBERT saved.

A late-interaction model has a vector for each token of a query and of a document. sentence-transformers 6
(``MultiVectorEncoder``) and PyLate (``ColBERT``) list its modules: a Transformer and any number of Dense modules.
sentence-transformers adds MultiVectorMask, Normalize and HierarchicalTokenPooling. Stanford's ColBERT (arXiv
2004.12832) writes ``artifact.metadata``, and saves its projection with the BERT's weights as ``linear.weight``.
"""

import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.scoring.json_file import read_json, read_optional_json
from osrerank.scoring.modular.bi_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS
from osrerank.scoring.modular.description import (
    ENCODER_TASK,
    KNOWN_FIELDS,
    LIBRARY,
    MODEL_FILE,
    MODULE_FILE,
    MODULE_WEIGHTS_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TOKENIZER_SETTINGS_FILE,
    TOKENS_OUTPUT,
    TRANSFORMER_FILE,
    Content,
    check_field,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_settings,
    read_transformer_task,
    refuse_unknown_fields,
    select_prompt,
)
from osrerank.scoring.modular.token_vectors import TokenVectorSettings

MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
"""``model_type`` of models that sentence-transformers and PyLate saved."""
STANFORD_ARCHITECTURE = "HF_ColBERT"
METADATA_FILE = "artifact.metadata"
LATER_MODULES = ("Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling")
"""Modules that can follow the Transformer of a late-interaction model."""
LIBRARIES = (LIBRARY, "pylate.models.")
"""Packages of the modules' classes."""
EXPANSION_FIELD = "query_expansion"
"""Field of a Transformer's settings that says how [MASK] tokens expand short queries."""
SIMILARITIES = ("maxsim", "meanmaxsim")
"""Supported similarities. ``meanmaxsim`` divides by the number of a query's tokens, which changes no ranking."""
DENSE_FIELDS = (*KNOWN_FIELDS["Dense"], "use_residual")
"""Fields that a Dense may have."""
MASK_FIELDS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
"""Fields that a MultiVectorMask may have. It drops the vectors of tokens such as punctuation."""
POOLING_FIELDS: Content = {"num_protected_tokens": 1, "normalize_embeddings": True, "tasks": ["document"]}
"""Fields that a HierarchicalTokenPooling may have besides ``pool_factor``, and their only supported values."""
DEFAULT_QUERY_TOKENS = 32
"""The token limit of queries in PyLate and Stanford's ColBERT, unless the files set another."""
DEFAULT_DOCUMENT_TOKENS = 180
"""The token limit of documents in PyLate and Stanford's ColBERT, unless the files set another."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix that multiplies each token's state: its last hidden state, or the output of the previous projection.

    Attributes:
        file: safetensors file with the matrix, relative to the directory.
        residual: what is added to the product. "" adds nothing, and ``same`` adds the state itself. Any other value,
            such as ``residual``, names a second matrix in the file, whose product with the state is added.
    """

    file: str
    residual: str = ""


@dataclass(frozen=True, slots=True)
class LateInteractionDescription:
    """What the files of a late-interaction model say about the model.

    Attributes:
        transformer_folder: folder of the Transformer's files, relative to the directory. "" is the directory itself.
        projections: projections from a state to a token's vector, in order.
        dimensions: size of a token's vector, or 0 if it is the size of the state.
        max_query_tokens: maximum number of tokens in a query, including special tokens and the [MASK] tokens that
            expand it. None if the files set no limit.
        max_document_tokens: maximum number of tokens in a document, including special tokens. None if the files set no
            limit.
        tokens: which tokens the model adds to a text, and which token vectors it keeps.
        query_prefix: text between the query marker and every query.
        document_prefix: text between the document marker and every document.
    """

    transformer_folder: str
    projections: tuple[Projection, ...]
    dimensions: int
    max_query_tokens: int | None
    max_document_tokens: int | None
    tokens: TokenVectorSettings
    query_prefix: str = ""
    document_prefix: str = ""


def is_late_interaction(directory: Path) -> bool:
    """Return whether one of the libraries saved a late-interaction model in a directory.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    model_type = read_model_type(directory)
    config_file = directory / MODULE_FILE
    if model_type is None and config_file.exists():
        return STANFORD_ARCHITECTURE in (read_json(config_file).get("architectures") or ())
    return model_type in MODEL_TYPES


def read_late_interaction(directory: Path) -> LateInteractionDescription:
    """Read the description of a late-interaction model. `is_late_interaction` must be true for its directory.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know. The message names the field.
    """
    model_type = read_model_type(directory)
    if model_type is None:
        return _read_stanford(directory)
    return _ModulesReader(directory, model_type).read()


class _ModulesReader:
    """Reads a directory that sentence-transformers or PyLate saved."""

    def __init__(self, directory: Path, model_type: str) -> None:
        self._directory = directory
        self._is_pylate = model_type == "ColBERT"
        self._file = directory / MODEL_FILE
        self._model: Content = read_json(self._file)
        transformer, *self._modules = list_modules(directory / MODULES_FILE, LATER_MODULES, LIBRARIES)
        self._transformer_folder = transformer.folder
        self._vocabulary = _Vocabulary(directory / self._transformer_folder)

    def read(self) -> LateInteractionDescription:
        similarity = str(self._model.get("similarity_fn_name") or SIMILARITIES[0]).lower()
        if similarity not in SIMILARITIES:
            reason = f"similarity_fn_name is {similarity!r}; it must be {' or '.join(SIMILARITIES)}"
            raise file_error(self._file, reason)
        transformer = self._directory / self._transformer_folder
        task = read_transformer_task(transformer, extra_fields=(EXPANSION_FIELD,))
        check_field(transformer / TRANSFORMER_FILE, "transformer_task", task, ENCODER_TASK)
        projections, dimensions = self._read_projections()
        query_marker, query_prefix = self._read_marker_and_prefix("query", QUERY_PROMPTS)
        document_marker, document_prefix = self._read_marker_and_prefix("document", DOCUMENT_PROMPTS)
        expansion, max_query_tokens, max_document_tokens = self._read_expansion_and_limits(transformer)
        skipped_words = self._read_skipped_words()
        if not self._is_pylate:
            self._check_normalize()
        tokens = TokenVectorSettings(
            query_marker=query_marker,
            document_marker=document_marker,
            **expansion,
            skipped=self._vocabulary.select_tokens(skipped_words),
            pool_factor=self._read_pool_factor(),
        )
        return LateInteractionDescription(
            self._transformer_folder,
            projections,
            dimensions=dimensions,
            max_query_tokens=max_query_tokens,
            max_document_tokens=max_document_tokens,
            tokens=tokens,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
        )

    def _read_marker_and_prefix(self, side: str, names: Sequence[str]) -> tuple[str, str]:
        """Read the marker and the prefix of a ``side``, "query" or "document": ``("[Q] ", "search: ")``."""
        prompt = select_prompt(self._file, self._model, names)
        if not self._is_pylate:
            return self._vocabulary.split_marker(prompt)
        marker = "[Q] " if side == "query" else "[D] "
        if self._model.get(f"{side}_prefix") is not None:
            marker = str(self._model[f"{side}_prefix"])
        if marker and not self._vocabulary.has_token(marker):
            reason = f"{side}_prefix is {marker!r}, which is not a token of {TOKENIZER_FILE}"
            raise file_error(self._file, f"{reason}; load the model with PyLate and save it again")
        return marker, prompt.removeprefix(marker)

    def _read_expansion_and_limits(self, transformer: Path) -> tuple[dict[str, Any], int | None, int | None]:
        """Read how queries are expanded, and the maximum numbers of tokens in a query and in a document.

        The expansion is given as fields of `TokenVectorSettings`.
        """
        if self._is_pylate:
            max_query_tokens = int(self._model.get("query_length") or DEFAULT_QUERY_TOKENS)
            max_document_tokens = int(self._model.get("document_length") or DEFAULT_DOCUMENT_TOKENS)
            is_expanded = self._model.get("do_query_expansion") is not False
            expansion = self._vocabulary.build_expansion_fields(
                max_query_tokens if is_expanded else 0,
                is_attended=bool(self._model.get("attend_to_expansion_tokens")),
            )
            return expansion, max_query_tokens, max_document_tokens
        limits = read_token_limits(transformer, extra_fields=(EXPANSION_FIELD,))
        file, transformer_settings = read_transformer_settings(transformer, extra_fields=(EXPANSION_FIELD,))
        settings = transformer_settings.get(EXPANSION_FIELD) or {"length": 0}  # 0 means no expansion
        refuse_unknown_fields(file, settings, ("strategy", "attend", "token", "length"), EXPANSION_FIELD)
        strategy = settings.get("strategy")
        if strategy not in (None, "fixed", "min"):
            raise file_error(file, f"{EXPANSION_FIELD} has the strategy {strategy!r}; it must be fixed or min")
        length = settings["length"]
        expansion = self._vocabulary.build_expansion_fields(
            length, is_attended=bool(settings.get("attend")), token=settings.get("token")
        )
        query_limit = limits.query or limits.sequence
        if strategy == "fixed":  # every query gets exactly this length
            query_limit = int(length)
        return expansion, query_limit, limits.document or limits.sequence

    def _read_projections(self) -> tuple[tuple[Projection, ...], int]:
        """Read the projections of the Dense modules, and the output size of the last one, or 0 without a Dense."""
        projections: list[Projection] = []
        size = 0
        for module in self._modules:
            if module.kind == "Dense":
                projection, size = self._read_projection(module.folder)
                projections.append(projection)
        return tuple(projections), size

    def _read_projection(self, folder: str) -> tuple[Projection, int]:
        """Read the projection of the Dense in a folder, and its output size."""
        file = self._directory / folder / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown_fields(file, content, DENSE_FIELDS, "Dense")
        input_name = content.get("module_input_name", TOKENS_OUTPUT)
        check_field(file, "module_input_name", input_name, TOKENS_OUTPUT)
        # without a name of its own, the output replaces the input
        check_field(file, "module_output_name", content.get("module_output_name") or input_name, TOKENS_OUTPUT)
        activation = str(content.get("activation_function", "Tanh")).rpartition(".")[2]  # torch.nn.Tanh -> Tanh
        check_field(file, "activation_function", activation, "Identity")
        check_field(file, "bias", content.get("bias", True), expected=False)
        weights = f"{folder}/{MODULE_WEIGHTS_FILE}"
        if not (self._directory / weights).exists():
            fix = "save the model with safe_serialization=True, because osrerank does not read pickled weights here"
            raise file_error(self._directory / weights, f"the file is missing; {fix}")
        residual = ""
        if content.get("use_residual"):
            residual = "same" if content.get("in_features") == content.get("out_features") else "residual"
        return Projection(weights, residual), int(content["out_features"])

    def _read_skipped_words(self) -> Sequence[str]:
        """Read the words whose vectors are dropped from documents."""
        if self._is_pylate:
            words = self._model.get("skiplist_words")
            return list(string.punctuation) if words is None else list(words)
        mask_file, mask = self._read_single_module("MultiVectorMask", MASK_FIELDS)
        check_field(mask_file, "skiplist_tasks", list(mask.get("skiplist_tasks") or ["document"]), ["document"])
        check_field(mask_file, "keep_only_token_ids", mask.get("keep_only_token_ids") or None, None)
        return list(mask.get("skiplist_words") or ())

    def _check_normalize(self) -> None:
        """Refuse a Normalize module whose input or output are not the token vectors."""
        file, content = self._read_single_module("Normalize", KNOWN_FIELDS["Normalize"])
        for name, value in content.items():
            check_field(file, name, value or TOKENS_OUTPUT, TOKENS_OUTPUT)

    def _read_pool_factor(self) -> float:
        """Read how many token vectors of a document are merged into one, on average. It is 1 if none are merged."""
        kinds = [module.kind for module in self._modules]
        if "HierarchicalTokenPooling" not in kinds:
            return 1
        if kinds[-1] != "HierarchicalTokenPooling":
            reason = f"HierarchicalTokenPooling must be the last module, but {kinds[-1]} is the last"
            raise file_error(self._directory / MODULES_FILE, reason)
        file, content = self._read_single_module("HierarchicalTokenPooling", ("pool_factor", *POOLING_FIELDS))
        # a missing normalize_embeddings means False, which is refused
        defaults = {**POOLING_FIELDS, "normalize_embeddings": False}
        for name, expected in POOLING_FIELDS.items():
            check_field(file, name, content.get(name, defaults[name]), expected)
        return float(content.get("pool_factor", 1))

    def _read_single_module(self, kind: str, known_fields: Collection[str]) -> tuple[Path, Content]:
        """Return the file of the only module of a kind, and its content."""
        folders = [module.folder for module in self._modules if module.kind == kind]
        if len(folders) != 1:
            reason = f"{len(folders)} modules have the type {kind}; a late-interaction model must have one"
            raise file_error(self._directory / MODULES_FILE, reason)
        file = self._directory / folders[0] / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown_fields(file, content, known_fields, kind)
        return file, content


def _read_stanford(directory: Path) -> LateInteractionDescription:
    """Read the description of a model that Stanford's ColBERT saved."""
    file = directory / METADATA_FILE
    vocabulary = _Vocabulary(directory)
    content = read_optional_json(file)
    check_field(file, "similarity", content.get("similarity", "cosine"), "cosine")
    check_field(file, "interaction", content.get("interaction", "colbert"), "colbert")
    markers: list[str] = []
    for field, default in (("query_token_id", "[unused0]"), ("doc_token_id", "[unused1]")):
        marker = content.get(field) or default
        if not vocabulary.has_token(marker):
            raise file_error(file, f"{field} is {marker!r}; it must be a token of {TOKENIZER_FILE}")
        markers.append(marker)
    max_query_tokens = int(content.get("query_maxlen") or DEFAULT_QUERY_TOKENS)
    max_document_tokens = int(content.get("doc_maxlen") or DEFAULT_DOCUMENT_TOKENS)
    tokens = TokenVectorSettings(
        query_marker=markers[0],
        document_marker=markers[1],
        **vocabulary.build_expansion_fields(max_query_tokens, is_attended=bool(content.get("attend_to_mask_tokens"))),
        skipped=vocabulary.select_tokens(string.punctuation if content.get("mask_punctuation", True) else ()),
    )
    return LateInteractionDescription(
        transformer_folder="",
        projections=(Projection(MODULE_WEIGHTS_FILE),),
        dimensions=int(content.get("dim") or 0),
        max_query_tokens=max_query_tokens,
        max_document_tokens=max_document_tokens,
        tokens=tokens,
    )


class _Vocabulary:
    """The tokens of the tokenizer in a transformer's directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / TOKENIZER_FILE
        content: Content = read_json(self._file)
        vocabulary = (content.get("model") or {}).get("vocab") or {}
        if not isinstance(vocabulary, dict):  # a list of tokens and their scores
            vocabulary = [token for token, *_ in vocabulary]
        self._added_tokens = frozenset(str(entry.get("content")) for entry in content.get("added_tokens") or ())
        self._tokens = self._added_tokens.union(vocabulary)
        mask = read_optional_json(directory / TOKENIZER_SETTINGS_FILE).get("mask_token")
        self._mask_token = str(mask["content"] if isinstance(mask, dict) else mask or "[MASK]")

    def has_token(self, token: str) -> bool:
        return token in self._tokens

    def select_tokens(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words that are tokens of the tokenizer."""
        return tuple(word for word in words if self.has_token(word))

    def split_marker(self, prompt: str) -> tuple[str, str]:
        """Split a prompt such as ``[Q] search:`` into its marker and prefix: ``("[Q]", " search:")``.

        The marker is "" if the prompt's first word is not an added token of the tokenizer. The prefix keeps its leading
        space, which byte-level tokenizers treat as part of the next word.
        """
        if prompt in self._added_tokens:
            return prompt, ""
        marker = prompt.partition(" ")[0]
        if marker in self._added_tokens:
            return marker, prompt.removeprefix(marker)
        return "", prompt

    def build_expansion_fields(self, length: int, *, is_attended: bool, token: str | None = None) -> dict[str, Any]:
        """Return the fields of `TokenVectorSettings` that expand queries to ``length`` tokens, or {} for length 0.

        ``is_attended`` says whether the query's words attend to the appended tokens.
        """
        if not length:
            return {}
        token = token or self._mask_token
        if not self.has_token(token):
            raise file_error(
                self._file, f"the tokenizer does not contain {token!r}, which is appended to short queries"
            )
        return {"expansion": token, "expanded_to": int(length), "attends_to_expansion": is_attended}
