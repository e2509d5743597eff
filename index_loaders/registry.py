"""The loaders by name."""

from index_loaders.base import Loader
from index_loaders.jsonl import BEIR, JSONL
from index_loaders.msmarco_passage import MSMARCO_PASSAGE, MSMARCO_V2_PASSAGE

LOADERS: dict[str, Loader] = {loader.name: loader for loader in (MSMARCO_PASSAGE, MSMARCO_V2_PASSAGE, BEIR, JSONL)}
