"""Build a model's token sequences: ``[CLS] q [SEP] d [SEP]`` and ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``.

For an encoder, queries and documents are separate sequences ``[CLS] text [SEP]``, and the texts can have prefixes.

Lengths follow Nogueira and Cho 2019 (arXiv 1901.04085, section 3) and Nogueira et al. 2019 (arXiv 1910.14424, sections
3.2 and 3.3). The query has at most 64 tokens, including two special tokens. The document is truncated so that the
sequence has at most 512 tokens. In a sequence with two documents, each document has at most 223.

The characters "[SEP]" in a query or document do not become the special token. In a prefix they do, because the
libraries that save models with prefixes treat them in this way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from osrerank._threads import NATIVE_CODE
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.charsmap import CharacterMap
from osrerank.scoring.model_files import tokenizer_file
from osrerank.scoring.template import pair_template, single_template
from osrerank.types.values import replace_surrogates

CHARACTERS_PER_PIECE = 8
"""Estimated number of characters per word piece. English word pieces have four to five, but with a higher estimate the
first part of a long text usually has enough pieces."""
MAX_TEXT_CHARACTERS = 1 << 18
"""Maximum number of characters of a text that are tokenised. They yield 512 pieces unless most are white space."""

Ids = npt.NDArray[np.int64]
"""Token ids, or the segment ids of tokens."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The word pieces of a text that fit into a sequence, without special tokens.

    Attributes:
        ids: token ids, int64 ``(pieces,)``.
        is_truncated: whether the text was truncated.
    """

    ids: Ids
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """One input sequence of a model, including special tokens.

    Attributes:
        ids: token ids, int64 ``(tokens,)``.
        segments: segment ids (token type ids), int64 ``(tokens,)``.
        unattended: number of tokens at the end to which no token attends: their attention mask is 0.
    """

    ids: Ids
    segments: Ids
    unattended: int = 0


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences padded to the same length, int64 ``(n, tokens)``. The fields are named like the model's inputs."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids


class InputBuilder:
    """Tokenises texts, and joins their pieces into a model's input sequences.

    Args:
        tokenizer: the model's tokenizer, with padding and truncation turned off.
        card: the model's kind, lengths and prefixes.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        # osrerank applies sentencepiece's character map itself, because `tokenizers` gives other results
        self._character_map = CharacterMap.pop_from(tokenizer) if card.normalization == "sentencepiece" else None
        self._is_encoder = card.is_encoder
        self._keeps_end = card.truncation_side == "left"
        template = single_template(tokenizer) if card.is_encoder else pair_template(tokenizer)
        if card.kind == "duo" and card.segment_rows > 2:  # query and documents have the segments 0, 1 and 2
            template = replace(template, document_segment=1, second_document_segment=2)
        elif card.kind == "duo" or card.segment_rows == 1:
            template = replace(template, document_segment=0, second_document_segment=0)
        self._template = template
        self._query_prefix = _Prefix.tokenise(tokenizer, card.query_prefix)
        self._document_prefix = _Prefix.tokenise(tokenizer, card.document_prefix)
        # late-interaction models put a marker token before each text
        self._query_marker = self.token_ids([card.tokens.query_marker] if card.tokens.query_marker else [])
        self._document_marker = self.token_ids([card.tokens.document_marker] if card.tokens.document_marker else [])
        self.max_tokens = card.max_tokens
        if card.is_encoder:  # max_query_tokens includes the special tokens and the prefix
            n_special_tokens = template.count_tokens(n_documents=0) + len(self._query_marker)
            self._max_query_pieces = card.max_query_tokens - n_special_tokens
        else:  # max_query_tokens includes [CLS] and [SEP], but not the prefix
            n_prefix_tokens = self._query_prefix.n_tokens
            self._max_query_pieces = card.max_query_tokens - 2 + n_prefix_tokens
            n_other_tokens = template.count_tokens(n_documents=1) + self._max_query_pieces
            if n_prefix_tokens and self.max_tokens <= n_other_tokens:
                reason = f"the card's query_prefix has {n_prefix_tokens} tokens, which leaves no room for a document"
                raise ValueError(reason)
        self._is_duo = card.kind == "duo"
        self.length_rule = card.length_rule

    @classmethod
    def load(cls, directory: Path, card: ModelCard) -> Self:
        """Return a builder with the tokenizer of a model's directory.

        Raises:
            ModelLoadError: the tokenizer cannot be read, or does not support the card's kind of model.
        """
        file = tokenizer_file(directory)
        try:
            tokenizer = Tokenizer.from_file(str(file))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            tokenizer.encode_special_tokens = True
            return cls(tokenizer, card)
        except Exception as error:
            reason = f"{file} cannot be used as a tokenizer: {error}"
            raise ModelLoadError(reason, model=card.name, path=str(file)) from error

    def tokenise_query(self, text: str) -> Pieces:
        """Return the pieces of prefix and query.

        If the card's ``max_query_tokens`` is 64, there are at most 62 pieces. A cross-encoder's prefix is not counted
        among them, but an encoder's is.
        """
        pieces = self._tokenise_with_prefix(self._query_prefix, [text], self._max_query_pieces)[0]
        return _prepend(self._query_marker, pieces) if self._query_marker else pieces

    def tokenise_documents(self, texts: Sequence[str], query: Pieces) -> list[Pieces]:
        """Return the pieces of prefix and document, truncated so that they fit into a sequence with the query."""
        documents = self._tokenise_with_prefix(self._document_prefix, texts, self._max_document_pieces(query))
        if self._document_marker:
            return [_prepend(self._document_marker, pieces) for pieces in documents]
        return documents

    def token_ids(self, tokens: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of tokens: ``["[CLS]", "[SEP]"]`` gives ``(101, 102)`` for BERT.

        Raises:
            ValueError: the tokenizer does not contain one of the tokens.
        """
        ids = [self._tokenizer.token_to_id(token) for token in tokens]
        if None in ids:
            raise ValueError(
                f"the model's card names the token {tokens[ids.index(None)]!r}, but the tokenizer does not contain it"
            )
        return tuple(ids)

    def find_chunks(self, texts: Sequence[str], query: Pieces) -> list[list[tuple[int, int]]]:
        """Split texts into consecutive chunks that fit into a sequence with the query.

        A chunk contains as many whole words as possible. A word that does not fit into one chunk is split. A text
        without pieces yields no chunks.

        Returns:
            For each text, the (start, end) of its chunks, in characters.
        """
        inputs = [replace_surrogates(text) for text in texts]
        origins = None  # for each text, and each character of its normal form: the character's index in the text
        if self._character_map:
            normal_forms = [self._character_map.normalise(text) for text in inputs]
            # the last index is the end of the text
            origins = [(*starts, len(text)) for text, (_, starts) in zip(inputs, normal_forms, strict=True)]
            inputs = [text for text, _ in normal_forms]
        with NATIVE_CODE:
            encodings = self._tokenizer.encode_batch(inputs, add_special_tokens=False)
        max_pieces = max(self._max_document_pieces(query) - self._document_prefix.n_tokens, 1)
        chunks = [_chunk_spans(encoding, max_pieces) for encoding in encodings]
        if origins is None:
            return chunks
        # convert the spans in normal forms to spans in the texts
        return [
            [(origin[start], origin[end]) for start, end in spans]
            for origin, spans in zip(origins, chunks, strict=True)
        ]

    def build_mono(self, query: Pieces, document: Pieces) -> Tokens:
        """Return the sequence of a query and a document, ``[CLS] q [SEP] d [SEP]``."""
        template = self._template
        ids = _concatenate(template.head, query.ids, template.middle, document.ids, template.tail)
        segments = np.full_like(ids, template.document_segment)
        segments[: self._query_segment_length(query)] = 0
        return Tokens(ids, segments)

    def build_single(self, text: Pieces) -> Tokens:
        """Return the sequence of a single text, ``[CLS] text [SEP]``."""
        ids = _concatenate(self._template.head, text.ids, self._template.tail)
        return Tokens(ids, np.zeros_like(ids))

    def build_duo(self, query: Pieces, first: Pieces, second: Pieces) -> Tokens:
        """Return the sequence ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``. A [SEP] gets the segment of the text before it."""
        template, middle = self._template, self._template.middle
        ids = _concatenate(template.head, query.ids, middle, first.ids, middle, second.ids, template.tail)
        segments = np.full_like(ids, template.second_document_segment)
        query_length = self._query_segment_length(query)
        first_document_end = query_length + len(first.ids) + len(middle)
        segments[:query_length] = 0
        segments[query_length:first_document_end] = template.document_segment
        return Tokens(ids, segments)

    def _query_segment_length(self, query: Pieces) -> int:
        """Return the number of tokens with the query's segment: [CLS], the query and, for BERT, the [SEP] after it."""
        return len(self._template.head) + len(query.ids) + self._template.query_middle_tokens

    def _max_document_pieces(self, query: Pieces) -> int:
        """Return the maximum number of pieces of a document in a sequence with the query.

        In a duo model with queries of up to 62 pieces, each document can have 223. With the length rule ``released``,
        it can have 222 to 252, depending on the query. A short document leaves no additional room for the other one.
        """
        if self._is_encoder:
            return self.max_tokens - self._template.count_tokens(n_documents=0) - len(self._document_marker)
        is_released = self.length_rule == "released"  # the lengths are those of the published code
        if not self._is_duo:
            n_unused_tokens = 1 if is_released else 0
            return self.max_tokens - self._template.count_tokens(n_documents=1) - n_unused_tokens - len(query.ids)
        if is_released:  # the formula is that of the published code
            return (self.max_tokens - len(query.ids) - 2) // 2 - 2
        return (self.max_tokens - self._template.count_tokens(n_documents=2) - self._max_query_pieces) // 2

    def _tokenise_with_prefix(self, prefix: "_Prefix", texts: Sequence[str], max_pieces: int) -> list[Pieces]:
        """Return the first ``max_pieces`` pieces of prefix and text, or the last ones if the card keeps the end."""
        prefixed_texts = [prefix.text + text for text in texts] if prefix.text else texts
        pieces = self._tokenise(prefix.tokenizer, prefixed_texts, max_pieces)
        for index, text in enumerate(texts):
            if any(name in text for name in prefix.special_tokens):  # rare
                pieces[index] = self._tokenise_literally(prefix, text, max_pieces)
        return pieces

    def _tokenise_literally(self, prefix: "_Prefix", text: str, max_pieces: int) -> Pieces:
        """Tokenise a prefix that contains special tokens, and a text with the characters of one, such as "[SEP]".

        The prefix's tokenizer would make a special token of the text's "[SEP]" too. Therefore the prefix up to its last
        special token is taken from `_Prefix.special_ids`, and the model's tokenizer, which makes no special tokens,
        tokenises the rest.
        """
        rest = self._tokenise(self._tokenizer, [prefix.text[prefix.special_end :] + text], max_pieces)[0]
        ids = rest.ids.tolist()
        prefix_is_truncated = rest.is_truncated and self._keeps_end
        if not prefix_is_truncated:
            ids = [*prefix.special_ids, *ids]
        return Pieces(self._truncate(ids, max_pieces).ids, rest.is_truncated or len(ids) > max_pieces)

    def _tokenise(self, tokenizer: Tokenizer, texts: Sequence[str], max_pieces: int) -> list[Pieces]:
        """Return at most ``max_pieces`` pieces of each text. Short texts are tokenised together, long ones alone."""
        max_characters = CHARACTERS_PER_PIECE * max_pieces
        short_texts = [self._normalise(text) for text in texts if len(text) <= max_characters]
        with NATIVE_CODE:
            encodings = iter(tokenizer.encode_batch_fast(short_texts, add_special_tokens=False))
            pieces = []
            for text in texts:
                if len(text) <= max_characters:
                    pieces.append(self._truncate(next(encodings).ids, max_pieces))
                else:
                    pieces.append(self._tokenise_long(tokenizer, text, max_pieces, max_characters))
            return pieces

    def _tokenise_long(self, tokenizer: Tokenizer, text: str, max_pieces: int, max_characters: int) -> Pieces:
        """Tokenise longer and longer beginnings of a text, until one has enough pieces.

        The last word of a beginning can be incomplete, so its pieces are dropped. If the card keeps the end of long
        texts, the whole text is tokenised.
        """
        if self._keeps_end:
            part = text[-MAX_TEXT_CHARACTERS:]
        else:
            while max_characters < min(len(text), MAX_TEXT_CHARACTERS):
                encoding = tokenizer.encode(self._normalise(text[:max_characters]), add_special_tokens=False)
                whole_word_ids = _drop_last_word(encoding)
                if len(whole_word_ids) > max_pieces:
                    return self._truncate(whole_word_ids, max_pieces)
                max_characters *= 4
            part = text[:MAX_TEXT_CHARACTERS]
        encoding = tokenizer.encode(self._normalise(part), add_special_tokens=False)
        pieces = self._truncate(encoding.ids, max_pieces)
        return Pieces(pieces.ids, is_truncated=pieces.is_truncated or len(text) > MAX_TEXT_CHARACTERS)

    def _normalise(self, text: str) -> str:
        """Replace unpaired surrogates, which tokenizers refuse, and apply the character map if there is one."""
        text = replace_surrogates(text)
        return self._character_map.normalise(text)[0] if self._character_map else text

    def _truncate(self, ids: Sequence[int], max_pieces: int) -> Pieces:
        """Return the first ``max_pieces`` ids, or the last ones if the card keeps the end."""
        start = max(0, len(ids) - max_pieces) if self._keeps_end else 0
        return Pieces(np.array(ids[start : start + max_pieces], dtype=np.int64), is_truncated=len(ids) > max_pieces)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The prefix of all queries, or of all documents.

    Attributes:
        text: the prefix.
        n_tokens: the number of tokens in the prefix.
        tokenizer: the tokenizer for prefix and text. It recognises special tokens only if the prefix contains one.
        special_tokens: the names of all special tokens, or () if the prefix contains no special token.
        special_end: the index of the character after the prefix's last special token.
        special_ids: the token ids of the prefix up to ``special_end``.
    """

    text: str
    n_tokens: int
    tokenizer: Tokenizer
    special_tokens: tuple[str, ...] = ()
    special_end: int = 0
    special_ids: tuple[int, ...] = ()

    @classmethod
    def tokenise(cls, tokenizer: Tokenizer, text: str) -> Self:
        """Return a prefix with its tokens. If it contains special tokens, it gets a tokenizer that recognises them."""
        added_tokens = tokenizer.get_added_tokens_decoder().items()
        special_tokens = {token_id: token.content for token_id, token in added_tokens if token.special}
        if not any(name in text for name in special_tokens.values()):
            return cls(text, len(tokenizer.encode(text, add_special_tokens=False).ids), tokenizer)
        # The copy recognises special tokens, because ``to_str`` does not contain encode_special_tokens.
        special_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        encoding = special_tokenizer.encode(text, add_special_tokens=False)
        last_position = max(position for position, token_id in enumerate(encoding.ids) if token_id in special_tokens)
        return cls(
            text,
            len(encoding.ids),
            special_tokenizer,
            special_tokens=tuple(special_tokens.values()),
            special_end=encoding.offsets[last_position][1],
            special_ids=tuple(encoding.ids[: last_position + 1]),
        )


def pad(sequences: Sequence[Tokens], pad_id: int = 0, *, multiple: int = 1, max_width: int = 0) -> PaddedBatch:
    """Pad sequences on the right to one batch. Padding gets the segment of the sequence's last token.

    Args:
        sequences: the rows of the batch.
        pad_id: id of the padding token.
        multiple: the batch's width in tokens is rounded up to a multiple of this number, but not above ``max_width``.
        max_width: maximum number of tokens in a sequence of the model. With the default, the width is not rounded up.
    """
    lengths = np.array([len(tokens.ids) for tokens in sequences])
    longest = int(lengths.max())
    rounded_up = math.ceil(longest / multiple) * multiple
    width = max(longest, min(rounded_up, max_width))
    input_ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, tokens in enumerate(sequences):
        input_ids[row, : lengths[row]] = tokens.ids
        if len(tokens.ids):  # a StaticEmbedding's sequences can be empty
            token_type_ids[row] = tokens.segments[-1]
        token_type_ids[row, : lengths[row]] = tokens.segments
    attended_lengths = lengths - np.array([tokens.unattended for tokens in sequences])
    attention_mask = (np.arange(input_ids.shape[1]) < attended_lengths[:, None]).astype(np.int64)
    return PaddedBatch(input_ids, attention_mask, token_type_ids)


def _concatenate(*arrays: Sequence[int] | Ids) -> Ids:
    return np.concatenate([np.asarray(array, dtype=np.int64) for array in arrays])


def _prepend(marker: tuple[int, ...], pieces: Pieces) -> Pieces:
    return Pieces(_concatenate(marker, pieces.ids), pieces.is_truncated)


def _chunk_spans(encoding: Encoding, max_pieces: int) -> list[tuple[int, int]]:
    """Split a text after whole words, if possible, and return each chunk's (start, end) in characters."""
    words, offsets = encoding.word_ids, encoding.offsets  # for each piece: its word's number, and its (start, end)
    spans: list[tuple[int, int]] = []
    start = 0
    while start < len(words):
        end = min(start + max_pieces, len(words))
        if end < len(words):
            word_ends = (position for position in range(end, start, -1) if words[position] != words[position - 1])
            end = next(word_ends, end)  # the last end of a word in the chunk
        spans.append((offsets[start][0], offsets[end - 1][1]))
        start = end
    return spans


def _drop_last_word(encoding: Encoding) -> list[int]:
    """Return the ids of an encoding without those of its last word."""
    words = encoding.word_ids
    return [token_id for token_id, word in zip(encoding.ids, words, strict=True) if word != words[-1]]
