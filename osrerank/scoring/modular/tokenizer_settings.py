"""``tokenizer_config.json``: what transformers does with a text before the tokenizer's own file is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import TOKENIZER_FILE, TOKENIZER_SETTINGS_FILE, refused

TruncationSide = Literal["right", "left"]
WITHOUT = ("DistilBert", "Roberta", "XLMRoberta", "MPNet", "Camembert", "BigBird")
"""Families whose tokenizers give no token types in any version, where their files do not say."""
WITH = ("Bert", "Canine", "CodeGen", "Deberta", "DebertaV2", "FNet", "LayoutLMv2", "MarkupLM", "Tapas")
"""Families whose tokenizers give token types in transformers 5, in which the others do not; in 4 they do."""
SIDES: tuple[TruncationSide, ...] = ("right", "left")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the settings of a tokenizer say.

    Attributes:
        limit: most tokens of a sequence; None where there is none.
        gives_token_types: whether the model gets token types; if not, it takes the first for all tokens.
        truncation_side: where a long text is cut.
    """

    limit: int | None = None
    gives_token_types: bool = True
    truncation_side: TruncationSide = "right"

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the settings of a transformer's directory; without the file they have transformers' defaults.

        Raises:
            ModelLoadError: a file cannot be read, or ``truncation_side`` is not known.
        """
        file = directory / TOKENIZER_SETTINGS_FILE
        content: Mapping[str, Any] = read_json(file) if file.exists() else {}
        limit = content.get("model_max_length")
        return cls(int(limit) if limit else None, _gives_token_types(content), _side(directory, content))


def _gives_token_types(content: Mapping[str, Any]) -> bool:
    """Return whether transformers, in the version that saved the tokenizer, gives the model token types."""
    if (names := content.get("model_input_names")) is not None:
        return "token_type_ids" in names
    named = str(content.get("tokenizer_class") or "")
    family = named.removesuffix("Fast").removesuffix("Tokenizer")
    is_saved_by_5 = "backend" in content or named == "TokenizersBackend"
    return family in WITH if named and is_saved_by_5 else family not in WITHOUT


def _side(directory: Path, content: Mapping[str, Any]) -> TruncationSide:
    named = content.get("truncation_side")
    if named is None and (directory / TOKENIZER_FILE).exists():
        truncation = read_json(directory / TOKENIZER_FILE).get("truncation") or {}
        named = str(truncation.get("direction", SIDES[0])).lower()
    known = next((side for side in SIDES if side == (named or SIDES[0])), None)
    if known is None:
        raise refused(directory / TOKENIZER_SETTINGS_FILE, f"truncation_side is {named!r}; it must be right or left")
    return known
