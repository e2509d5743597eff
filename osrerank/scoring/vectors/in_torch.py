"""Compute document vectors in torch, on a CUDA device if there is one: for building the vectors of an index."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from osrerank._threads import NATIVE_CODE
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens, padded
from osrerank.scoring.model_files import padding_id
from osrerank.scoring.networks.bi_encoder import BiEncoder
from osrerank.scoring.networks.engine import DTYPES, choose_precision
from osrerank.scoring.torch_scorer import load_network
from osrerank.scoring.vectors.making import Made
from osrerank.scoring.vectors.record import Bits, Floats, Record
from osrerank.types import Deadline

BUDGET_TOKENS = {"cpu": 4096, "cuda": 65536}
"""Most tokens of a batch, padding included, by device."""

logger = logging.getLogger(__name__)


class TorchMaker:
    """Computes records with the model in torch; may be used by one thread at a time.

    The records equal those of the model's graph up to rounding: an int8 graph rounds more than 16 bits do.

    Args:
        network: the bi-encoder.
        builder: makes token sequences from texts.
        bits: bits of each stored number.
        device: where the network is.
        dtype: type of the matrix products; weights and vectors are fp32.
        pad_id: id of the padding token.
    """

    def __init__(
        self,
        network: BiEncoder,
        builder: InputBuilder,
        bits: Bits,
        device: torch.device,
        dtype: torch.dtype,
        pad_id: int,
    ) -> None:
        self._network, self._builder, self._bits = network, builder, bits
        self._device, self._dtype, self._pad_id = device, dtype, pad_id
        self._no_query = builder.query("")

    @classmethod
    def load(cls, directory: Path, card: ModelCard, builder: InputBuilder, bits: Bits, dtype: str) -> "TorchMaker":
        """Read the directory's safetensors or, if it has none, the weights in its graph.

        Args:
            directory: the model's.
            card: a bi-encoder's.
            builder: makes token sequences from texts.
            bits: bits of each stored number.
            dtype: as for `osrerank.scoring.torch_scorer.TorchBackend.load`.

        Raises:
            ModelLoadError: there are no weights, or they cannot be read.
            MissingDependencyError: the extra ``torch`` is not installed.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = choose_precision(dtype, device)
        network = load_network(directory, card).to(device).eval()
        logger.info("%s encodes documents in torch on %s, %s", card.name, device.type, precision)
        return cls(network, builder, bits, device, DTYPES[precision], padding_id(directory))

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        pieces = self._builder.documents(texts, self._no_query)
        tokens = [self._builder.alone(one) for one in pieces]
        made = Made({}, {})
        for places in self._batches(tokens):
            if deadline.passed:
                break
            vectors = self._encoded([tokens[place] for place in places])
            for place, vector in zip(places, vectors, strict=True):
                if not np.isfinite(vector).all():
                    made.failures[place] = "torch gave a vector that is not finite: try another --dtype"
                else:
                    made.records[place] = Record.of(vector, self._bits, cut=pieces[place].cut)
        return made

    def _batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Yield indices of sequences of similar length, the longest first, so that too large a batch fails at once."""
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place].ids), reverse=True)
        while order:
            count = max(1, BUDGET_TOKENS[self._device.type] // len(tokens[order[0]].ids))
            yield order[:count]
            order = order[count:]

    def _encoded(self, tokens: Sequence[Tokens]) -> Floats:
        """Return texts' vectors ``(n, hidden)``."""
        batch = padded(tokens, self._pad_id)
        ids, mask = (torch.from_numpy(part).to(self._device).long() for part in (batch.input_ids, batch.attention_mask))
        rounds = self._dtype != torch.float32
        computing = torch.autocast(self._device.type, dtype=self._dtype, enabled=rounds)
        with NATIVE_CODE, torch.inference_mode(), computing:
            vectors: Floats = self._network.encode(ids, mask).float().cpu().numpy()
        return vectors
