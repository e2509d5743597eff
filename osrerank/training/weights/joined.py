"""Joined models to train: whole, or the joined layers alone, on states that are computed once.

While only the joined layers of the query's side are trained, what the encoder gives of a text never changes. So each
text goes through the encoder's graph once, and a step reads one row of the query, or a few, through one or two layers.
Of a document they see what a search sees: its record (`osrerank.scoring.states.record`), with similar neighbouring
pieces in one row.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from osrerank.errors import ConfigError
from osrerank.scoring.card import BLOCKED, ModelCard
from osrerank.scoring.model_files import read_card
from osrerank.scoring.networks.joined import JoinedEncoder, TextStates
from osrerank.scoring.networks.joined_scores import joined_scores
from osrerank.scoring.onnx_scorer import JoinedBackend
from osrerank.scoring.states import record
from osrerank.scoring.states.record import PROFILES, Profile, Record

TEMPERATURE = 20.0
"""Factor of the cosines in a softmax over a list, that of the layout ``cross-bias``."""
BUDGET_TOKENS = 49_152
"""Of a forward pass on states where the recipe has none: a step is one pass, whose weights' gradients cost as much
whatever the number of pairs."""
KEPT_BYTES = 4 << 30
"""Most memory for states, in 16 bits: some 40,000 texts of 130 pieces at one joined layer of 384."""


class JoinedNetwork(nn.Module):
    """A joined model whose raw scores are logits: its cosines, or differences of two, times a temperature.

    Args:
        encoder: the model.
    """

    def __init__(self, encoder: JoinedEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits ``(n, 1)``; arguments as `JoinedEncoder.forward` has them."""
        scores: Tensor = self.encoder(input_ids, attention_mask, token_type_ids)
        return TEMPERATURE * scores


class Key(NamedTuple):
    """What a text's states are kept under: its token ids as bytes, and whether it is a query."""

    ids: bytes
    is_query: bool


@dataclass(frozen=True, slots=True)
class _Text:
    """A text's states in 16 bits, each ``(rows, hidden)``, log of the pieces in each row, and its vector."""

    layers: tuple[Tensor, ...]
    log_pieces: Tensor
    vector: Tensor

    @property
    def size(self) -> int:
        return sum(part.nbytes for part in (*self.layers, self.log_pieces, self.vector))


class _Room:
    """Memory that is used again: to allocate it for each step takes longer than to fill it."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def padded(self, states: Sequence[Tensor]) -> Tensor:
        """Return texts' states as fp32 with padding ``(n, rows, hidden)``, until the next call."""
        shape = (len(states), max(map(len, states)), states[0].shape[1])
        if math.prod(shape) > len(self._numbers):
            with torch.inference_mode(mode=False):  # what is made in it cannot be used for gradients later
                self._numbers = torch.empty(math.prod(shape))
        padded = self._numbers[: math.prod(shape)].view(shape)
        for rows, text in zip(padded, states, strict=True):
            rows[: len(text)] = text
            rows[len(text) :] = 0
        return padded


