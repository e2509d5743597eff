"""A late-interaction model's directory, as sentence-transformers, PyLate or Stanford's code saves it.

sentence-transformers 6 (``MultiVectorEncoder``) and PyLate (``ColBERT``) list modules: a Transformer, Dense, and
sentence-transformers also MultiVectorMask, Normalize and HierarchicalTokenPooling. Stanford's code (ColBERT, arXiv
2004.12832) writes ``artifact.metadata``, and keeps its projection beside the BERT's weights, as ``linear.weight``.
"""

import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.bi_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, prompt_of
from osrerank.scoring.modular.description import (
    ENCODERS,
    LIBRARY,
    MODEL_FILE,
    MODULE_FILE,
    MODULE_WEIGHTS_FILE,
    MODULES_FILE,
    TOKENIZER_FILE,
    TOKENIZER_SETTINGS_FILE,
    TOKENS,
    TRANSFORMER_FILE,
    Content,
    limits_of,
    listed,
    model_type,
    refuse_unknown,
    refused,
    transformer_settings,
    transformer_task,
)
from osrerank.scoring.modular.token_vectors import TokenVectors

NAMES = ("MultiVectorEncoder", "ColBERT")
"""The ``model_type`` that sentence-transformers and PyLate write."""
STANFORD, METADATA_FILE = "HF_ColBERT", "artifact.metadata"
KINDS = ("Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling")
LIBRARIES = (LIBRARY, "pylate.models.")
EXPANSION = "query_expansion"
SIMILARITIES = ("maxsim", "meanmaxsim")
"""The second divides by the number of the query's tokens, which changes no order."""
DENSE_KEYS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
MASK_KEYS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
POOLING: Content = {"num_protected_tokens": 1, "normalize_embeddings": True, "tasks": ["document"]}
"""Fields of a HierarchicalTokenPooling besides its factor, and what they must be."""
PYLATE_LENGTHS = (32, 180)
"""Most tokens of a query and of a document in PyLate and Stanford's code, where the files name none."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix that each token's state is multiplied by.

    Attributes:
        file: the safetensors that have it, relative to the directory.
        name: its name in there, without ``.weight``.
        residual: what is added to the product: ``same`` for the state itself, else the name of another matrix that
            multiplies it; empty for nothing.
    """

    file: str
    name: str
    residual: str = ""


@dataclass(frozen=True, slots=True)
class LateInteractionDescription:
    """What a late-interaction model's files say.

    Attributes:
        transformer: folder of the transformer's files, relative to the directory; "" for the directory itself.
        projections: from a state to a token's vector, in order.
        dimensions: numbers of a token's vector; 0 for the state's.
        query_prefix: text before every query, behind the marker.
        document_prefix: likewise of a document.
        most_query_tokens, most_document_tokens: special and filling tokens included; None for as many as the model has.
        tokens: markers, expansion, which tokens' vectors are kept.
    """

    transformer: str
    projections: tuple[Projection, ...]
    dimensions: int
    query_prefix: str
    document_prefix: str
    most_query_tokens: int | None
    most_document_tokens: int | None
    tokens: TokenVectors


