"""Token sequences that models read: segments, cutting, prefixes and special tokens."""

import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from osrerank.errors import ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, pad

DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"
CLS, SEP = 2, 3


def card(**options: object) -> ModelCard:
    return ModelCard(**{"name": "tiny", "head": "logit1", **options})


def sequence(builder: InputBuilder, query: str, document: str) -> tuple[list[int], list[int]]:
    query_ids = builder.tokenise_query(query)
    (pieces_of_document,) = builder.tokenise_documents([document], query_ids)
    tokens = builder.build_mono(query_ids, pieces_of_document)
    return tokens.ids.tolist(), tokens.segments.tolist()


@pytest.fixture
def builder() -> InputBuilder:
    return InputBuilder.load(DIRECTORY, card())


def ids(*words: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    return [tokenizer.token_to_id(word) for word in words]


def test_query_and_document_are_two_segments(builder: InputBuilder) -> None:
    expected = [CLS, *ids("low", "pressure"), SEP, *ids("the", "wing"), SEP]
    assert sequence(builder, "Low PRESSURE", "the wing") == (expected, [0, 0, 0, 0, 1, 1, 1])
    assert sequence(builder, "low", "") == ([CLS, *ids("low"), SEP, SEP], [0, 0, 0, 1])


def test_a_bi_encoder_reads_each_text_alone() -> None:
    builder = InputBuilder.load(DIRECTORY, card(head="cosine", kind="bi-encoder"))
    expected = [CLS, *ids("low"), SEP, CLS, *ids("wing"), SEP]
    assert sequence(builder, "low", "wing") == (expected, [0, 0, 0, 1, 1, 1]), "as training reads both"
    for pieces in (
        builder.tokenise_query("low wing"),
        builder.tokenise_documents(["low wing"], builder.tokenise_query(""))[0],
    ):
        assert builder.build_single(pieces).ids.tolist() == [CLS, *ids("low", "wing"), SEP]
        assert builder.build_single(pieces).segments.tolist() == [0, 0, 0, 0]


def test_padding_is_masked_and_keeps_the_last_segment(builder: InputBuilder) -> None:
    query = builder.tokenise_query("low")
    batch = pad([builder.build_mono(query, text) for text in builder.tokenise_documents(["wing", ""], query)], pad_id=9)
    assert batch.input_ids.tolist() == [[CLS, *ids("low"), SEP, *ids("wing"), SEP], [CLS, *ids("low"), SEP, SEP, 9]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("rule", "most"), [("paper", 512), ("released", 511)])
@pytest.mark.parametrize("query_words", [1, 62, 10_000])
def test_documents_are_cut_to_fit_and_queries_only_at_64_tokens(rule: str, most: int, query_words: int) -> None:
    builder = InputBuilder.load(DIRECTORY, card(length_rule=rule))
    query = builder.tokenise_query("low " * query_words)
    (document,) = builder.tokenise_documents(["wing " * 1000], query)
    assert len(query.ids) == min(query_words, 62)
    assert query.is_truncated == (query_words > 62)
    assert document.is_truncated
    assert len(builder.build_mono(query, document).ids) == most
    (fitting,) = builder.tokenise_documents(["wing " * len(document.ids)], query)
    assert not fitting.is_truncated
    assert len(builder.build_mono(query, fitting).ids) == most


def test_special_tokens_in_text_are_text(builder: InputBuilder) -> None:
    token_ids, types = sequence(builder, "low [SEP]", "[CLS] wing [MASK] [PAD]")
    assert [token_ids.count(special) for special in (SEP, CLS, 0, 4)] == [2, 1, 0, 0]
    assert types.count(0) == token_ids.index(SEP) + 1


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    ["wing " * 2_000_000, "w" * 10_000_000, " " * 10_000_000, "\u98a8" * 3_000_000, "wing. " * 1_700_000],
    ids=["words", "one word", "white space", "no white space", "sentences"],
)
def test_ten_megabytes_of_text_are_cut_and_marked(builder: InputBuilder, text: str) -> None:
    query = builder.tokenise_query("low")
    started = time.monotonic()
    (document,) = builder.tokenise_documents([text], query)
    assert time.monotonic() - started < 2
    assert document.is_truncated
    assert len(document.ids) <= 508


