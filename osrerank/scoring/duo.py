"""Duo models (duoBERT) compare two documents: they compute the logit that document i is more relevant than document j.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import Pieces, Tokens


class Duo(CrossEncoder):
    """Scores tuples ``(i, j)`` by the logit that document i is more relevant than document j.

    The input is ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``. Everything else is done as in a cross-encoder.
    """

    documents_per_tuple = 2
    tuple_size_message = "a duo model scores pairs of documents; to score single documents, use another kind of model"

    def _sequence(self, query: Pieces, *documents: Pieces) -> Tokens:
        return self._builder.build_duo(query, *documents)