def is_late_interaction(directory: Path) -> bool:
    """Return whether a directory has a late-interaction model that one of the libraries saved.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    kind, config = model_type(directory), directory / MODULE_FILE
    if kind is None and config.exists():
        return STANFORD in (read_json(config).get("architectures") or ())
    return kind in NAMES


def read_late_interaction(directory: Path) -> LateInteractionDescription:
    """Return what a directory's files say of late interaction.

    Args:
        directory: the model's, of which `is_late_interaction` is true.

    Raises:
        ModelLoadError: a file cannot be read, or asks for what is not known; the message names the field.
    """
    kind = model_type(directory)
    return _of_stanford(directory) if kind is None else _Saved(directory, kind).read()


class _Saved:
    """Reads what sentence-transformers or PyLate saved.

    Args:
        directory: the model's.
        kind: the model's type, one of `NAMES`.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._is_pylates = kind == "ColBERT"
        self._file = directory / MODEL_FILE
        self._model: Content = read_json(self._file)
        (_, self._transformer), *self._modules = listed(directory / MODULES_FILE, KINDS, LIBRARIES)
        self._vocabulary = _Vocabulary(directory / self._transformer)

    def read(self) -> LateInteractionDescription:
        """Return what the files say."""
        similarity = str(self._model.get("similarity_fn_name") or SIMILARITIES[0]).lower()
        if similarity not in SIMILARITIES:
            raise refused(self._file, f"similarity_fn_name is {similarity!r}; it must be {' or '.join(SIMILARITIES)}")
        transformer = self._directory / self._transformer
        if (task := transformer_task(transformer, (EXPANSION,))) != ENCODERS:
            raise refused(transformer / TRANSFORMER_FILE, f"transformer_task is {task!r}; it must be {ENCODERS!r}")
        projections, dimensions = self._projections()
        queries, documents = self._side("query", QUERY_PROMPTS), self._side("document", DOCUMENT_PROMPTS)
        expansion, most_query, most_document = self._lengths(transformer)
        tokens = TokenVectors(
            query_marker=queries[0],
            document_marker=documents[0],
            **expansion,
            skipped=self._vocabulary.known(self._skipped()),
            pool_factor=self._pool_factor(),
        )
        return LateInteractionDescription(
            self._transformer, projections, dimensions, queries[1], documents[1], most_query, most_document, tokens
        )

    def _side(self, side: str, names: Sequence[str]) -> tuple[str, str]:
        """Return the marker token of queries or documents, and the text behind it."""
        prompt, prefix = prompt_of(self._file, self._model, names), self._model.get(f"{side}_prefix")
        if self._is_pylates:
            prefix = {"query": "[Q] ", "document": "[D] "}[side] if prefix is None else str(prefix)
            if prefix and not self._vocabulary.has(prefix):
                fix = "load the model with PyLate and save it again"
                raise refused(self._file, f"{side}_prefix is {prefix!r}, which is no token of {TOKENIZER_FILE}; {fix}")
            return prefix, prompt.removeprefix(prefix)
        return self._vocabulary.marker(prompt)

    def _lengths(self, transformer: Path) -> tuple[dict[str, Any], int | None, int | None]:
        """Return the expansion of queries, and the most tokens of a query and of a document."""
        if self._is_pylates:
            query, document = (
                int(self._model.get(f"{side}_length") or usual)
                for side, usual in zip(("query", "document"), PYLATE_LENGTHS, strict=True)
            )
            is_on = self._model.get("do_query_expansion") is not False
            attends = bool(self._model.get("attend_to_expansion_tokens"))
            return self._vocabulary.expansion(query if is_on else 0, attends=attends), query, document
        limits = limits_of(transformer, (EXPANSION,))
        file, settings = transformer_settings(transformer, (EXPANSION,))
        found = settings.get(EXPANSION) or {"length": 0}
        refuse_unknown(file, found, ("strategy", "attend", "token", "length"), EXPANSION)
        if found.get("strategy") not in (None, "fixed", "min"):
            raise refused(file, f"{EXPANSION} has the strategy {found['strategy']!r}; it must be fixed or min")
        expansion = self._vocabulary.expansion(
            found["length"], attends=bool(found.get("attend")), token=found.get("token")
        )
        most = int(found["length"]) if found.get("strategy") == "fixed" else limits.query or limits.sequence
        return expansion, most, limits.document or limits.sequence

    def _projections(self) -> tuple[tuple[Projection, ...], int]:
        """Return the Dense modules, and how many numbers the last one gives; 0 without any."""
        found: list[Projection] = []
        width = 0
        for kind, folder in self._modules:
            if kind == "Dense":
                projection, width = self._dense(folder)
                found.append(projection)
        return tuple(found), width

    def _dense(self, folder: str) -> tuple[Projection, int]:
        file = self._directory / folder / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown(file, content, DENSE_KEYS, "Dense")
        source = content.get("module_input_name", TOKENS)
        activation = str(content.get("activation_function", "Tanh")).rpartition(".")[2]
        for name, value, wanted in (
            ("module_input_name", source, TOKENS),
            ("module_output_name", content.get("module_output_name") or source, TOKENS),
            ("activation_function", activation, "Identity"),
            ("bias", content.get("bias", True), False),
        ):
            if value != wanted:
                raise refused(file, f"{name} is {value!r}; of late interaction it must be {wanted!r}")
        weights = f"{folder}/{MODULE_WEIGHTS_FILE}"
        if not (self._directory / weights).exists():
            fix = "save the model with safe_serialization=True, for osrerank reads no pickled weights here"
            raise refused(self._directory / weights, f"it is missing; {fix}")
        is_square = content.get("in_features") == content.get("out_features")
        residual = ("same" if is_square else "residual") if content.get("use_residual") else ""
        return Projection(weights, "linear", residual), int(content["out_features"])

    def _skipped(self) -> Sequence[str]:
        """Return the words whose tokens have no vector in a document."""
        if self._is_pylates:
            words = self._model.get("skiplist_words")
            return list(string.punctuation) if words is None else list(words)
        file, content = self._module("MultiVectorMask", MASK_KEYS)
        if list(content.get("skiplist_tasks") or ["document"]) != ["document"]:
            raise refused(file, f"skiplist_tasks is {content['skiplist_tasks']!r}; it must be ['document']")
        if content.get("keep_only_token_ids"):
            raise refused(file, f"keep_only_token_ids is {content['keep_only_token_ids']!r}; it must be null")
        file, content = self._module("Normalize", ("module_input_name", "module_output_name"))
        for name, value in content.items():
            if value not in (None, TOKENS):
                raise refused(file, f"{name} is {value!r}; it must be {TOKENS!r}")
        return list(self._module("MultiVectorMask", MASK_KEYS)[1].get("skiplist_words") or ())

    def _pool_factor(self) -> float:
        kinds = [kind for kind, _ in self._modules]
        if "HierarchicalTokenPooling" not in kinds:
            return 1
        if kinds[-1] != "HierarchicalTokenPooling":
            reason = f"behind the HierarchicalTokenPooling stands {kinds[-1]}; it must be the last"
            raise refused(self._directory / MODULES_FILE, reason)
        file, content = self._module("HierarchicalTokenPooling", ("pool_factor", *POOLING))
        for name, wanted in POOLING.items():
            value = content.get(name, False if name == "normalize_embeddings" else wanted)
            if value != wanted:
                raise refused(file, f"{name} is {value!r}; it must be {wanted!r}")
        return float(content.get("pool_factor", 1))

    def _module(self, kind: str, known: Collection[str]) -> tuple[Path, Content]:
        """Return the file of the only module of a kind, and its content."""
        folders = [folder for one, folder in self._modules if one == kind]
        if len(folders) != 1:
            reason = f"it lists {len(folders)} modules of the type {kind}; of late interaction it must be one"
            raise refused(self._directory / MODULES_FILE, reason)
        file = self._directory / folders[0] / MODULE_FILE
        content: Content = read_json(file)
        refuse_unknown(file, content, known, kind)
        return file, content


