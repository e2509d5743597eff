"""The list of all loaders, from which the command line chooses one by its name."""

from osrerank_loaders.collections.base import Loader
from osrerank_loaders.collections.jsonl import BEIR, JSONL
from osrerank_loaders.collections.msmarco_document import MSMARCO_DOCUMENT, MSMARCO_V2_DOCUMENT
from osrerank_loaders.collections.msmarco_passage import MSMARCO_PASSAGE, MSMARCO_V2_PASSAGE
from osrerank_loaders.collections.trec import ROBUST04, TREC
from osrerank_loaders.collections.trec_car import TREC_CAR, TREC_CAR_PAGES

_ALL = (
    MSMARCO_PASSAGE,
    MSMARCO_DOCUMENT,
    MSMARCO_V2_PASSAGE,
    MSMARCO_V2_DOCUMENT,
    TREC_CAR,
    TREC_CAR_PAGES,
    TREC,
    ROBUST04,
    BEIR,
    JSONL,
)
LOADERS: dict[str, Loader] = {loader.name: loader for loader in _ALL}
