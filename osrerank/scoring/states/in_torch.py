"""Encode texts for their records in torch, on a CUDA device where there is one: for building an index's states."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens, padded
from osrerank.scoring.model_files import padding_id
from osrerank.scoring.networks.engine import DTYPES, choose_precision
from osrerank.scoring.networks.joined import JoinedEncoder
from osrerank.scoring.states.making import Made
from osrerank.scoring.states.record import Profile, Record, TextStates
from osrerank.scoring.torch_scorer import load_network
from osrerank.types import Deadline

BUDGET_TOKENS = {"cpu": 4096, "cuda": 65536}
"""Of a batch, padding among them."""

logger = logging.getLogger(__name__)


class TorchMaker:
    """Makes records with the model in torch; one thread at a time.

    Its records are those of the model's graphs up to rounding: an int8 graph rounds more than 16 bits do.

    Args:
        network: encodes.
        builder: makes sequences from texts.
        card: the model's.
        profile: how much of a document is kept.
        device: where the network is.
        dtype: of its products; weights and states are fp32.
        pad_id: id of the padding token.
    """

    def __init__(
        self,
        network: JoinedEncoder,
        builder: InputBuilder,
        card: ModelCard,
        profile: Profile,
        device: torch.device,
        dtype: torch.dtype,
        pad_id: int,
    ) -> None:
        self._network, self._builder, self._profile = network, builder, profile
        self._layers = card.joining.layers
        self._device, self._dtype, self._pad_id = device, dtype, pad_id
        self._no_query = builder.query("")

    @classmethod
    def load(
        cls, directory: Path, card: ModelCard, builder: InputBuilder, profile: Profile, dtype: str
    ) -> "TorchMaker":
        """Read the directory's safetensors, or the weights in its graphs where it has none.

        Args:
            directory: the model's.
            card: of the layout ``joined``.
            builder: makes sequences from texts.
            profile: how much of a document is kept.
            dtype: as for `osrerank.scoring.torch_scorer.TorchBackend.load`.

        Raises:
            ModelLoadError: there are no weights, or they cannot be read.
            MissingDependencyError: the extra ``torch`` is not installed.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = choose_precision(dtype, device)
        network = load_network(directory, card).to(device).eval()
        logger.info("%s encodes documents in torch on %s, %s", card.name, device.type, precision)
        return cls(network, builder, card, profile, device, DTYPES[precision], padding_id(directory))

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        pieces = self._builder.documents(texts, self._no_query)
        tokens = [self._builder.alone(one) for one in pieces]
        made = Made({}, {})
        for places in self._batches(tokens):
            if deadline.passed:
                break
            states = self._encoded([tokens[place] for place in places], [pieces[place].cut for place in places])
            for place, one in zip(places, states, strict=True):
                if not (np.isfinite(one.vector).all() and np.isfinite(one.layers).all()):
                    made.failures[place] = "torch gave states that are not finite numbers: try another --dtype"
                else:
                    made.records[place] = Record.of(one, self._profile)
        return made

    def _batches(self, tokens: Sequence[Tokens]) -> Iterator[list[int]]:
        """Yield places of sequences of about one length, the longest first: what does not fit shows at once."""
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place].ids), reverse=True)
        while order:
            count = max(1, BUDGET_TOKENS[self._device.type] // len(tokens[order[0]].ids))
            yield order[:count]
            order = order[count:]

    def _encoded(self, tokens: Sequence[Tokens], cuts: Sequence[bool]) -> list[TextStates]:
        batch = padded(tokens, self._pad_id)
        ids, mask = (torch.from_numpy(part).to(self._device).long() for part in (batch.input_ids, batch.attention_mask))
        rounds = self._dtype != torch.float32
        with torch.inference_mode(), torch.autocast(self._device.type, dtype=self._dtype, enabled=rounds):
            found = self._network.encode(ids, mask, self._layers)
        layers = [layer.float().cpu().numpy() for layer in found.layers]
        vectors = found.vectors.float().cpu().numpy()
        nothing = np.zeros((0, 0, vectors.shape[1]), dtype=np.float32)
        texts = []
        for place, (one, cut) in enumerate(zip(tokens, cuts, strict=True)):
            rows = len(one.ids)
            states = np.stack([layer[place, :rows] for layer in layers]) if layers else nothing
            pieces = np.ones(states.shape[1], dtype=np.uint16)
            texts.append(TextStates(states, pieces, vectors[place], cut))
        return texts
