"""Read a tokenizer's settings from ``tokenizer_config.json``, in which transformers saves them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from osrerank.scoring.json_file import read_optional_json
from osrerank.scoring.modular.description import TOKENIZER_FILE, TOKENIZER_SETTINGS_FILE, file_error

TruncationSide = Literal["right", "left"]
FAMILIES_WITHOUT_TOKEN_TYPES = ("DistilBert", "Roberta", "XLMRoberta", "MPNet", "Camembert", "BigBird")
"""Families whose tokenizers return no token types by default, in all versions of transformers."""
FAMILIES_WITH_TOKEN_TYPES = (
    "Bert",
    "Canine",
    "CodeGen",
    "Deberta",
    "DebertaV2",
    "FNet",
    "LayoutLMv2",
    "MarkupLM",
    "Tapas",
)
"""The only families whose tokenizers return token types by default in transformers 5. Most families do in version 4."""
FAMILIES_THAT_NORMALISE = ("Bert", "DistilBert", "Electra", "MPNet")
"""Families for which transformers reads case and accents from ``tokenizer_config.json``, not ``tokenizer.json``."""
TRUNCATION_SIDES: tuple[TruncationSide, ...] = ("right", "left")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The settings of a tokenizer.

    Attributes:
        limit: maximum number of tokens in a sequence, or None if the file sets no limit.
        uses_token_types: whether the model gets token types (segment ids). If not, all tokens have type 0.
        truncation_side: side at which a long text is truncated.
    """

    limit: int | None = None
    uses_token_types: bool = True
    truncation_side: TruncationSide = "right"

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the settings from a transformer's directory. If the file is missing, return transformers' defaults.

        Raises:
            ModelLoadError: a file cannot be read, ``truncation_side`` has an unknown value, or ``tokenizer.json``
                contradicts the settings.
        """
        file = directory / TOKENIZER_SETTINGS_FILE
        content, tokenizer = read_optional_json(file), read_optional_json(directory / TOKENIZER_FILE)
        _refuse_contradictions(file, content, tokenizer)
        limit = content.get("model_max_length")
        side = _read_truncation_side(file, content, tokenizer)
        return cls(int(limit) if limit else None, _uses_token_types(content), side)


def _uses_token_types(content: Mapping[str, Any]) -> bool:
    """Return whether the version of transformers that saved the tokenizer passes token types to the model."""
    input_names = content.get("model_input_names")
    if input_names is not None:
        return "token_type_ids" in input_names
    tokenizer_class, family = _tokenizer_class(content)
    is_from_version_5 = "backend" in content or tokenizer_class == "TokenizersBackend"
    if tokenizer_class and is_from_version_5:
        return family in FAMILIES_WITH_TOKEN_TYPES
    # version 4
    return family not in FAMILIES_WITHOUT_TOKEN_TYPES


def _tokenizer_class(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of transformers' class, and its family: ``("BertTokenizerFast", "Bert")``."""
    name = str(content.get("tokenizer_class") or "")
    return name, name.removesuffix("Fast").removesuffix("Tokenizer")


def _refuse_contradictions(file: Path, content: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    """Raise a `ModelLoadError` if a setting, such as ``do_lower_case``, contradicts ``tokenizer.json``.

    Both must agree, because transformers follows the settings, and osrerank follows ``tokenizer.json``. A setting that
    the file does not contain is not compared, because its default depends on the version of transformers.
    """
    normaliser, splitter = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer") or {}
    compared = [("add_prefix_space", splitter.get("add_prefix_space"))]
    family = _tokenizer_class(content)[1]
    if normaliser.get("type") == "BertNormalizer" and family in ("", *FAMILIES_THAT_NORMALISE):
        lowers_case, strips_accents = normaliser.get("lowercase"), normaliser.get("strip_accents")
        compared += [
            ("do_lower_case", lowers_case),
            (
                "strip_accents",
                lowers_case if strips_accents is None else strips_accents,
            ),  # by default, they go together
            ("tokenize_chinese_chars", normaliser.get("handle_chinese_chars")),
        ]
    for name, actual in compared:
        setting = content.get(name)
        if setting is not None and actual is not None and bool(setting) != bool(actual):
            fix = "make them agree: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), with transformers"
            reason = f"{name} is {json.dumps(setting)}, but {TOKENIZER_FILE} says {json.dumps(actual)}; {fix}"
            raise file_error(file, reason)


def _read_truncation_side(file: Path, content: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> TruncationSide:
    setting = content.get("truncation_side")
    if setting is None:
        setting = str((tokenizer.get("truncation") or {}).get("direction", "right")).lower()
    for side in TRUNCATION_SIDES:  # a loop, because ``setting`` can have any type
        if side == (setting or "right"):
            return side
    raise file_error(file, f"truncation_side is {setting!r}; it must be right or left")
