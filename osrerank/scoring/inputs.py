"""Build a model's token sequences: ``[CLS] q [SEP] d [SEP]`` and ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``.

A bi-encoder reads query and document apart: each has a sequence of its own, the whole window, and perhaps a prefix.

Nogueira and Cho 2019 (arXiv 1901.04085, section 3) and Nogueira et al. 2019 (arXiv 1910.14424, sections 3.2 and 3.3):
the query has at most 64 tokens, its two special tokens included, and the document is cut so that the sequence has at
most 512; each document of a pair has at most 223. Each text is tokenised once. A special token spelled in a text, such
as "[SEP]", is read as text; in a model's prefix it is read as the token, as the libraries do that save such models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer
from tokenizers.processors import TemplateProcessing

from osrerank._threads import NATIVE_CODE
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.charsmap import CharacterMap
from osrerank.scoring.model_files import tokenizer_file

CHARACTERS_PER_PIECE = 8
"""First guess of how many characters a word piece has; English has four to five."""
MOST_CHARACTERS = 1 << 18
"""The most characters of a text that are read; only white space or one endless word has under 512 pieces in so many."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The ids of a text's first word pieces, without special tokens.

    Attributes:
        ids: int64 ``(pieces,)``.
        cut: whether the text has more pieces than these.
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
class Template:
    """The special tokens that the model's tokenizer puts around query and document: ``head q middle d tail``.

    Attributes:
        head, middle, tail: the ids of the special tokens.
        middle_query: how many tokens of ``middle`` belong to the query's segment.
        document_type: segment id of the document: 1 for BERT, 0 for models without segments.
        second_type: segment id of the second document, if two are compared.
    """

    head: tuple[int, ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    middle_query: int
    document_type: int
    second_type: int = 0

    def specials(self, documents: int = 1) -> int:
        """Return how many special tokens a sequence with so many documents has."""
        return len(self.head) + documents * len(self.middle) + len(self.tail)


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences padded to the same length, int64 ``(n, tokens)``; the fields have the names of the model's inputs."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids


class InputBuilder:
    """Tokenises texts, and joins their pieces into the sequences that a model reads.

    Args:
        tokenizer: the model's tokenizer; it must neither pad nor truncate.
        card: the model's kind, lengths and prefixes.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        self._tokenizer = tokenizer
        self._map = CharacterMap.taken_from(tokenizer) if card.normalization == "sentencepiece" else None
        self._is_encoder = card.is_encoder
        self._keeps_end = card.truncation_side == "left"
        self._template = (template_of_one if card.is_encoder else template)(tokenizer)
        if card.segment_rows == 1:
            self._template = replace(self._template, document_type=0)
        self._query_prefix, self._document_prefix = (
            _Prefix.of(tokenizer, text) for text in (card.query_prefix, card.document_prefix)
        )
        if card.kind == "duo":
            first, second = (1, 2) if card.segment_rows > 2 else (0, 0)
            self._template = replace(self._template, document_type=first, second_type=second)
        before = 0 if card.is_encoder else self._query_prefix.tokens  # only an encoder's limit on the query counts it
        self._query_marker, self._document_marker = (
            self.ids_of([token] if token else []) for token in (card.tokens.query_marker, card.tokens.document_marker)
        )
        around = self._template.specials(0) + len(self._query_marker) if card.is_encoder else 2
        self._query_pieces = card.max_query_tokens - around + before
        self.max_tokens = card.max_tokens
        if before and self.max_tokens <= self._template.specials() + self._query_pieces:
            raise ValueError(f"the card's query_prefix has {before} tokens, which leaves no room for a document")
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
        """Return the query's pieces, its prefix included; for the usual 64 tokens, at most 62.

        A cross-encoder's prefix is not counted in this limit.
        """
        pieces = self._behind(self._query_prefix, [text], self._query_pieces)[0]
        return _marked(self._query_marker, pieces) if self._query_marker else pieces

    def documents(self, texts: Sequence[str], query: Pieces) -> list[Pieces]:
        """Return each document's pieces, its prefix included, cut to fit beside the query."""
        pieces = self._behind(self._document_prefix, texts, self._room(query))
        return [_marked(self._document_marker, part) for part in pieces] if self._document_marker else pieces

    def ids_of(self, tokens: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of tokens that the tokenizer knows by name.

        Raises:
            ValueError: the tokenizer has no such token.
        """
        ids = [self._tokenizer.token_to_id(token) for token in tokens]
        if None in ids:
            raise ValueError(f"the card names the token {tokens[ids.index(None)]!r}, which the tokenizer lacks")
        return tuple(ids)

    def chunks(self, texts: Sequence[str], query: Pieces) -> list[list[tuple[int, int]]]:
        """Split each text into consecutive chunks that fit beside the query: return their (start, end) in characters.

        A chunk has as many whole words as fit; a word that has more pieces than fit is divided. A text without pieces
        has no chunks.
        """
        readable = [_encodable(text) for text in texts]
        mapped = [self._map.normalised(text) for text in readable] if self._map else [(text, None) for text in readable]
        with NATIVE_CODE:
            encodings = self._tokenizer.encode_batch([text for text, _ in mapped], add_special_tokens=False)
        room = max(self._room(query) - self._document_prefix.tokens, 1)
        chunks = [_chunks(encoding, room) for encoding in encodings]
        return [
            found if begins is None else [(begins[start], (*begins, len(text))[end]) for start, end in found]
            for text, (_, begins), found in zip(readable, mapped, chunks, strict=True)
        ]

    def mono(self, query: Pieces, document: Pieces) -> Tokens:
        """Return the sequence of a query and a document."""
        around = self._template
        ids = _joined(around.head, query.ids, around.middle, document.ids, around.tail)
        segments = np.full_like(ids, around.document_type)
        segments[: len(around.head) + len(query.ids) + around.middle_query] = 0
        return Tokens(ids, segments)

    def alone(self, text: Pieces) -> Tokens:
        """Return the sequence of a single text."""
        ids = _joined(self._template.head, text.ids, self._template.tail)
        return Tokens(ids, np.zeros_like(ids))

    def duo(self, query: Pieces, first: Pieces, second: Pieces) -> Tokens:
        """Return the sequence of a query and two documents; a special token has the segment of the text before it."""
        around, middle = self._template, self._template.middle
        ids = _joined(around.head, query.ids, middle, first.ids, middle, second.ids, around.tail)
        segments = np.full_like(ids, around.second_type)
        start = len(around.head) + len(query.ids) + around.middle_query
        segments[: start + len(middle) + len(first.ids)] = around.document_type
        segments[:start] = 0
        return Tokens(ids, segments)

    def _room(self, query: Pieces) -> int:
        return self._duo_room(query) if self._is_duo else self._mono_room(query)

    def _mono_room(self, query: Pieces) -> int:
        """Return how many pieces a document may have; with the length rule ``released``, one token is left unused."""
        if self._is_encoder:
            return self.max_tokens - self._template.specials(0) - len(self._document_marker)
        unused = self.length_rule == "released"
        return self.max_tokens - self._template.specials() - unused - len(query.ids)

    def _duo_room(self, query: Pieces) -> int:
        """Return how many pieces each of two documents may have: 223 if queries may have 62.

        The released code takes half of what the query and its two special tokens leave, minus two: 222 to 252. A
        document does not get the room that a shorter one leaves unused.
        """
        if self.length_rule == "released":
            return (self.max_tokens - len(query.ids) - 2) // 2 - 2
        return (self.max_tokens - self._template.specials(2) - self._query_pieces) // 2

    def _behind(self, prefix: "_Prefix", texts: Sequence[str], most: int) -> list[Pieces]:
        """Return the first ``most`` pieces of each text with a prefix before it; the last ones if its end is kept."""
        if not prefix.specials:
            return self._pieces(self._tokenizer, [prefix.text + text for text in texts] if prefix.text else texts, most)
        spelling = [at for at, text in enumerate(texts) if any(name in text for name in prefix.specials)]
        found = self._pieces(prefix.tokenizer, [prefix.text + text for text in texts], most)
        for at in spelling:  # what a text spells is text, although it is a token in the prefix
            (own,) = self._pieces(self._tokenizer, [prefix.text[prefix.end :] + texts[at]], most)
            ids = own.ids.tolist() if own.cut and self._keeps_end else [*prefix.ids, *own.ids.tolist()]
            found[at] = Pieces(self._cut(ids, most).ids, own.cut or len(ids) > most)
        return found

    def _pieces(self, tokenizer: Tokenizer, texts: Sequence[str], most: int) -> list[Pieces]:
        """Return the pieces of each text that are kept; of a long text, only as much is read as they need."""
        reach = CHARACTERS_PER_PIECE * most
        short = [self._readable(text) for text in texts if len(text) <= reach]
        with NATIVE_CODE:
            encodings = iter(tokenizer.encode_batch_fast(short, add_special_tokens=False))
            return [
                self._cut(next(encodings).ids, most)
                if len(text) <= reach
                else self._pieces_of_long(tokenizer, text, most, reach)
                for text in texts
            ]

    def _pieces_of_long(self, tokenizer: Tokenizer, text: str, most: int, reach: int) -> Pieces:
        """Tokenise ever longer beginnings of a text, until one has enough pieces; if its end is kept, all of it.

        A cut changes only the pieces of the word that it divides, because the tokenizer splits a text into words first.
        So all pieces except those of the last word are pieces of the whole text.
        """
        while reach < min(len(text), MOST_CHARACTERS) and not self._keeps_end:
            sure = _without_last_word(tokenizer.encode(self._readable(text[:reach]), add_special_tokens=False))
            if len(sure) > most:
                return self._cut(sure, most)
            reach *= 4
        read = text[-MOST_CHARACTERS:] if self._keeps_end else text[:MOST_CHARACTERS]
        pieces = self._cut(tokenizer.encode(self._readable(read), add_special_tokens=False).ids, most)
        return Pieces(pieces.ids, cut=pieces.cut or len(text) > MOST_CHARACTERS)

    def _readable(self, text: str) -> str:
        """Return a text as the tokenizer gets it."""
        readable = _encodable(text)
        return self._map.normalised(readable)[0] if self._map else readable

    def _cut(self, ids: Sequence[int], most: int) -> Pieces:
        kept = ids[max(0, len(ids) - most) :] if self._keeps_end else ids[:most]
        return Pieces(np.array(kept, dtype=np.int64), cut=len(ids) > most)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What precedes the texts of a side.

    Attributes:
        text: as the card has it.
        tokens: how many it has.
        tokenizer: reads special tokens where a text spells them.
        specials: the names of all special tokens, if the prefix spells one; empty if it spells none.
        end: where the last one ends in the prefix, in characters.
        ids: the ids of the prefix up to there.
    """

    text: str
    tokens: int
    tokenizer: Tokenizer
    specials: tuple[str, ...] = ()
    end: int = 0
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str) -> Self:
        """Return a side's prefix."""
        special = {at: one.content for at, one in tokenizer.get_added_tokens_decoder().items() if one.special}
        if not any(name in text for name in special.values()):
            return cls(text, len(tokenizer.encode(text, add_special_tokens=False).ids), tokenizer)
        reader = Tokenizer.from_str(tokenizer.to_str())
        encoding = reader.encode(text, add_special_tokens=False)
        last = max(at for at, one in enumerate(encoding.ids) if one in special)
        ids = tuple(encoding.ids[: last + 1])
        return cls(text, len(encoding.ids), reader, tuple(special.values()), encoding.offsets[last][1], ids)


def padded(sequences: Sequence[Tokens], pad_id: int = 0, *, multiple: int = 1, most: int = 0) -> PaddedBatch:
    """Return the sequences as one batch, padded on the right; padding has the segment of a sequence's last token.

    Args:
        sequences: the rows.
        pad_id: id of the padding token.
        multiple: the batch's width is rounded up to a multiple of this, but not above ``most``.
        most: the most tokens that the model can read.
    """
    lengths = np.array([len(tokens.ids) for tokens in sequences])
    longest = int(lengths.max())
    width = max(longest, min(-(-longest // multiple) * multiple, most))
    input_ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, tokens in enumerate(sequences):
        input_ids[row, : lengths[row]] = tokens.ids
        if len(tokens.ids):  # of a StaticEmbedding, a text may have no token
            token_type_ids[row] = tokens.segments[-1]
        token_type_ids[row, : lengths[row]] = tokens.segments
    seen = lengths - np.array([tokens.unattended for tokens in sequences])
    attention_mask = (np.arange(input_ids.shape[1]) < seen[:, None]).astype(np.int64)
    return PaddedBatch(input_ids, attention_mask, token_type_ids)


def template_of_one(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around a single text: ``head text tail``.

    Raises:
        ValueError: the tokenizer puts none there.
    """
    encoding = tokenizer.encode("a")
    texts = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    is_bare = isinstance(tokenizer.post_processor, TemplateProcessing)  # a StaticEmbedding's, which adds nothing
    if not texts or (len(texts) == len(encoding.ids) and not is_bare):
        raise ValueError("it does not put special tokens around a text (no post-processor)")
    head, tail = tuple(encoding.ids[: texts[0]]), tuple(encoding.ids[texts[-1] + 1 :])
    return Template(head, (*tail, *head), tail, len(tail), 1)


def template(tokenizer: Tokenizer) -> Template:
    """Return the special tokens that a tokenizer puts around a pair of texts.

    Raises:
        ValueError: the tokenizer puts none there.
    """
    encoding = tokenizer.encode("a", "b")
    queries, documents = ([at for at, text in enumerate(encoding.sequence_ids) if text == side] for side in (0, 1))
    if not queries or not documents or len(encoding.ids) - len(queries) - len(documents) < 3:
        raise ValueError("it does not put special tokens around a pair of texts (no post-processor)")
    query_at, document_at = queries[-1], documents[0]
    head, tail = tuple(encoding.ids[: queries[0]]), tuple(encoding.ids[documents[-1] + 1 :])
    middle = tuple(encoding.ids[query_at + 1 : document_at])
    document_type = encoding.type_ids[document_at]
    middle_query = sum(segment == 0 for segment in encoding.type_ids[query_at + 1 : document_at])
    return Template(head, middle, tail, middle_query, document_type)


def _joined(*parts: Sequence[int] | Ids) -> Ids:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _marked(marker: tuple[int, ...], pieces: Pieces) -> Pieces:
    return Pieces(_joined(marker, pieces.ids), pieces.cut)


def _encodable(text: str) -> str:
    """Replace each lone surrogate in a text by a question mark, because JSON can carry one, and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _chunks(encoding: Encoding, most: int) -> list[tuple[int, int]]:
    """Return the (start, end) in characters of chunks of at most ``most`` pieces; they end with a word if possible."""
    words, offsets = encoding.word_ids, encoding.offsets
    found: list[tuple[int, int]] = []
    first = 0
    while first < len(words):
        end = min(first + most, len(words))
        if end < len(words):
            end = next((at for at in range(end, first, -1) if words[at] != words[at - 1]), end)
        found.append((offsets[first][0], offsets[end - 1][1]))
        first = end
    return found


def _without_last_word(encoding: Encoding) -> list[int]:
    words = encoding.word_ids
    return [piece for piece, word in zip(encoding.ids, words, strict=True) if word != words[-1]]
