"""A tokenizer made of vocab.txt splits texts as transformers' own does."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints.vocabulary import build_tokenizer, is_cased, read_vocabulary

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "low", "blood", "##ed", "##s"]
TEXTS = [
    "low blood",
    "Low BLOOD, bloods!",
    "Café naïve résumé",
    "東京 low",
    "a[SEP]b",
    "blooded \u200b low\x00",
    "",
    "x" * 150,
]


def written(folder: Path, words: list[str], **settings: object) -> Path:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def encode(tokenizer: Tokenizer, text: str) -> tuple[list[str], list[int], list[int]]:
    encoded = tokenizer.encode(text, "low")
    return encoded.tokens, encoded.ids, encoded.type_ids


@pytest.mark.parametrize(
    "settings",
    [
        {"do_lower_case": True},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
    ],
)
def test_a_vocabulary_splits_texts_as_transformers_does(tmp_path: Path, settings: dict[str, bool]) -> None:
    words = [*WORDS, "Low", "é", "東", "京", "##x"]
    ours = build_tokenizer(written(tmp_path, words, **settings))
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), **settings).backend_tokenizer
    for text in TEXTS:
        assert encode(ours, text) == encode(theirs, text), text


@pytest.mark.parametrize(("extra", "cased"), [([], False), (["Paris"], True), (["[unusedA]"], False)])
def test_the_vocabulary_says_whether_it_is_cased(tmp_path: Path, extra: list[str], cased: bool) -> None:
    tokenizer = build_tokenizer(written(tmp_path, [*WORDS, *extra]))
    assert is_cased(read_vocabulary(tmp_path / "vocab.txt")) is cased
    assert (tokenizer.normalizer.normalize_str("A") == "A") is cased


def test_a_vocabulary_may_name_special_tokens_differently(tmp_path: Path) -> None:
    words = ["<pad>", "<unk>", "<s>", "</s>", "low"]
    names = {"pad_token": "<pad>", "unk_token": {"content": "<unk>"}, "cls_token": "<s>", "sep_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names), "utf-8")
    tokenizer = build_tokenizer(written(tmp_path, words))
    assert tokenizer.encode("low x").tokens == ["<s>", "low", "<unk>", "</s>"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"low\nblood\n", r"lacks the tokens \[CLS\], \[SEP\], \[UNK\]; if the model is a BERT"),
        (b"[PAD]\nlow\nlow\n", "line 2: the token 'low' is repeated in a later line"),
        (b"\xff\xfe", "cannot be read as a vocabulary"),
    ],
)
def test_a_malformed_vocabulary_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ModelLoadError, match=reason):
        build_tokenizer(tmp_path)
