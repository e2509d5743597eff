"""The loaders by name."""

from index_loaders.base import Loader
from index_loaders.jsonl import BEIR, JSONL
from index_loaders.msmarco_document import MSMARCO_DOCUMENT, MSMARCO_V2_DOCUMENT
from index_loaders.msmarco_passage import MSMARCO_PASSAGE, MSMARCO_V2_PASSAGE
from index_loaders.trec import TREC
from index_loaders.trec_car import TREC_CAR

_ALL = (MSMARCO_PASSAGE, MSMARCO_DOCUMENT, MSMARCO_V2_PASSAGE, MSMARCO_V2_DOCUMENT, TREC_CAR, TREC, BEIR, JSONL)
LOADERS: dict[str, Loader] = {loader.name: loader for loader in _ALL}
