"""The options of a reranked search: `Rerank` and its groups of options. Unknown names are errors."""

from osrerank.options.cutoff import Cutoff
from osrerank.options.interleave import Interleave
from osrerank.options.pairs import Pairs
from osrerank.options.passages import Passages
from osrerank.options.rerank import Rerank
from osrerank.options.rm3 import Rm3
from osrerank.options.sentences import Sentences
from osrerank.options.traffic import Traffic

__all__ = ["Cutoff", "Interleave", "Pairs", "Passages", "Rerank", "Rm3", "Sentences", "Traffic"]