@pytest.mark.parametrize(
    "unit", ["wing, low: pressure! ", "xyzzyxyzzy" * 9 + " ", "a-b", "\u00e9tat\u0301 ", "   \n\t low"]
)
@pytest.mark.parametrize("extra", range(0, 40, 7))
def test_tokenising_the_beginning_of_a_text_gives_the_same_first_tokens(
    builder: InputBuilder, unit: str, extra: int
) -> None:
    text = "x" * extra + unit * 600
    tokenizer = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    query = builder.tokenise_query("low")
    (document,) = builder.tokenise_documents([text], query)
    assert document.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids[:508]


def duo_card(**options: object) -> ModelCard:
    return card(**{"head": "logits2", "kind": "duo", "segment_rows": 3, **options})


def test_query_and_two_documents_are_three_segments(tmp_path: Path) -> None:
    builder = InputBuilder.load(DIRECTORY, duo_card())
    query = builder.tokenise_query("low pressure")
    first, second = builder.tokenise_documents(["the wing", "heat"], query)
    tokens = builder.build_duo(query, first, second)
    assert tokens.ids.tolist() == [CLS, *ids("low", "pressure"), SEP, *ids("the", "wing"), SEP, *ids("heat"), SEP]
    assert tokens.segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    (empty,) = builder.tokenise_documents([""], query)
    assert builder.build_duo(query, empty, empty).segments.tolist() == [0, 0, 0, 0, 1, 2]
    for rows in (0, 1):  # a model without segments
        builder = InputBuilder.load(DIRECTORY, duo_card(segment_rows=rows))
        assert builder.build_duo(query, first, second).segments.max() == 0
    Tokenizer(Tokenizer.from_file(str(DIRECTORY / "tokenizer.json")).model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="special tokens around a pair"):
        InputBuilder.load(tmp_path, card())


@pytest.mark.parametrize(
    ("rule", "query_words", "pieces"),
    [
        ("paper", 1, 223),
        ("paper", 62, 223),
        ("paper", 100, 223),
        ("released", 6, 250),  # 8 ids with [CLS] and [SEP]: 504 / 2 - 2
        ("released", 7, 249),  # 9: 503 / 2 rounded down, less 2
        ("released", 62, 222),
        ("released", 100, 222),
    ],
)
def test_each_document_of_a_pair_has_room_of_its_own(rule: str, query_words: int, pieces: int) -> None:
    builder = InputBuilder.load(DIRECTORY, duo_card(length_rule=rule))
    query = builder.tokenise_query("low " * query_words)
    long, short = builder.tokenise_documents(["wing " * 1000, "heat"], query)
    assert len(query.ids) == min(query_words, 62)
    assert (len(long.ids), long.is_truncated) == (pieces, True)
    duo_input = builder.build_duo(query, long, long)
    assert len(duo_input.ids) == 4 + len(query.ids) + 2 * pieces <= 512
    assert len(builder.build_duo(query, long, short).ids) == 4 + len(query.ids) + pieces + 1  # nothing is lent