def _of_stanford(directory: Path) -> LateInteractionDescription:
    file, vocabulary = directory / METADATA_FILE, _Vocabulary(directory)
    content: Mapping[str, Any] = read_json(file) if file.exists() else {}
    for name, wanted in (("similarity", "cosine"), ("interaction", "colbert")):
        if content.get(name, wanted) != wanted:
            raise refused(file, f"{name} is {content[name]!r}; it must be {wanted!r}")
    markers = content.get("query_token_id") or "[unused0]", content.get("doc_token_id") or "[unused1]"
    for name, marker in zip(("query_token_id", "doc_token_id"), markers, strict=True):
        if not vocabulary.has(marker):
            raise refused(file, f"{name} is {marker!r}, which is no token of {TOKENIZER_FILE}")
    query, document = (
        int(content.get(name) or usual)
        for name, usual in zip(("query_maxlen", "doc_maxlen"), PYLATE_LENGTHS, strict=True)
    )
    tokens = TokenVectors(
        *markers,
        **vocabulary.expansion(query, attends=bool(content.get("attend_to_mask_tokens"))),
        skipped=vocabulary.known(string.punctuation if content.get("mask_punctuation", True) else ()),
    )
    projection = Projection(MODULE_WEIGHTS_FILE, "linear")
    return LateInteractionDescription("", (projection,), int(content.get("dim") or 0), "", "", query, document, tokens)


class _Vocabulary:
    """The tokens of a directory's tokenizer.

    Args:
        directory: the transformer's.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / TOKENIZER_FILE
        content: Content = read_json(self._file)
        own = (content.get("model") or {}).get("vocab") or {}
        self._added = frozenset(str(one.get("content")) for one in content.get("added_tokens") or ())
        self._own = frozenset(own if isinstance(own, dict) else (one[0] for one in own))
        settings = directory / TOKENIZER_SETTINGS_FILE
        named = read_json(settings).get("mask_token") if settings.exists() else None
        self._mask = str(named["content"] if isinstance(named, dict) else named or "[MASK]")

    def has(self, token: str) -> bool:
        """Return whether the tokenizer has a token."""
        return token in self._added or token in self._own

    def known(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return those words that are tokens."""
        return tuple(word for word in words if self.has(word))

    def marker(self, prompt: str) -> tuple[str, str]:
        """Return the token that a prompt begins with, and the text behind it; a prompt without one is text.

        The text keeps its first space, which a byte-level tokenizer reads as a part of the next word.
        """
        if prompt in self._added:
            return prompt, ""
        first, space, rest = prompt.partition(" ")
        return (first, space + rest) if first in self._added else ("", prompt)

    def expansion(self, length: int, *, attends: bool, token: str | None = None) -> dict[str, Any]:
        """Return how queries are filled to a length; 0 for not at all.

        Raises:
            ModelLoadError: the tokenizer lacks the token.
        """
        if not length:
            return {}
        token = token or self._mask
        if not self.has(token):
            raise refused(self._file, f"it lacks {token!r}, the token that fills up queries")
        return {"expansion": token, "expanded_to": int(length), "attends_to_expansion": attends}
