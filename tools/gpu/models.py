"""Make the models and texts that the steps check, and compute transformers' scores and vectors for them."""

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
from osrerank.formats.lines import numbered_objects
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
    """A query, the texts of its documents, and the tuples of their indices that are scored."""

    query: str
    texts: Sequence[str]
    tuples: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CheckRun:
    """What the steps share: a folder for models, indexes and logs, and whether this is a rehearsal."""

    folder: Path
    tiny: bool

    def choose(self, whole: Any, tiny: Any) -> Any:
        """Return the first value, or in a rehearsal the second."""
        return tiny if self.tiny else whole

    def lists(self, queries: int, depth: int, kind: Kind = "cross-encoder") -> list[ScoringInput]:
        """Return queries of the sample with ``depth`` paragraphs each; for duo, all pairs of them are scored."""
        texts = list(documents().values())
        chosen = []
        for place, query in enumerate(read_queries(SAMPLE / "queries.tsv")[:queries]):
            own = [texts[(place * depth + at) % len(texts)] for at in range(depth)]
            chosen.append(ScoringInput(query.text, own, list(permutations(range(depth), 2 if kind == "duo" else 1))))
        return chosen

    def checkpoint(self, kind: Kind = "cross-encoder") -> Path:
        """Return a random cross-encoder of MiniLM-L6's shape, as safetensors and fp32 graph; it is made only once."""
        drawn, made = self.folder / "drawn", self.folder / kind
        if not drawn.exists():
            examples = [(one.query, text) for one in self.lists(8, 5) for text in one.texts]
            make(drawn, FAMILIES["BERT"], SHAPES[self.choose("minilm-l6", "tiny")], examples)
        if not made.exists():
            export_model(drawn, made, ExportOptions(kind=kind, third_segment="copy", keep_weights=True))
        return made

    def encoder(self) -> Path:
        """Return the package's bi-encoder as a directory for transformers, with its int8 weights as fp32."""
        source, made = locate(BI_ENCODER), self.folder / "encoder"
        if not made.exists():
            network = transformers.BertModel(transformers.AutoConfig.from_pretrained(source), add_pooling_layer=False)
            network.load_state_dict(dict(read_weights(source)))
            network.save_pretrained(made)
            shutil.copy(source / "tokenizer.json", made)
        return made


@functools.cache
def documents() -> Mapping[str, str]:
    """Return the sample's paragraphs by id."""
    return {line["id"]: line["text"] for _, line in numbered_objects(SAMPLE / "corpus.jsonl.gz")}


def bi_encoder(dtype: str) -> BiEncoder:
    """Return the package's bi-encoder; it encodes in torch if a dtype is given, else in ONNX Runtime."""
    encoder = load_model(BI_ENCODER, backend="torch" if dtype else "onnx", dtype=dtype or "auto")
    assert isinstance(encoder, BiEncoder)
    return encoder


def transformers_scores(folder: Path, lists: Sequence[ScoringInput]) -> Scores:
    """Return transformers' fp32 logits of all tuples, one sequence at a time, so that nothing is padded."""
    builder = InputBuilder.load(folder, read_card(folder))
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(DEVICE).eval()
    found = []
    for one in lists:
        query = builder.query(one.query)
        pieces = builder.documents(one.texts, query)
        for places in one.tuples:
            read = builder.mono if len(places) == 1 else builder.duo
            tokens = read(query, *(pieces[place] for place in places))
            found.append(forward(network, tokens).logits.item())
    return np.array(found, dtype=np.float32)


def transformers_vectors(folder: Path, texts: Sequence[str]) -> Scores:
    """Return transformers' fp32 vectors of documents ``(n, dimension)``: mean-pooled, of norm 1, prefix included."""
    source = locate(BI_ENCODER)
    builder = InputBuilder.load(source, read_card(source))
    network = transformers.AutoModel.from_pretrained(folder).to(DEVICE).eval()
    pieces = builder.documents(texts, builder.query(""))
    vectors = [forward(network, builder.single(one)).last_hidden_state[0].mean(dim=0) for one in pieces]
    return torch.nn.functional.normalize(torch.stack(vectors)).cpu().numpy()


def forward(network: Any, tokens: Tokens) -> Any:
    """Return the output of a transformers network for one sequence."""
    ids, segments = (torch.from_numpy(array[None]).to(DEVICE) for array in (tokens.ids, tokens.segments))
    with torch.inference_mode():
        return network(input_ids=ids, token_type_ids=segments)
