"""Scores of many settings at once: each text goes through the encoder once, whatever the number of settings.

The encoder is the graph that is shipped, which in int8 is several times as fast as PyTorch. The last layers are joined
in PyTorch, for many biases at once; it is tested against the reference implementation.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from osrerank.scoring.card import BLOCKED, Joining, Pooling, Rows
from osrerank.scoring.networks.joined import JoinedEncoder, TextStates, merged
from osrerank.scoring.networks.joined_scores import joined_scores
from osrerank.scoring.onnx_scorer import JoinedBackend

MOST_LAYERS = 2
BIASES = (-2.0, -3.0, -4.0, -5.0)
SECOND_LAYER_BIAS = -4.0
"""The only one tried where all rows look in two layers, which costs most."""
JOINED_ROWS = 4_000
"""Most rows of documents that are joined at a time, with padding: few, so that lengths are alike."""
KEPT_ROWS = 1_000_000
"""Most rows of documents whose states are kept: 3 GB at two layers of 384."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to score.

    Attributes:
        joining: how the query looks at the document.
        factor: a document's pieces for each of its rows, on average (`osrerank.scoring.networks.joined.merged`).
    """

    joining: Joining
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class _Text:
    """A document's states without padding: for each factor those of each layer ``(rows, hidden)``, and log pieces."""

    layers: tuple[tuple[Tensor, ...], ...]
    log_pieces: tuple[Tensor, ...]
    vector: Tensor

    @property
    def rows(self) -> int:
        return sum(len(one) for one in self.log_pieces)


def joinings(pooling: Pooling, query_prefix: str = "", document_prefix: str = "") -> Iterator[Joining]:
    """Yield what `osrerank adapt` tries: the bi-encoder itself, then one and two joined layers with each bias."""
    rows: Rows = "cls" if pooling == "cls" else "all"
    yield Joining(0, rows=rows, pooling=pooling, query_prefix=query_prefix, document_prefix=document_prefix)
    for layers, bias in product(range(1, MOST_LAYERS + 1), BIASES):
        if layers == 1 or rows == "cls" or bias == SECOND_LAYER_BIAS:
            yield Joining(layers, bias, rows, pooling, 0.0, query_prefix, document_prefix)


class Grid:
    """Scores documents with each of some settings.

    Args:
        encoder: of the bi-encoder, which joins.
        backend: encodes texts, with the states of `MOST_LAYERS` layers, or of all where there are fewer.
        tokenizer: the model's; it must truncate and not pad.
        settings: by name; all have the same prefix of documents.
        kept_rows: of documents whose states are kept between queries.
    """

    def __init__(
        self,
        encoder: JoinedEncoder,
        backend: JoinedBackend,
        tokenizer: Tokenizer,
        settings: Mapping[str, Setting],
        *,
        kept_rows: int = KEPT_ROWS,
    ) -> None:
        self._encoder = encoder
        self._backend = backend
        self._threads = ThreadPoolExecutor(backend.threads)
        self._tokenizer = tokenizer
        self._settings = settings
        self._factors = sorted({setting.factor for setting in settings.values()})
        (self._document_prefix,) = {setting.joining.document_prefix for setting in settings.values()}
        self._texts: OrderedDict[str, _Text] = OrderedDict()
        self._rows, self._kept_rows = 0, kept_rows

    @torch.inference_mode()
    def scores(self, query: str, documents: Sequence[str]) -> dict[str, Floats]:
        """Return the raw scores of documents ``(n,)`` by the name of the setting."""
        self._encode(document for document in dict.fromkeys(documents) if document not in self._texts)
        texts = [self._texts[document] for document in documents]
        for document in documents:
            self._texts.move_to_end(document)
        queries = {prefix: self._query(prefix + query) for prefix in self._prefixes()}
        found = {name: np.zeros(len(texts), dtype=np.float32) for name in self._settings}
        for place, factor in enumerate(self._factors):
            some = {name: one.joining for name, one in self._settings.items() if one.factor == factor}
            for numbers, states in self._batches(texts, place):
                for names in _alike(some):
                    first = some[names[0]]
                    biases = [some[name].bias for name in names]
                    scores = joined_scores(self._encoder, queries[first.query_prefix], states, first, biases)
                    for name, values in zip(names, scores.numpy(), strict=True):
                        found[name][numbers] = values
        self._forget()
        return found

    def _prefixes(self) -> set[str]:
        return {setting.joining.query_prefix for setting in self._settings.values()}

    def _query(self, text: str) -> TextStates:
        return self._states(self._tokenizer.encode(text).ids)

    def _states(self, ids: Sequence[int]) -> TextStates:
        """Return a text's states, with a first dimension of 1."""
        return TextStates.of_graph(self._backend.encoded(np.array(ids)), len(ids))

    def _encode(self, documents: Iterable[str]) -> None:
        new = list(documents)
        encodings = self._tokenizer.encode_batch([self._document_prefix + text for text in new])
        encoded = self._threads.map(self._text, (one.ids for one in encodings))
        for document, text in zip(new, encoded, strict=True):
            self._texts[document] = text
            self._rows += text.rows

    def _text(self, ids: Sequence[int]) -> _Text:
        with torch.inference_mode():
            whole = self._states(ids)
            parts = [merged(whole, factor) for factor in self._factors]
        layers = tuple(tuple(layer[0] for layer in part.layers) for part in parts)
        return _Text(layers, tuple(part.log_pieces[0] for part in parts), whole.vectors[0])

    def _batches(self, texts: Sequence[_Text], factor: int) -> Iterator[tuple[list[int], TextStates]]:
        """Yield the places of some texts of similar lengths, and their states."""
        lengths = [len(text.log_pieces[factor]) for text in texts]
        order = sorted(range(len(texts)), key=lengths.__getitem__)
        for batch in _by_size(order, lengths, JOINED_ROWS):
            some = [texts[number] for number in batch]
            layers = tuple(
                pad_sequence([text.layers[factor][layer] for text in some], batch_first=True)
                for layer in range(len(some[0].layers[factor]))
            )
            log_pieces = pad_sequence(
                [text.log_pieces[factor] for text in some], batch_first=True, padding_value=BLOCKED
            )
            yield batch, TextStates(layers, log_pieces, torch.stack([text.vector for text in some]))

    def _forget(self) -> None:
        while self._rows > self._kept_rows and self._texts:
            _, text = self._texts.popitem(last=False)
            self._rows -= text.rows


def _alike(settings: Mapping[str, Joining]) -> list[list[str]]:
    """Return the names of settings that differ in their bias alone, together."""
    groups: dict[Joining, list[str]] = {}
    for name, joining in settings.items():
        groups.setdefault(replace(joining, bias=0.0), []).append(name)
    return list(groups.values())


def _by_size(numbers: Iterable[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield numbers in order, in batches whose longest times their count is at most ``most``, or of one."""
    batch: list[int] = []
    longest = 0
    for number in numbers:
        longest = max(longest, lengths[number])
        if batch and (len(batch) + 1) * longest > most:
            yield batch
            batch, longest = [], lengths[number]
        batch.append(number)
    if batch:
        yield batch