def test_passages_by_tokens_are_whole_words_that_fit_beside_the_query() -> None:
    builder = InputBuilder.load(DIRECTORY, card(max_tokens=24, max_query_tokens=8))
    query = builder.tokenise_query("wing flow")
    text = "  flows, of  gas; caf\u00e9 past wings and things unheardof in wings. " * 3
    (chunks, short, nothing) = builder.find_chunks([text, "flow of gas", " "], query)
    assert short == [(0, 11)]
    assert nothing == []
    assert len(chunks) > 2
    assert "".join(text[start:end] for start, end in chunks).replace(" ", "") == text.replace(" ", "")
    assert all(text[start - 1 : start] in {" ", ""} or not text[start].isalnum() for start, _end in chunks)
    chunk_inputs = builder.tokenise_documents([text[start:end] for start, end in chunks], query)
    assert not any(chunk_input.is_truncated for chunk_input in chunk_inputs)
    whole_input = InputBuilder.load(DIRECTORY, card()).tokenise_documents([text], query)[0]
    assert [doc_id for chunk_input in chunk_inputs for doc_id in chunk_input.ids] == whole_input.ids.tolist()


def test_a_word_with_too_many_tokens_is_divided() -> None:
    builder = InputBuilder.load(DIRECTORY, card(max_tokens=12, max_query_tokens=8))
    query = builder.tokenise_query("wing")
    word = "wingwingwing" * 6
    ((first, *later_chunks),) = builder.find_chunks([word], query)
    assert first[0] == 0
    assert [start for start, _end in later_chunks] == [end for _start, end in (first, *later_chunks)][:-1]


def marked_tokenizer(tmp_path: Path, **options: object) -> Tokenizer:
    """Return a byte-level tokenizer with the special token [QRY], saved in a folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["[CLS]", "[SEP]"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["rain falls and rain rains on the plain"] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.add_special_tokens([AddedToken("[QRY]", special=True, **options)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("prefix", ["[QRY] ", "[QRY]", "find [QRY]: ", "[QRY][SEP] a "])
@pytest.mark.parametrize("options", [{}, {"rstrip": True}, {"lstrip": True}], ids=str)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_prefix_of_special_tokens_is_read_as_the_tokenizer_reads_it(
    tmp_path: Path, prefix: str, options: dict[str, bool], side: str
) -> None:
    tokenizer = marked_tokenizer(tmp_path, **options)
    words = {"query_prefix": prefix, "document_prefix": prefix, "truncation_side": side}
    builder = InputBuilder.load(tmp_path, card(head="cosine", kind="bi-encoder", max_query_tokens=20, **words))
    for text in ("rain falls", " rain", "", "rain falls and " * 30):
        tokenizer.enable_truncation(20, direction=side)
        expected = tokenizer.encode(prefix + text).ids
        assert builder.build_single(builder.tokenise_query(text)).ids.tolist() == expected


def test_a_text_that_spells_a_special_token_is_read_as_text(tmp_path: Path) -> None:
    tokenizer = marked_tokenizer(tmp_path)
    builder = InputBuilder.load(tmp_path, card(head="cosine", kind="bi-encoder", query_prefix="[QRY] "))
    marker = tokenizer.token_to_id("[QRY]")
    token_ids = builder.build_single(builder.tokenise_query("rain [QRY] falls")).ids.tolist()
    assert token_ids.count(marker) == 1
    assert token_ids.index(marker) == 1
    assert [tokenizer.id_to_token(token_id) for token_id in token_ids][2:9] == ["\u0120rain", "\u0120", *"[QRY]"]


def test_the_end_of_a_long_text_is_kept_where_the_tokenizer_cuts_on_the_left() -> None:
    builder = InputBuilder.load(DIRECTORY, card(truncation_side="left", max_tokens=70))
    query = builder.tokenise_query("low")
    short, long = builder.tokenise_documents(["low wing", "low " * 100_000 + "wing"], query)
    assert (short.ids.tolist(), short.is_truncated) == (ids("low", "wing"), False)
    assert (long.ids[-2:].tolist(), len(long.ids), long.is_truncated) == (ids("low", "wing"), 66, True)


def test_all_tokens_have_the_first_segment_where_the_tokenizer_gives_no_token_types() -> None:
    builder = InputBuilder.load(DIRECTORY, card(segment_rows=1))
    assert set(sequence(builder, "low", "the wing")[1]) == {0}
