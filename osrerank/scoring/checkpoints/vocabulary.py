"""Make the tokenizer that a BERT's ``vocab.txt`` describes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from osrerank.errors import ModelLoadError
from osrerank.scoring.json_file import read_json

VOCABULARY_FILE = "vocab.txt"
SETTINGS_FILE = "tokenizer_config.json"
SPECIALS_FILE = "special_tokens_map.json"
SPECIALS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def build_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer that a directory's ``vocab.txt`` and ``tokenizer_config.json`` describe.

    The settings are those of transformers' BertTokenizer: ``do_lower_case``, ``strip_accents``,
    ``tokenize_chinese_chars`` and the special tokens. Without ``do_lower_case``, the tokenizer is cased if the
    vocabulary has words with capitals.

    Raises:
        ModelLoadError: a file is missing or cannot be read, or the vocabulary lacks a special token.
    """
    vocabulary = read_vocabulary(directory / VOCABULARY_FILE)
    settings = _read_optional(directory / SETTINGS_FILE)
    special_names = _read_optional(directory / SPECIALS_FILE)
    specials = {name: _special_token(name, special_names, settings) for name in SPECIALS}
    missing = sorted({specials[name] for name in ("unk_token", "sep_token", "cls_token")} - vocabulary.keys())
    if missing:
        raise ModelLoadError(
            f"{directory / VOCABULARY_FILE} has no {', '.join(missing)}; if it is the vocabulary of a BERT, name its "
            f"special tokens in {SPECIALS_FILE}",
            path=str(directory / VOCABULARY_FILE),
        )
    lowercase = settings.get("do_lower_case")
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=specials["unk_token"], max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=not is_cased(vocabulary) if lowercase is None else bool(lowercase),
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    first, last = specials["cls_token"], specials["sep_token"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    tokenizer.add_special_tokens([token for token in dict.fromkeys(specials.values()) if token in vocabulary])
    return tokenizer


def read_vocabulary(file: Path) -> dict[str, int]:
    """Return the id of each token, which is the number of its line, counted from 0.

    Raises:
        ModelLoadError: the file cannot be read, or has a token twice.
    """
    try:
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{file} cannot be read as a vocabulary: {error}", path=str(file)) from error
    tokens = [token.removesuffix("\r") for token in tokens]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        number = next(number for number, token in enumerate(tokens) if vocabulary[token] != number)
        reason = f"{file}, line {number + 1}: a later line repeats the token {tokens[number]!r}"
        raise ModelLoadError(reason, path=str(file))
    return vocabulary


def is_cased(vocabulary: Mapping[str, int]) -> bool:
    """Return whether a vocabulary has words with capitals; special tokens do not count."""
    return any(token != token.lower() for token in vocabulary if not (token.startswith("[") and token.endswith("]")))


def _read_optional(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, which is empty if there is no such file."""
    content: dict[str, Any] = read_json(file) if file.exists() else {}
    return content


def _special_token(name: str, specials: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a special token; the files have it as a string, or as an object with the string as ``content``."""
    token = specials.get(name) or settings.get(name) or SPECIALS[name]
    return str(token["content"] if isinstance(token, dict) else token)
