"""Late interaction: each text is read alone, and each of its tokens becomes a vector (ColBERT).

Khattab, Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT, 2020,
arXiv 2004.12832, section 3. A document's vectors are computed once, for every later query.
"""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from osrerank.scoring.backends.base import Backend
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.types import NEVER, Deadline, Side, Vectors
from osrerank.types.vectors import Floats, Rows
from osrerank.vectors.token_vectors import maxsim, pooled


class LateInteraction(BiEncoder):
    """Encodes queries ``[CLS] [Q] q [SEP] [MASK] ...`` and documents ``[CLS] [D] d [SEP]``, as the card says.

    A similarity is MaxSim as a logit: ``scale * mean + offset`` with the card's calibration, where the mean over the
    query's tokens is that of each one's greatest cosine.
    """

    def __init__(
        self,
        directory: Path,
        card: ModelCard,
        builder: InputBuilder,
        backend: Backend,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(directory, card, builder, backend, clock)
        self.tokens = card.tokens
        self._expansion = np.array(builder.ids_of([self.tokens.expansion] if self.tokens.expansion else []), np.int64)
        self._skipped = builder.ids_of(self.tokens.skipped)
        self.most_rows = int(card.max_tokens // self.tokens.pool_factor) + 1

    @functools.cached_property
    def key(self) -> str:
        """As `BiEncoder.key`; pooling is a part of it."""
        kept = {"document_marker": self.tokens.document_marker, "skipped": self.tokens.skipped}
        return "\0".join((super().key, json.dumps({**kept, "pool_factor": self.tokens.pool_factor})))

    @functools.cached_property
    def identity(self) -> str:
        """As `BiEncoder.identity`."""
        return f"{super().identity}/{json.dumps(self.tokens.to_json(), sort_keys=True)}"

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts as `osrerank.types.Encoder.encode`; queries one by one, whatever the deadline, and cached."""
        if side == "query":
            read = [self._builder.query(text) for text in texts]
            queries = [self._query(self._builder.alone(one).ids.tobytes()) for one in read]
            return Vectors(queries, cut=frozenset(at for at, one in enumerate(read) if one.cut))
        sequences, outcome, cut = self._computed(texts, deadline)
        vectors = [np.full((1, self.dimensions), np.nan, dtype=np.float32)] * len(texts)
        for at, rows in outcome.outputs.items():
            vectors[at] = pooled(rows[~np.isin(sequences[at].ids, self._skipped)], self.tokens.pool_factor)
        return Vectors(vectors, outcome.failures, cut)

    def similarity(self, query: Floats, vectors: Rows) -> Floats:
        """Return MaxSim as a logit, of a query's vectors ``(tokens, dimensions)`` and each document's."""
        return self.card.calibration.scale * maxsim(query, vectors) + self.card.calibration.offset

    def _of_bytes(self, ids: bytes) -> Floats:
        """Return the vectors of a query's token ids, int64 as bytes, filled up with the expansion's."""
        own = np.frombuffer(ids, dtype=np.int64)
        missing = max(0, self.tokens.expanded_to - len(own))
        read = np.concatenate([own, np.repeat(self._expansion, missing)])
        unattended = missing if self.tokens.hides_expansion else 0
        rows: Floats = self.backend.run([Tokens(read, np.zeros_like(read), unattended)])[0]
        return rows
