"""Texts whose words count as several: Chinese and Thai, scripts, base64, lists of URLs; and all others, as before."""

import gzip
import hashlib
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import osrerank
from osrerank.options.passages import AUTO_PASSAGES, Passages, Windows
from osrerank.stages.passages import prepare_text, split_into_passages
from osrerank.stages.splitting import WORD, find_passages, is_dense, leaves_out_text, split_words
from osrerank.types import Candidate, LongText, Section

END = "Beekeepers smoke the hive before they lift the frames."
TOKENIZER = Tokenizer.from_file(str(Path(osrerank.__file__).parent / "models" / "e5-small" / "tokenizer.json"))
TOKENIZER.no_truncation()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEYS = "d1223bef5847c671437060741b7b9b296931f5775afc704697f6adb56ee1065e"
"""A digest of the keys and the passages of ordinary texts, from before dense texts and HTML were cut in other ways."""


def drawn_head(draw, characters):
    """Return a text without spaces, or with few."""
    kinds = [
        lambda: "".join(draw.choices(LETTERS + LETTERS.upper() + "0123456789+/", k=characters)),
        lambda: "var a=1;" * (characters // 8),
        lambda: '{"id":7,"tags":["x","y"]} ' * (characters // 26),
        lambda: ".".join(str(draw.randrange(999)) for _ in range(characters // 4)),
        lambda: draw.choice([",", "\n", " "]).join(f"https://x.example/{draw.randrange(10**30)}/a" for _ in range(60)),
        lambda: "".join(draw.choices("养蜂人在打开箱之前用烟熏。", k=characters)),
        lambda: " ".join("คนเลี้ยงผึ้งใช้ควันก่อนเปิดรัง" for _ in range(characters // 30)),
        lambda: "".join(draw.choices("ミツバチを煙で落ち着かせる", k=characters)),
    ]
    return draw.choice(kinds)()


def drawn_ordinary(draw, words):
    """Return a text of words of at most 40 characters, with white space and marks as people write them."""
    tokens = []
    for _ in range(words):
        word = "".join(draw.choices(LETTERS, k=draw.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 39])))
        tokens += [word, draw.choice(["", "", "", ",", "."]), draw.choice([" ", " ", " ", " ", "\n", "\t", "  "])]
    return "".join(tokens)


@pytest.mark.parametrize("seed", range(40))
def test_text_after_a_dense_run_is_in_a_passage_that_fits_the_model(seed):
    draw = random.Random(seed)
    text = f"{drawn_head(draw, draw.randint(1500, 3000))} {END}"
    options = draw.choice([AUTO_PASSAGES, Passages()])
    passages = split_into_passages(Candidate("d", text, 1.0, 1), options)
    assert (
        max(len(encoding.ids) for encoding in TOKENIZER.encode_batch([passage for passage, _span in passages])) <= 512
    )
    sections = [Section("text", text)]
    assert not leaves_out_text(sections, [span for _text, span in passages])


@pytest.mark.parametrize("seed", range(40))
def test_words_of_a_dense_text_cover_all_characters(seed):
    draw = random.Random(seed)
    text = " ".join(drawn_head(draw, draw.randint(50, 300)) for _ in range(3))
    assert "".join(text[start:end] for start, end in split_words(text)) == "".join(text.split())


@pytest.mark.parametrize("seed", range(40))
def test_words_are_separated_by_white_space_and_long_words_are_cut(seed):
    draw = random.Random(seed)
    text = drawn_ordinary(draw, draw.randint(100, 400))
    assert not is_dense(text)
    assert list(split_words(text)) == [match.span() for match in WORD.finditer(text)]
    offset = draw.choice([match.start() for match in WORD.finditer(text)])
    assert is_dense(f"{text[:offset]}{'x' * 41}{text[offset:]}")


def test_half_a_surrogate_pair_counts_as_a_character():
    assert not is_dense("a \ud83d b" * 20)


def squad_texts():
    """Return the shipped paragraphs of SQuAD with their titles, and long texts of several."""
    folder = Path(osrerank.__file__).parent / "data" / "squad"
    lines = gzip.decompress((folder / "corpus.jsonl.gz").read_bytes()).decode().splitlines()
    documents = [json.loads(line) for line in lines][:400]
    texts = [document["text"] for document in documents]
    yield from ((document.get("title", ""), document["text"]) for document in documents)
    yield from (("Several paragraphs", "\n\n".join(texts[start : start + 9])) for start in range(0, 400, 5))


def test_keys_and_passages_of_ordinary_texts_are_unchanged():
    digest = hashlib.sha256()
    draw = random.Random(0)
    texts = [*squad_texts(), *(("A title", drawn_ordinary(draw, draw.randint(0, 900))) for _ in range(200))]
    for number, (title, text) in enumerate(texts):
        sections = (Section("title", title), Section("text", text))
        candidate = Candidate(f"d{number}", f"{title} {text}", 1.0, 1, (), "", sections)
        for options in (AUTO_PASSAGES, Passages(), Passages(aggregation="firstp"), Passages(policy="sampled", limit=3)):
            key = prepare_text(candidate, options)
            digest.update((key.content.hex() if isinstance(key, LongText) else key).encode())
            digest.update(
                json.dumps([(part, str(span)) for part, span in split_into_passages(candidate, options)]).encode()
            )
    assert digest.hexdigest() == KEYS


def test_values_of_a_list_are_cut_by_the_words_of_a_text():
    sections = [Section("text", "x" * 2000, 0), Section("text", "short", 1)]
    spans = [span for _section, span in find_passages(sections, Windows(words=150, stride=150), "d")]
    assert [(span.value, span.start, span.end) for span in spans] == [
        *((0, start, min(start + 450, 2000)) for start in range(0, 2000, 450)),
        (1, 0, 5),
    ]
