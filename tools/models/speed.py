"""Measure the time to score 100 documents with models of each kind and size, for ``docs/models.md``.

    python -m tools.models.speed [--work FOLDER] [NAME ...]

Models that are not shipped get random weights, which are as fast as published ones. All are int8 graphs on the CPU,
exported into FOLDER for later runs. The documents are paragraphs of SQuAD, truncated to 56 words, MS MARCO's mean; the
queries are SQuAD's questions.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.checkpoints.self_check import examples
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.model_files import SHIPPED
from osrerank.scoring.registry import load_model
from osrerank.types import Scorer, is_encoder
from osrerank.types.scores import single_documents
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.file import FileStore
from osrerank.vectors.record import ROUNDED_BITS
from osrerank.vectors.storage import VectorStorage
from tools.machine import machine

TOKENIZER = SHIPPED / "e5-small" / "tokenizer.json"
WORDS, DOCUMENTS, QUERIES = 56, 100, 20
SLOW_S = 10.0
"""The estimated time for all documents above which a model scores only a tenth of them, in seconds."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """An architecture's size.

    Attributes:
        family: ``model_type`` in transformers.
        hidden: the hidden size.
        layers: the number of layers.
        heads: the number of attention heads.
        inner: the size of the feed-forward layers.
        pooling: the pooling of a bi-encoder; empty for a cross-encoder.
        changes: other fields of the configuration.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    inner: int
    pooling: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


FROM_PADDING = {"pad_token_id": 1, "max_position_embeddings": 514}
MODELS: Mapping[str, ModelSize | None] = {
    "osrerank/e5-small": None,
    "osrerank/minilm-l6": None,
    "intfloat/multilingual-e5-small": ModelSize("bert", 384, 12, 12, 1536, "mean"),
    "BAAI/bge-small-en-v1.5": ModelSize("bert", 384, 12, 12, 1536, "cls"),
    "BAAI/bge-base-en-v1.5": ModelSize("bert", 768, 12, 12, 3072, "cls"),
    "sentence-transformers/all-mpnet-base-v2": ModelSize("mpnet", 768, 12, 12, 3072, "mean", FROM_PADDING),
    "Alibaba-NLP/gte-modernbert-base": ModelSize("modernbert", 768, 22, 12, 1152, "cls"),
    "cross-encoder/ms-marco-MiniLM-L6-v2": ModelSize("bert", 384, 6, 12, 1536),
    "cross-encoder/ms-marco-MiniLM-L12-v2": ModelSize("bert", 384, 12, 12, 1536),
    "Alibaba-NLP/gte-reranker-modernbert-base": ModelSize("modernbert", 768, 22, 12, 1152),
    "BAAI/bge-reranker-base": ModelSize("xlm-roberta", 768, 12, 12, 3072, changes=FROM_PADDING),
    "castorini/monobert-large-msmarco": ModelSize("bert", 1024, 24, 16, 4096),
}
"""The name of a model -> its size; None for a shipped model."""


def prepare_model(name: str, work: Path) -> str:
    """Return the value for ``--model``: a shipped model's name, or the directory of a random model of the same size."""
    size = MODELS[name]
    if size is None:
        return name
    directory = work / name.replace("/", "-")
    if not directory.exists():
        with tempfile.TemporaryDirectory(dir=work) as parent:
            _write_checkpoint(size, Path(parent) / "source")
            pooling: Any = size.pooling or None
            export_model(Path(parent) / "source", directory, ExportOptions(pooling=pooling, precision="int8"))
    return str(directory)


def _write_checkpoint(shape: ModelSize, folder: Path) -> None:
    """Write a random checkpoint with the tokenizer of the shipped models."""
    import transformers  # noqa: PLC0415 - heavy

    fields = {"hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads}
    fields |= {"intermediate_size": shape.inner, "vocab_size": 30522, "num_labels": 1}
    special = {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102}
    config = transformers.AutoConfig.for_model(shape.family, **{**special, **fields, **shape.changes})
    kind = transformers.AutoModel if shape.pooling else transformers.AutoModelForSequenceClassification
    kind.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())


def measure(model: str, queries: Sequence[str], texts: Sequence[str]) -> tuple[float, float | None]:
    """Return the median time for a query's documents in ms; of an encoder, also the time with stored vectors."""
    loaded = load_model(model, backend="onnx")
    if not is_encoder(loaded):
        with closing(loaded):
            return _median_ms(loaded, queries, texts), None
    without_store = EncoderScorer(DocumentVectors(loaded))
    with closing(loaded), tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder), max_bytes=1 << 30, ttl_s=3600)
        with_store = EncoderScorer(DocumentVectors(loaded, VectorStorage(store, ROUNDED_BITS)))
        with_store.vectors.build(texts)
        return _median_ms(without_store, queries, texts), _median_ms(with_store, queries, texts)


def _median_ms(scorer: Scorer, queries: Sequence[str], texts: Sequence[str]) -> float:
    tenth = texts[: len(texts) // 10]
    _score_ms(scorer, queries[0], tenth)  # warms up
    tenth_ms = _score_ms(scorer, queries[1], tenth)
    if tenth_ms > 100 * SLOW_S:
        return 10 * statistics.median(_score_ms(scorer, query, tenth) for query in queries[1:4])
    timed_queries = queries[1:6] if tenth_ms > 50 else queries[1:]
    return statistics.median(_score_ms(scorer, query, texts) for query in timed_queries)


def _score_ms(scorer: Scorer, query: str, texts: Sequence[str]) -> float:
    start_s = time.perf_counter()
    scores = scorer.score(query, texts, single_documents(len(texts)))
    assert scores.reached == len(texts)
    return 1000 * (time.perf_counter() - start_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "osrerank-speed")
    parser.add_argument("--export-only", action="store_true", help="export the graphs without measuring")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models: {', '.join(MODELS)}")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    models = {name: prepare_model(name, arguments.work) for name in arguments.names or MODELS}
    if arguments.export_only:
        return
    queries = [example.question for example in examples()[:QUERIES]]
    texts = [text for example in examples() for text in (example.answer, example.unrelated)]
    texts = [" ".join(text.split()[:WORDS]) for text in texts][:DOCUMENTS]
    print(machine())
    print("| model | ms for 100 documents | with stored vectors |\n|---|---|---|")
    for name, model in models.items():
        took_ms, stored_ms = measure(model, queries, texts)
        print(f"| {name} | {took_ms:,.0f} | {'' if stored_ms is None else f'{stored_ms:.1f}'} |", flush=True)


if __name__ == "__main__":
    main()
