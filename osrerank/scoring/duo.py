"""Duo models: the model reads a query and two documents together and computes the logit of p_ij (duoBERT).

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import Pieces, Tokens


class Duo(CrossEncoder):
    """Scores tuples ``(i, j)``: ``[CLS] q [SEP] d_i [SEP] d_j [SEP]`` yields the logit that i is more relevant than j.

    Batches, heads and calibration are those of a cross-encoder.
    """

    documents_per_tuple = 2
    tuple_error = "a duo model scores pairs of documents; single documents need another kind"

    def _sequence(self, query: Pieces, *documents: Pieces) -> Tokens:
        """Return the sequence of a query and two documents."""
        return self._builder.duo(query, *documents)
