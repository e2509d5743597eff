"""Late-interaction models (ColBERT) encode queries and documents separately, with one vector for each token.

Khattab, Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT, 2020,
arXiv 2004.12832, section 3.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from osrerank.scoring.backends.base import Backend
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.types import NEVER, Deadline, Side, Vectors
from osrerank.types.vectors import Floats, Rows
from osrerank.vectors.token_vectors import maxsim, pool_tokens


class LateInteraction(BiEncoder):
    """Encodes queries ``[CLS] [Q] q [SEP] [MASK] ...`` and documents ``[CLS] [D] d [SEP]`` into token vectors.

    The model's card names the marker tokens [Q] and [D], and the token that expands queries, here [MASK]. The
    similarity is a logit: ``scale * maxsim + offset`` with the card's calibration. MaxSim finds each query token's
    highest cosine with any document token, and is the mean of these cosines.
    """

    def __init__(self, directory: Path, card: ModelCard, builder: InputBuilder, backend: Backend) -> None:
        super().__init__(directory, card, builder, backend)
        self.tokens = card.tokens
        expansion = [self.tokens.expansion] if self.tokens.expansion else []
        self._expansion_ids = np.array(builder.token_ids(expansion), np.int64)
        self._skipped_ids = builder.token_ids(self.tokens.skipped)
        # + 1 for [CLS], which is not pooled
        self.max_token_vectors = int(card.max_tokens // self.tokens.pool_factor) + 1

    @functools.cached_property
    def key(self) -> str:
        """A string that identifies all that decides a document's vectors. With another key, they are computed again."""
        settings = {
            "document_marker": self.tokens.document_marker,
            "skipped": self.tokens.skipped,
            "pool_factor": self.tokens.pool_factor,
        }
        return "\0".join((super().key, json.dumps(settings)))

    @functools.cached_property
    def identity(self) -> str:
        """A string that identifies all that decides a similarity, also the settings of queries."""
        return f"{super().identity}/{json.dumps(self.tokens.to_json(), sort_keys=True)}"

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts into token vectors. Query vectors are cached, and queries ignore the deadline."""
        if side == "query":
            query_vectors, truncated_indices = self._encode_queries(texts)
            return Vectors(query_vectors, cut=truncated_indices)
        sequences, outcome, truncated_indices = self._encode_documents(texts, deadline)
        # a text that is not encoded before the deadline, or fails, gets one vector of NaN
        vectors = [np.full((1, self.dimensions), np.nan, dtype=np.float32)] * len(texts)
        for index, rows in outcome.outputs.items():
            is_kept = ~np.isin(sequences[index].ids, self._skipped_ids)
            vectors[index] = pool_tokens(rows[is_kept], self.tokens.pool_factor)
        return Vectors(vectors, outcome.failures, truncated_indices)

    def similarity(self, query: Floats, vectors: Rows) -> Floats:
        """Return the logits ``(n,)`` of n documents' token vectors with a query's, ``(tokens, dimensions)``."""
        return self.card.calibration.scale * maxsim(query, vectors) + self.card.calibration.offset

    def _query_vector(self, ids: bytes) -> Floats:
        """Pad a query with expansion tokens to a fixed length, and return its vectors ``(tokens, dimensions)``.

        ``ids`` are the bytes of int64 token ids: unlike an array, they can be a cache key.
        """
        query_ids = np.frombuffer(ids, dtype=np.int64)
        expansion_size = max(0, self.tokens.expanded_to - len(query_ids))
        token_ids = np.concatenate([query_ids, np.repeat(self._expansion_ids, expansion_size)])
        n_masked = expansion_size if self.tokens.hides_expansion else 0
        rows: Floats = self.backend.run([Tokens(token_ids, np.zeros_like(token_ids), n_masked)])[0]
        return rows
