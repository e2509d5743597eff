"""Build a model's token sequences: ``[CLS] q [SEP] d [SEP]`` and ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``.

For a bi-encoder, query and document are separate sequences; each may fill the whole window, and may have a prefix.

Lengths follow Nogueira and Cho 2019 (arXiv 1901.04085, section 3) and Nogueira et al. 2019 (arXiv 1910.14424, sections
3.2 and 3.3). The query has at most 64 tokens, its two special tokens included. The document is cut so that the sequence
has at most 512 tokens; each document of a pair has at most 223.

Each text is tokenised once. A text that contains the characters "[SEP]" does not get the special token; a prefix that
contains them does, as in the libraries that save such models.
"""

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

CHARACTERS_PER_PIECE = 8
"""First estimate of the length of a word piece, in characters; English pieces have four to five."""
MAX_TEXT_CHARACTERS = 1 << 18
"""The maximum number of characters read from a text. Only white space or a single word has under 512 pieces in them."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The ids of a text's first word pieces, without special tokens.

    Attributes:
        ids: int64 ``(pieces,)``.
        cut: whether the text has more pieces.
    """

    ids: Ids
    cut: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sequence as a model reads it, special tokens included.

    Attributes:
        ids: int64 ``(tokens,)``.
        segments: token type ids, int64 ``(tokens,)``.
        unattended: how many tokens at the end are masked, so that no token attends to them.
    """

    ids: Ids
    segments: Ids
    unattended: int = 0


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences padded to the same length, int64 ``(n, tokens)``; each field has the name of a model input."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids


class InputBuilder:
    """Tokenises texts, and joins their pieces into the sequences that a model reads.

    Args:
        tokenizer: the model's tokenizer, with padding and truncation turned off.
        card: the model's kind, lengths and prefixes.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        self._map = CharacterMap.take_from(tokenizer) if card.normalization == "sentencepiece" else None
        self._is_encoder = card.is_encoder
        self._keeps_end = card.truncation_side == "left"
        self._template = (single_template if card.is_encoder else pair_template)(tokenizer)
        if card.segment_rows == 1:
            self._template = replace(self._template, document_type=0)
        if card.kind == "duo":
            first, second = (1, 2) if card.segment_rows > 2 else (0, 0)
            self._template = replace(self._template, document_type=first, second_type=second)
        self._query_prefix = _Prefix.tokenised(tokenizer, card.query_prefix)
        self._document_prefix = _Prefix.tokenised(tokenizer, card.document_prefix)
        self._query_marker = self.ids_of([card.tokens.query_marker] if card.tokens.query_marker else [])
        self._document_marker = self.ids_of([card.tokens.document_marker] if card.tokens.document_marker else [])
        self.max_tokens = card.max_tokens
        if card.is_encoder:
            self._query_pieces = card.max_query_tokens - self._template.count_tokens(0) - len(self._query_marker)
        else:
            prefix = self._query_prefix.tokens  # a cross-encoder's limit on the query leaves out the prefix
            self._query_pieces = card.max_query_tokens - 2 + prefix
            if prefix and self.max_tokens <= self._template.count_tokens() + self._query_pieces:
                raise ValueError(f"the card's query_prefix has {prefix} tokens, which leaves no room for a document")
        self._is_duo = card.kind == "duo"
        self.length_rule = card.length_rule

    @classmethod
    def load(cls, directory: Path, card: ModelCard) -> Self:
        """Read the directory's tokenizer.

        Raises:
            ModelLoadError: the tokenizer cannot be read, or does not join two texts.
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

    def query(self, text: str) -> Pieces:
        """Return the query's pieces, its prefix included: at most 62 if the card allows 64 tokens.

        A cross-encoder's prefix does not count towards this limit.
        """
        pieces = self._with_prefix(self._query_prefix, [text], self._query_pieces)[0]
        return _marked(self._query_marker, pieces) if self._query_marker else pieces

    def documents(self, texts: Sequence[str], query: Pieces) -> list[Pieces]:
        """Return each document's pieces, its prefix included, cut to fit into a sequence with the query."""
        documents = self._with_prefix(self._document_prefix, texts, self._room(query))
        if self._document_marker:
            return [_marked(self._document_marker, pieces) for pieces in documents]
        return documents

    def ids_of(self, tokens: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of tokens, which are given by name.

        Raises:
            ValueError: the tokenizer lacks one of the tokens.
        """
        ids = [self._tokenizer.token_to_id(token) for token in tokens]
        if None in ids:
            raise ValueError(f"the card names the token {tokens[ids.index(None)]!r}, which the tokenizer lacks")
        return tuple(ids)

    def chunks(self, texts: Sequence[str], query: Pieces) -> list[list[tuple[int, int]]]:
        """Split each text into consecutive chunks that fit beside the query; return their (start, end) in characters.

        A chunk has as many whole words as fit; a word that does not fit into one chunk is divided. A text without
        pieces has no chunks.
        """
        readable = [_encodable(text) for text in texts]
        offsets = None
        if self._map:
            mapped = [self._map.normalise(text) for text in readable]
            offsets = [(*starts, len(text)) for text, (_, starts) in zip(readable, mapped, strict=True)]
            readable = [text for text, _ in mapped]
        with NATIVE_CODE:
            encodings = self._tokenizer.encode_batch(readable, add_special_tokens=False)
        max_pieces = max(self._room(query) - self._document_prefix.tokens, 1)
        chunks = [_chunks(encoding, max_pieces) for encoding in encodings]
        if offsets is None:
            return chunks
        return [
            [(starts[start], starts[end]) for start, end in spans]
            for starts, spans in zip(offsets, chunks, strict=True)
        ]

    def mono(self, query: Pieces, document: Pieces) -> Tokens:
        """Return the sequence of a query and a document."""
        template = self._template
        ids = _joined(template.head, query.ids, template.middle, document.ids, template.tail)
        segments = np.full_like(ids, template.document_type)
        segments[: len(template.head) + len(query.ids) + template.middle_query] = 0
        return Tokens(ids, segments)

    def single(self, text: Pieces) -> Tokens:
        """Return the sequence of a single text."""
        ids = _joined(self._template.head, text.ids, self._template.tail)
        return Tokens(ids, np.zeros_like(ids))

    def duo(self, query: Pieces, first: Pieces, second: Pieces) -> Tokens:
        """Return the sequence of a query and two documents; each special token has the segment of the text before."""
        template, middle = self._template, self._template.middle
        ids = _joined(template.head, query.ids, middle, first.ids, middle, second.ids, template.tail)
        segments = np.full_like(ids, template.second_type)
        start = len(template.head) + len(query.ids) + template.middle_query
        segments[: start + len(middle) + len(first.ids)] = template.document_type
        segments[:start] = 0
        return Tokens(ids, segments)

    def _room(self, query: Pieces) -> int:
        return self._duo_room(query) if self._is_duo else self._mono_room(query)

    def _mono_room(self, query: Pieces) -> int:
        """Return how many pieces a document may have; the length rule ``released`` leaves one token unused."""
        if self._is_encoder:
            return self.max_tokens - self._template.count_tokens(0) - len(self._document_marker)
        unused = self.length_rule == "released"
        return self.max_tokens - self._template.count_tokens() - unused - len(query.ids)

    def _duo_room(self, query: Pieces) -> int:
        """Return how many pieces each of two documents may have: 223 if queries may have 62.

        The released code takes half of what the query and its two special tokens leave, minus two: 222 to 252. If one
        document is short, the other one does not get more room.
        """
        if self.length_rule == "released":
            return (self.max_tokens - len(query.ids) - 2) // 2 - 2
        return (self.max_tokens - self._template.count_tokens(2) - self._query_pieces) // 2

    def _with_prefix(self, prefix: "_Prefix", texts: Sequence[str], max_pieces: int) -> list[Pieces]:
        """Return the first ``max_pieces`` pieces of prefix and text, or the last ones if the end is kept.

        A tokenizer that reads special tokens in a prefix also reads them in a text. So a text that contains the name of
        a special token is tokenised again, without that part of the prefix.
        """
        prefixed = [prefix.text + text for text in texts] if prefix.text else texts
        pieces = self._pieces(prefix.tokenizer, prefixed, max_pieces)
        for index, text in enumerate(texts):
            if any(name in text for name in prefix.specials):
                text_pieces = self._pieces(self._tokenizer, [prefix.text[prefix.end :] + text], max_pieces)[0]
                ids = text_pieces.ids.tolist()
                if not (text_pieces.cut and self._keeps_end):
                    ids = [*prefix.ids, *ids]
                pieces[index] = Pieces(self._cut(ids, max_pieces).ids, text_pieces.cut or len(ids) > max_pieces)
        return pieces

    def _pieces(self, tokenizer: Tokenizer, texts: Sequence[str], max_pieces: int) -> list[Pieces]:
        """Return at most ``max_pieces`` pieces of each text; of a long text, read only as much as they need."""
        max_characters = CHARACTERS_PER_PIECE * max_pieces
        short_texts = [self._readable(text) for text in texts if len(text) <= max_characters]
        with NATIVE_CODE:
            encodings = iter(tokenizer.encode_batch_fast(short_texts, add_special_tokens=False))
            return [
                self._cut(next(encodings).ids, max_pieces)
                if len(text) <= max_characters
                else self._pieces_of_long(tokenizer, text, max_pieces, max_characters)
                for text in texts
            ]

    def _pieces_of_long(self, tokenizer: Tokenizer, text: str, max_pieces: int, max_characters: int) -> Pieces:
        """Tokenise longer and longer beginnings of a text, until one has enough pieces.

        A cut changes only the pieces of the word that it divides, because the tokenizer splits a text into words first.
        If the end of long texts is kept, the whole text is tokenised.
        """
        while max_characters < min(len(text), MAX_TEXT_CHARACTERS) and not self._keeps_end:
            encoding = tokenizer.encode(self._readable(text[:max_characters]), add_special_tokens=False)
            certain_ids = _without_last_word(encoding)
            if len(certain_ids) > max_pieces:
                return self._cut(certain_ids, max_pieces)
            max_characters *= 4
        readable_part = text[-MAX_TEXT_CHARACTERS:] if self._keeps_end else text[:MAX_TEXT_CHARACTERS]
        pieces = self._cut(tokenizer.encode(self._readable(readable_part), add_special_tokens=False).ids, max_pieces)
        return Pieces(pieces.ids, cut=pieces.cut or len(text) > MAX_TEXT_CHARACTERS)

    def _readable(self, text: str) -> str:
        """Return a text in the form that the tokenizer can read."""
        readable = _encodable(text)
        return self._map.normalise(readable)[0] if self._map else readable

    def _cut(self, ids: Sequence[int], max_pieces: int) -> Pieces:
        kept_ids = ids[max(0, len(ids) - max_pieces) :] if self._keeps_end else ids[:max_pieces]
        return Pieces(np.array(kept_ids, dtype=np.int64), cut=len(ids) > max_pieces)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The prefix of all queries, or of all documents.

    Attributes:
        text: the prefix.
        tokens: the number of its tokens.
        tokenizer: the tokenizer for prefix and text; it reads special tokens if the prefix contains one.
        specials: the names of all special tokens, if the prefix contains one; else empty.
        end: the end of the last special token in the prefix, in characters.
        ids: the ids of the prefix up to ``end``.
    """

    text: str
    tokens: int
    tokenizer: Tokenizer
    specials: tuple[str, ...] = ()
    end: int = 0
    ids: tuple[int, ...] = ()

    @classmethod
    def tokenised(cls, tokenizer: Tokenizer, text: str) -> Self:
        """Tokenise a prefix."""
        added_tokens = tokenizer.get_added_tokens_decoder().items()
        specials = {token_id: token.content for token_id, token in added_tokens if token.special}
        if not any(name in text for name in specials.values()):
            return cls(text, len(tokenizer.encode(text, add_special_tokens=False).ids), tokenizer)
        special_tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the copy lacks encode_special_tokens
        encoding = special_tokenizer.encode(text, add_special_tokens=False)
        last = max(position for position, token_id in enumerate(encoding.ids) if token_id in specials)
        ids = tuple(encoding.ids[: last + 1])
        return cls(text, len(encoding.ids), special_tokenizer, tuple(specials.values()), encoding.offsets[last][1], ids)


def pad(sequences: Sequence[Tokens], pad_id: int = 0, *, multiple: int = 1, max_width: int = 0) -> PaddedBatch:
    """Return sequences as one batch, padded on the right; the padding has the segment of the sequence's last token.

    Args:
        sequences: the rows of the batch.
        pad_id: id of the padding token.
        multiple: the batch's width is rounded up to a multiple of this, but not above ``max_width``.
        max_width: maximum number of tokens that the model can read.
    """
    lengths = np.array([len(tokens.ids) for tokens in sequences])
    longest = int(lengths.max())
    width = max(longest, min(-(-longest // multiple) * multiple, max_width))
    input_ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, tokens in enumerate(sequences):
        input_ids[row, : lengths[row]] = tokens.ids
        if len(tokens.ids):  # a StaticEmbedding may have no token for a text
            token_type_ids[row] = tokens.segments[-1]
        token_type_ids[row, : lengths[row]] = tokens.segments
    attended_lengths = lengths - np.array([tokens.unattended for tokens in sequences])
    attention_mask = (np.arange(input_ids.shape[1]) < attended_lengths[:, None]).astype(np.int64)
    return PaddedBatch(input_ids, attention_mask, token_type_ids)


def _joined(*arrays: Sequence[int] | Ids) -> Ids:
    return np.concatenate([np.asarray(array, dtype=np.int64) for array in arrays])


def _marked(marker: tuple[int, ...], pieces: Pieces) -> Pieces:
    return Pieces(_joined(marker, pieces.ids), pieces.cut)


def _encodable(text: str) -> str:
    """Replace each lone surrogate in a text by a question mark; JSON can contain one, but UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _chunks(encoding: Encoding, max_pieces: int) -> list[tuple[int, int]]:
    """Return the (start, end) of chunks of at most ``max_pieces`` pieces, in characters; whole words if possible."""
    words, offsets = encoding.word_ids, encoding.offsets
    spans: list[tuple[int, int]] = []
    first = 0
    while first < len(words):
        end = min(first + max_pieces, len(words))
        if end < len(words):
            word_ends = (position for position in range(end, first, -1) if words[position] != words[position - 1])
            end = next(word_ends, end)
        spans.append((offsets[first][0], offsets[end - 1][1]))
        first = end
    return spans


def _without_last_word(encoding: Encoding) -> list[int]:
    words = encoding.word_ids
    return [piece for piece, word in zip(encoding.ids, words, strict=True) if word != words[-1]]
