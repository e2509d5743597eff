"""The models and texts for `tools.gpu`, and transformers' scores and vectors for them."""

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.formats.lines import read_numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.scoring.backends.torch import read_weights
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import Kind
from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.locate import locate
from osrerank.scoring.registry import load_model
from tools.models.families import FAMILIES, SHAPES, make

SAMPLE = Path(__file__).parents[2] / "osrerank" / "data" / "squad"
BI_ENCODER = "osrerank/e5-small"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Scores = npt.NDArray[np.float32]


class ScoringInput(NamedTuple):
    """A query, the texts of its documents, and the tuples of document indices to score."""

    query: str
    texts: Sequence[str]
    tuples: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run of the checks.

    Attributes:
        folder: the folder for models, indices and logs.
        tiny: whether the run is a rehearsal with tiny models.
    """

    folder: Path
    tiny: bool

    def choose(self, full: Any, tiny: Any) -> Any:
        """Return the first value, or in a rehearsal the second."""
        return tiny if self.tiny else full

    def lists(self, queries: int, depth: int, kind: Kind = "cross-encoder") -> list[ScoringInput]:
        """Return queries of the sample with ``depth`` paragraphs each; for duo, with all pairs of these."""
        texts = list(documents().values())
        tuples = list(permutations(range(depth), 2 if kind == "duo" else 1))
        inputs = []
        for number, query in enumerate(read_queries(SAMPLE / "queries.tsv")[:queries]):
            query_texts = [texts[(number * depth + index) % len(texts)] for index in range(depth)]
            inputs.append(ScoringInput(query.text, query_texts, tuples))
        return inputs

    def checkpoint(self, kind: Kind = "cross-encoder") -> Path:
        """Return the directory of a random cross-encoder of MiniLM-L6's shape, which is written once."""
        source, exported = self.folder / "drawn", self.folder / kind
        if not source.exists():
            examples = [(item.query, text) for item in self.lists(8, 5) for text in item.texts]
            make(source, FAMILIES["BERT"], SHAPES[self.choose("minilm-l6", "tiny")], examples)
        if not exported.exists():
            export_model(source, exported, ExportOptions(kind=kind, third_segment="copy", keep_weights=True))
        return exported

    def encoder(self) -> Path:
        """Return a directory with the package's bi-encoder for transformers, its int8 weights converted to fp32."""
        source, target = locate(BI_ENCODER), self.folder / "encoder"
        if not target.exists():
            network = transformers.BertModel(transformers.AutoConfig.from_pretrained(source), add_pooling_layer=False)
            network.load_state_dict(dict(read_weights(source)))
            network.save_pretrained(target)
            shutil.copy(source / "tokenizer.json", target)
        return target


@functools.cache
def documents() -> Mapping[str, str]:
    """Return the sample's paragraphs by id."""
    return {line["id"]: line["text"] for _, line in read_numbered_objects(SAMPLE / "corpus.jsonl.gz")}


def bi_encoder(dtype: str) -> BiEncoder:
    """Load the package's bi-encoder in torch with a dtype, or in ONNX Runtime without one."""
    encoder = load_model(BI_ENCODER, backend="torch" if dtype else "onnx", dtype=dtype or "auto")
    assert isinstance(encoder, BiEncoder)
    return encoder


def transformers_scores(folder: Path, lists: Sequence[ScoringInput]) -> Scores:
    """Return transformers' fp32 logits of all tuples, computed one sequence at a time, without padding."""
    builder = InputBuilder.load(folder, read_card(folder))
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(DEVICE).eval()
    logits = []
    for item in lists:
        query = builder.tokenise_query(item.query)
        documents = builder.tokenise_documents(item.texts, query)
        for indices in item.tuples:
            build = builder.build_mono if len(indices) == 1 else builder.build_duo
            tokens = build(query, *(documents[index] for index in indices))
            logits.append(forward(network, tokens).logits.item())
    return np.array(logits, dtype=np.float32)


def transformers_vectors(folder: Path, texts: Sequence[str]) -> Scores:
    """Return transformers' fp32 vectors of documents, mean-pooled and of norm 1, ``(n, hidden)``."""
    source = locate(BI_ENCODER)
    builder = InputBuilder.load(source, read_card(source))
    network = transformers.AutoModel.from_pretrained(folder).to(DEVICE).eval()
    documents = builder.tokenise_documents(texts, builder.tokenise_query(""))
    vectors = [forward(network, builder.build_single(tokens)).last_hidden_state[0].mean(dim=0) for tokens in documents]
    return torch.nn.functional.normalize(torch.stack(vectors)).cpu().numpy()


def forward(network: Any, tokens: Tokens) -> Any:
    """Return the output of a transformers network for one sequence."""
    ids, segments = (torch.from_numpy(array[None]).to(DEVICE) for array in (tokens.ids, tokens.segments))
    with torch.inference_mode():
        return network(input_ids=ids, token_type_ids=segments)
