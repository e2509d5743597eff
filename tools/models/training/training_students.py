"""What `training.py` trains: the query side of a bi-encoder, or joined layers with weights of their own."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from osrerank.adapt.adapt import load_encoder, tokenizer_of
from osrerank.adapt.bi_encoder import BiEncoder, read_bi_encoder
from osrerank.scoring.card import BLOCKED, Joining
from osrerank.scoring.networks.joined import JoinedEncoder, TextStates
from osrerank.scoring.networks.joined_scores import joined_scores
from training_states import Kept

QUERY_LAYERS = 3
"""Of the query's side that are trained."""
AT_ONCE = 64
"""Queries that are encoded at a time."""


class Student(nn.Module, ABC):
    """A bi-encoder whose documents' side is fixed.

    Args:
        model: the bi-encoder.
        kept: its documents' vectors and states.
        most_pieces: of a query.
    """

    trained: nn.ModuleList

    def __init__(self, model: BiEncoder, kept: Kept, most_pieces: int) -> None:
        super().__init__()
        self.encoder: JoinedEncoder = load_encoder(model).requires_grad_(requires_grad=False)
        self._prefix, self._kept, self._pooling = model.query_prefix, kept, model.pooling
        self._tokenizer = tokenizer_of(model)
        self._tokenizer.enable_truncation(most_pieces)

    @abstractmethod
    def cosines(self, queries: Sequence[str], documents: Sequence[Sequence[int]]) -> Tensor:
        """Return the cosines of queries' documents, list after list ``(n,)``; documents by their places in `Kept`."""

    @property
    @abstractmethod
    def layers(self) -> int:
        """How many of the last layers' inputs are kept of a query."""

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def prepare(self, queries: Sequence[str]) -> None:
        """Encode the queries that are not kept yet as far as nothing is trained."""
        new = sorted({query for query in queries if query not in self._kept.queries}, key=len)
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            rows = [torch.tensor(self._tokenizer.encode(self._prefix + query).ids) for query in some]
            masks = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            states = self.encoder.encode(pad_sequence(rows, batch_first=True), masks, QUERY_LAYERS)
            for place, (query, row) in enumerate(zip(some, rows, strict=True)):
                kept = tuple(layer[place, : len(row)].half() for layer in states.layers)
                self._kept.queries[query] = (*kept, states.vectors[place].clone())

    def query_states(self, queries: Sequence[str]) -> TextStates:
        """Return what is kept of queries."""
        self.prepare(queries)
        kept = [self._kept.queries[query] for query in queries]
        layers = tuple(
            pad_sequence([one[-1 - back] for one in kept], batch_first=True).float()
            for back in range(self.layers, 0, -1)
        )
        masks = pad_sequence([torch.ones(len(one[0])) for one in kept], batch_first=True)
        return TextStates(layers, BLOCKED * (masks == 0), torch.stack([one[-1] for one in kept]))

    def document_vectors(self, places: Sequence[int]) -> Tensor:
        """Return documents' vectors ``(n, hidden)``."""
        return torch.stack([torch.from_numpy(self._kept.vectors[place]) for place in places])

    def start(self) -> Mapping[str, Tensor]:
        """Return a copy of what is trained."""
        return {name: value.detach().clone() for name, value in self.trained.state_dict().items()}

    def average(self, start: Mapping[str, Tensor], share: float) -> None:
        """Replace what is trained by its mean with the start, which counts so much."""
        own = self.trained.state_dict()
        self.trained.load_state_dict({name: torch.lerp(own[name], start[name], share) for name in own})


class QuerySide(Student):
    """The query's last layers, with documents' vectors as they are."""

    layers = QUERY_LAYERS

    def __init__(self, model: BiEncoder, kept: Kept, most_pieces: int) -> None:
        super().__init__(model, kept, most_pieces)
        self.trained = nn.ModuleList(deepcopy(self.encoder.stack[-QUERY_LAYERS:])).requires_grad_()

    def cosines(self, queries: Sequence[str], documents: Sequence[Sequence[int]]) -> Tensor:
        kept = self.query_states(queries)
        states = kept.layers[0]
        for layer in self.trained:
            states = layer(states, kept.log_pieces[:, None, None, :])
        is_piece = (kept.log_pieces == 0).unsqueeze(2)
        pooled = states[:, 0] if self._pooling == "cls" else (states * is_piece).sum(dim=1) / is_piece.sum(dim=1)
        vectors = nn.functional.normalize(pooled, dim=-1)
        parts = [self.document_vectors(some) @ vector for vector, some in zip(vectors, documents, strict=True)]
        return torch.cat(parts)


class Joined(Student):
    """Joined layers with weights of their own; the plain bi-encoder where there are none."""

    def __init__(self, model: BiEncoder, kept: Kept, most_pieces: int, joining: Joining) -> None:
        super().__init__(model, kept, most_pieces)
        self._joining = replace(joining, pooling=model.pooling, own_weights=joining.layers > 0)
        self.encoder.joining = self._joining
        own = self.encoder.stack[len(self.encoder.stack) - joining.layers :]
        self.encoder.own = nn.ModuleList(deepcopy(own)).requires_grad_()
        self.trained = self.encoder.own

    @property
    def layers(self) -> int:
        return max(1, self._joining.layers)

    def cosines(self, queries: Sequence[str], documents: Sequence[Sequence[int]]) -> Tensor:
        asked = self.query_states(queries)
        flat = [place for some in documents for place in some]
        places = torch.tensor([number for number, some in enumerate(documents) for _ in some])
        texts = [self._kept.states[-place] for place in range(self._joining.layers, 0, -1)]
        layers = tuple(
            pad_sequence([torch.from_numpy(layer[place].copy()) for place in flat], batch_first=True).float()
            for layer in texts
        )
        lengths = torch.tensor([len(self._kept.states[-1][place]) for place in flat])
        is_row = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        seen = TextStates(layers, BLOCKED * (~is_row).float(), self.document_vectors(flat))
        found: Tensor = joined_scores(self.encoder, asked, seen, self._joining, [self._joining.bias], places)[0]
        return found


def student_of(recipe: Mapping[str, Any], models: Path, kept: Kept, most_pieces: int) -> Student:
    """Return the student of a recipe of `training.toml`, untrained."""
    model = read_bi_encoder(models / recipe["start"])
    if recipe["trained"] == "query":
        return QuerySide(model, kept, most_pieces)
    return Joined(
        model, kept, most_pieces, Joining(recipe["layers"], recipe.get("bias", 0.0), recipe.get("rows", "all"))
    )


def in_lots(counts: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield places of consecutive lists that have together at most so many documents, or one list."""
    lot: list[int] = []
    for place, count in enumerate(counts):
        if lot and sum(counts[one] for one in lot) + count > most:
            yield lot
            lot = []
        lot.append(place)
    if lot:
        yield lot
