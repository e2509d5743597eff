"""Build the tokenizer of a BERT from its ``vocab.txt``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from osrerank.errors import ModelLoadError
from osrerank.scoring.json_file import read_optional_json

VOCABULARY_FILE = "vocab.txt"
SETTINGS_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
DEFAULT_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
"""Setting of transformers' BertTokenizer -> its default value."""


def build_tokenizer(directory: Path) -> Tokenizer:
    """Build a tokenizer from a directory's ``vocab.txt``, ``tokenizer_config.json`` and ``special_tokens_map.json``.

    The tokenizer follows the settings of transformers' BertTokenizer: ``do_lower_case``, ``strip_accents``,
    ``tokenize_chinese_chars`` and the special tokens. If ``do_lower_case`` is not set, the tokenizer keeps capital
    letters only if the vocabulary contains words with capitals. Only ``vocab.txt`` must exist.

    Raises:
        ModelLoadError: ``vocab.txt`` is missing, a file cannot be read, or a special token is not in the vocabulary.
    """
    vocabulary = read_vocabulary(directory / VOCABULARY_FILE)
    settings = read_optional_json(directory / SETTINGS_FILE)
    special_tokens_map = read_optional_json(directory / SPECIAL_TOKENS_FILE)
    special_tokens = {name: _special_token(name, special_tokens_map, settings) for name in DEFAULT_SPECIAL_TOKENS}
    required_tokens = {special_tokens[name] for name in ("unk_token", "sep_token", "cls_token")}
    missing_tokens = sorted(required_tokens - vocabulary.keys())
    if missing_tokens:
        file = directory / VOCABULARY_FILE
        fix = f"if the model is a BERT whose special tokens have other names, name them in {SPECIAL_TOKENS_FILE}"
        raise ModelLoadError(f"{file} lacks the tokens {', '.join(missing_tokens)}; {fix}", path=str(file))
    lowercase = settings.get("do_lower_case")
    if lowercase is None:
        lowercase = not is_cased(vocabulary)
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=special_tokens["unk_token"], max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=bool(lowercase),
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    cls, sep = special_tokens["cls_token"], special_tokens["sep_token"]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    tokenizer.add_special_tokens([token for token in dict.fromkeys(special_tokens.values()) if token in vocabulary])
    return tokenizer


def read_vocabulary(file: Path) -> dict[str, int]:
    """Return each token's id: the number of its line, from 0.

    Raises:
        ModelLoadError: the file cannot be read, or contains a token twice.
    """
    try:
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{file} cannot be read as a vocabulary: {error}", path=str(file)) from error
    tokens = [token.removesuffix("\r") for token in tokens]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    for token_id, token in enumerate(tokens):
        if vocabulary[token] != token_id:
            reason = (
                f"{file}, line {token_id + 1}: the token {token!r} is repeated in a later line; copy the model's "
                "own file"
            )
            raise ModelLoadError(reason, path=str(file))
    return vocabulary


def is_cased(vocabulary: Mapping[str, int]) -> bool:
    """Return whether a vocabulary contains words with capitals, not counting special tokens such as ``[CLS]``."""
    words = (token for token in vocabulary if not (token.startswith("[") and token.endswith("]")))
    return any(word != word.lower() for word in words)


def _special_token(name: str, special_tokens_map: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a special token, which the files store as a string, or as an object: ``{"content": "[SEP]"}``."""
    token = special_tokens_map.get(name) or settings.get(name) or DEFAULT_SPECIAL_TOKENS[name]
    return str(token["content"] if isinstance(token, dict) else token)