class OnStates(JoinedNetwork):
    """A mono model of which the joined layers are trained, with weights of their own, on texts' states.

    Gradients of a forward pass must be computed before the next one, which uses the same memory for states.

    Args:
        encoder: the model; its other parameters stay as they are.
        encode: returns the states of a text's token ids.
        profile: how much of a document's states is seen; a query's are whole.
        threads: texts that are encoded at the same time.
        kept_bytes: of states; those that were not used for longest are dropped.
    """

    def __init__(
        self,
        encoder: JoinedEncoder,
        encode: Callable[[Sequence[int]], record.TextStates],
        *,
        profile: Profile = PROFILES["exact"],
        threads: int = 1,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        super().__init__(encoder.requires_grad_(requires_grad=False))
        encoder.own.requires_grad_(requires_grad=True)
        self.encoded = 0
        self._encode, self._profile = encode, profile
        self._threads = ThreadPoolExecutor(threads)
        self._texts: OrderedDict[Key, _Text] = OrderedDict()
        self._bytes, self._kept_bytes = 0, kept_bytes
        self._rooms = [[_Room() for _ in range(encoder.joining.layers)] for _ in range(2)]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        device, joining = input_ids.device, self.encoder.joining
        inside = attention_mask == 1
        ends = torch.stack(((inside & (token_type_ids == 0)).sum(dim=1), inside.sum(dim=1)), dim=1).tolist()
        rows = input_ids.cpu().numpy()
        keys = [
            (Key(ids[:middle].tobytes(), is_query=True), Key(ids[middle:end].tobytes(), is_query=False))
            for ids, (middle, end) in zip(rows, ends, strict=True)
        ]
        self._keep({key for pair in keys for key in pair})
        different = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in keys))}
        queries = self._padded(different, self._rooms[0], device)
        documents = self._padded((document for _, document in keys), self._rooms[1], device)
        places = torch.tensor([different[query] for query, _ in keys], device=device)
        self._forget()
        scores = joined_scores(self.encoder, queries, documents, joining, [joining.bias], places)[0]
        if joining.cosine_share:
            plain = (queries.vectors[places] * documents.vectors).sum(dim=1)
            scores = scores + joining.cosine_share * (plain - scores)
        return TEMPERATURE * scores.unsqueeze(1)

    def _keep(self, keys: Iterable[Key]) -> None:
        """Encode the texts that are not kept; they and the others become the last ones to be dropped."""
        new = [key for key in keys if key not in self._texts]
        for key, text in zip(new, self._threads.map(self._text, new), strict=True):
            self._texts[key] = text
            self._bytes += text.size
        self.encoded += len(new)
        for key in keys:
            self._texts.move_to_end(key)

    def _text(self, key: Key) -> _Text:
        states = self._encode(np.frombuffer(key.ids, dtype=np.int64).tolist())
        kept = Record.of(states, PROFILES["exact"] if key.is_query else self._profile)
        layers = torch.from_numpy(kept.states * kept.scales[..., None].astype(np.float32)).half()
        vector = functional.normalize(torch.from_numpy(kept.vector.astype(np.float32)), dim=0)
        return _Text(tuple(layers.unbind()), torch.from_numpy(kept.pieces.astype(np.float32)).log(), vector)

    def _padded(self, keys: Iterable[Key], rooms: Sequence[_Room], device: torch.device) -> TextStates:
        texts = [self._texts[key] for key in keys]
        layers = tuple(
            room.padded([text.layers[place] for text in texts]).to(device) for place, room in enumerate(rooms)
        )
        log_pieces = pad_sequence([text.log_pieces for text in texts], batch_first=True, padding_value=BLOCKED)
        vectors = torch.stack([text.vector for text in texts]).to(device)
        return TextStates(layers, log_pieces.to(device), vectors)

    def _forget(self) -> None:
        while self._bytes > self._kept_bytes:
            _, text = self._texts.popitem(last=False)
            self._bytes -= text.size


def on_states(
    network: nn.Module, card: ModelCard, source: Path, profile: Profile = PROFILES["exact"]
) -> tuple[OnStates, ModelCard]:
    """Return the network whose joined layers alone are trained, and its card.

    Args:
        network: of `osrerank.training.weights.models.load_trainee`.
        card: its card.
        source: the model's directory, which has the graph that encodes.
        profile: how much of a document's states is seen.

    Raises:
        ConfigError: it is no joined mono model, or no layer is joined.
        ModelLoadError: it has no graph.
    """
    if not isinstance(network, JoinedNetwork) or card.kind == "duo" or not card.joining.layers:
        reason = f"{source} is no mono model with joined layers; osrerank adapt makes one"
        raise ConfigError(reason, setting="on_states", source="argument")
    encoder, known = network.encoder, read_card(source)
    if not encoder.joining.own_weights:
        joining = replace(encoder.joining, own_weights=True)
        card = replace(card, joining=joining)
        encoder.joining = joining
        encoder.own = deepcopy(nn.ModuleList(encoder.stack[-joining.layers :]))
    backend = JoinedBackend.load(source, known)

    def encode(ids: Sequence[int]) -> record.TextStates:
        encoded = backend.encoded(np.array(ids, dtype=np.int64))
        layers = np.stack([encoded[name][0] for name in sorted(encoded) if name.startswith("states.")])
        return record.TextStates(layers, np.ones(len(ids), dtype=np.uint16), encoded["vector"][0].copy())

    return OnStates(encoder, encode, profile=profile, threads=backend.threads), card
