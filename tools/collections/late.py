"""Measure late interaction: the size and quality of pooled vectors, and the speed of searches and builds.

    python -m tools.collections.late present BI_ENCODER FOLDER [--dimensions 96]
    python -m tools.collections.late quality COLLECTION MODEL... [--factors 1 2 4]
    python -m tools.collections.late speed COLLECTION MODEL... [--factors 1 2 4] [--repeats 20]
    python -m tools.collections.late products [--repeats 20]

``present`` converts a bi-encoder that sentence-transformers saved to a late-interaction checkpoint with the same token
vectors, optionally projected at random to a number of dimensions.

``quality`` and ``speed`` take models that ``osrerank export`` wrote, late-interaction ones or bi-encoders, and a
COLLECTION with ``corpus.jsonl``, ``queries.tsv``, ``qrels.full.txt`` or ``qrels.txt``, and ``runs/BM25.txt``.

``speed`` measures all models and factors in turns: new queries on documents with stored vectors, and builds of 64
passages. ``products`` compares two ways to compute MaxSim.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osrerank.evaluation.basic import ndcg
from osrerank.formats.lines import read_numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card_file import read_card
from osrerank.scoring.late_interaction import LateInteraction
from osrerank.scoring.locate import locate
from osrerank.scoring.registry import build_model, load_backend
from osrerank.stages.vectors import VectorStage
from osrerank.types import Candidate, Query, Ranking
from osrerank.types.vectors import Floats, Rows
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.file import FileStore
from osrerank.vectors.record import ROUNDED_BITS, VectorRecord, stack_vectors
from osrerank.vectors.storage import VectorStorage
from osrerank.vectors.token_vectors import maxsim, pool_tokens

DEPTH = 100
DEPTHS = (100, 1000)
BLOCK_ROWS = 1024
"""The maximum number of rows of one matrix product."""
BUILDS, BUILD_SIZE = 3, 64
"""The number of builds per model and factor, and of passages per build."""
WEIGHTS = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2)
"""Weights of BM25: what the best BM25 score adds to a mean of cosines."""
TOKEN_EMBEDDINGS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def write_json(file: Path, content: Any) -> None:
    """Write a file, and its folder."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


def present(source: Path, folder: Path, dimensions: int) -> None:
    """Write a bi-encoder as a late-interaction checkpoint of its own token vectors."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name != "modules.json":
            shutil.copyfile(file, folder / file.name)
    settings = folder / "config_sentence_transformers.json"
    write_json(
        settings,
        {**json.loads(settings.read_text("utf-8")), "model_type": "MultiVectorEncoder", "similarity_fn_name": None},
    )
    modules = ["base.modules.transformer.Transformer"]
    if dimensions:
        from safetensors.numpy import save_file  # noqa: PLC0415 - for this form alone

        hidden = json.loads((source / "config.json").read_text("utf-8"))["hidden_size"]
        projection = np.linalg.qr(np.random.default_rng(0).standard_normal((hidden, dimensions)))[0].T
        config = {"in_features": hidden, "out_features": dimensions, "bias": False, **TOKEN_EMBEDDINGS}
        config["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / "1_Dense" / "config.json", config)
        weights = {"linear.weight": np.ascontiguousarray(projection, np.float32)}
        save_file(weights, folder / "1_Dense" / "model.safetensors")
        modules.append("base.modules.dense.Dense")
    modules += ["multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "base.modules.normalize.Normalize"]
    paths = [f"{index}_{name.rpartition('.')[2]}" if index else "" for index, name in enumerate(modules)]
    entries = [
        {"idx": index, "name": str(index), "path": paths[index], "type": f"sentence_transformers.{name}"}
        for index, name in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)
    write_json(folder / paths[-2] / "config.json", {"skiplist_words": []})
    write_json(folder / paths[-1] / "config.json", TOKEN_EMBEDDINGS)


@dataclass(frozen=True, slots=True)
class Collection:
    """Judged queries with BM25's first candidates.

    Attributes:
        queries: the queries with judgments and candidates.
        candidates: for each query, document id -> BM25's score.
        relevance: for each query, document id -> relevance.
        texts: document id -> text.
    """

    queries: Sequence[Query]
    candidates: Sequence[Mapping[str, float]]
    relevance: Sequence[Mapping[str, int]]
    texts: Mapping[str, str]


def read_collection(folder: Path) -> Collection:
    """Read a collection's files."""
    qrels = next(file for name in ("qrels.full.txt", "qrels.txt") if (file := folder / name).exists())
    judgments, run = read_qrels(qrels).judgments, read_run(folder / "runs" / "BM25.txt").rankings
    all_queries = read_queries(folder / "queries.tsv")
    queries = [query for query in all_queries if query.query_id in judgments and query.query_id in run]
    documents = (document for _, document in read_numbered_objects(folder / "corpus.jsonl"))
    texts = {str(item["id"]): f"{item.get('title') or ''} {item['text']}".strip() for item in documents}
    candidates = [{entry.doc_id: entry.score for entry in run[query.query_id][:DEPTH]} for query in queries]
    return Collection(queries, candidates, [judgments[query.query_id] for query in queries], texts)


def load_encoders(models: Sequence[str], factors: Sequence[float]) -> Iterator[tuple[str, BiEncoder]]:
    """Yield the name and the encoder of each model; of a late-interaction model, one encoder per pooling factor."""
    for model in models:
        directory = locate(model)
        card = read_card(directory)
        network = load_backend(directory, card)
        for factor in factors if card.kind == "late-interaction" else [1.0]:
            tokens = replace(card.tokens, pool_factor=factor) if card.kind == "late-interaction" else card.tokens
            encoder = build_model(directory, replace(card, tokens=tokens), network)
            if not isinstance(encoder, BiEncoder):
                raise TypeError(f"{model} is not a bi-encoder")
            yield card.name, encoder


def measure_quality(encoder: BiEncoder, collection: Collection, records: Mapping[str, VectorRecord]) -> str:
    """Return table cells with the mean size of a record in bytes, and nDCG@10 with each weight of BM25."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    parts = zip(collection.queries, collection.candidates, collection.relevance, strict=True)
    for query, candidates, relevance in parts:
        ids, bm25 = list(candidates), np.array(list(candidates.values()))
        query_vector = encoder.encode([query.text], "query").rows[0]
        logits = encoder.similarity(query_vector, stack_vectors([records[doc_id] for doc_id in ids]))
        for weight in WEIGHTS:
            totals = logits + encoder.card.calibration.scale * weight * bm25 / bm25.max()
            order = np.argsort(-totals, kind="stable")
            values[weight].append(ndcg([ids[index] for index in order], dict(relevance)))
    size = statistics.mean(len(record.to_bytes(b"")) for record in records.values())
    return f"{size:.0f} | {' | '.join(f'{np.mean(values[weight]):.4f}' for weight in WEIGHTS)}"


def quality(folder: Path, models: Sequence[str], factors: Sequence[float]) -> None:
    """Print a table of the sizes of records and nDCG@10; each text is encoded once, and pooled by each factor."""
    collection = read_collection(folder)
    ids = sorted({doc_id for candidates in collection.candidates for doc_id in candidates})
    weights = " | ".join(f"BM25 {weight:g}" for weight in WEIGHTS)
    sys.stdout.write(f"| model | bytes | {weights} |\n|{'---|' * (len(WEIGHTS) + 2)}\n")
    for name, encoder in load_encoders(models, [1.0]):
        rows = encoder.encode([collection.texts[doc_id] for doc_id in ids], "document").rows
        is_late = encoder.card.kind == "late-interaction"
        for factor in factors if is_late else [1.0]:
            vectors = (pool_tokens(row, factor) if is_late else row for row in rows)
            records = {
                doc_id: VectorRecord.from_vector(vector, ROUNDED_BITS, is_truncated=False)
                for doc_id, vector in zip(ids, vectors, strict=True)
            }
            sys.stdout.write(f"| {name}, factor {factor:g} | {measure_quality(encoder, collection, records)} |\n")
            sys.stdout.flush()


@contextmanager
def open_vectors(encoder: BiEncoder) -> Iterator[DocumentVectors]:
    """Yield an encoder's document vectors, stored in a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder), max_bytes=1 << 32, ttl_s=86_400)
        vectors = DocumentVectors(encoder, VectorStorage(store, ROUNDED_BITS))
        try:
            yield vectors
        finally:
            vectors.close()
            store.close()


def speed(folder: Path, models: Sequence[str], factors: Sequence[float], repeats: int) -> None:
    """Print a table of the times of searches, and of the speed of builds."""
    collection = read_collection(folder)
    texts = list(collection.texts.values())
    stored_texts, new_texts = texts[: max(DEPTHS)], texts[max(DEPTHS) :]
    measurements: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        all_vectors = {}
        for model, encoder in load_encoders(models, factors):
            name = f"{model}, factor {encoder.card.tokens.pool_factor:g}"
            all_vectors[name] = stack.enter_context(open_vectors(encoder))
        for model, encoder in load_encoders(models, [1.0]):
            rows = encoder.encode(stored_texts, "document").rows
            for vectors in (item for item in all_vectors.values() if item.encoder.model == model):
                store_vectors(vectors, stored_texts, rows)
        for turn in range(repeats):
            query = Query("q", f"{collection.queries[turn % len(collection.queries)].text} {turn}")
            for name, vectors in all_vectors.items():
                for depth in DEPTHS:
                    took_ms = 1000 * time_search(vectors, query, stored_texts[:depth])
                    measurements[name][f"{depth} candidates, ms"].append(took_ms)
        for start in range(0, BUILDS * BUILD_SIZE, BUILD_SIZE):
            for name, vectors in all_vectors.items():
                start_s = time.perf_counter()
                vectors.build(new_texts[start : start + BUILD_SIZE])
                measurements[name]["passages built, 1/s"].append(BUILD_SIZE / (time.perf_counter() - start_s))
    columns = list(next(iter(measurements.values())))
    sys.stdout.write(f"| model | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n")
    for name, values in measurements.items():
        cells = " | ".join(f"{statistics.median(values[column]):.1f}" for column in columns)
        sys.stdout.write(f"| {name} | {cells} |\n")


def time_search(vectors: DocumentVectors, query: Query, texts: Sequence[str]) -> float:
    """Return the time to rank texts with stored vectors for a query, in seconds."""
    stage = VectorStage(vectors, depth=len(texts))
    candidates = (Candidate(str(rank), text, 1 / rank, rank) for rank, text in enumerate(texts, start=1))
    ranking = Ranking(query, tuple(candidates))
    start_s = time.perf_counter()
    report = stage.rerank(ranking).reports[-1]
    took_s = time.perf_counter() - start_s
    if report.known != len(texts):
        raise RuntimeError(f"the vectors of some texts are not stored: {report}")
    return took_s


def store_vectors(vectors: DocumentVectors, texts: Sequence[str], rows: Rows) -> None:
    """Store the vectors of texts, pooled by the model's factor."""
    encoder = vectors.encoder
    if isinstance(encoder, LateInteraction):
        rows = [pool_tokens(row, encoder.tokens.pool_factor) for row in rows]
    records = {
        key: VectorRecord.from_vector(row, ROUNDED_BITS, is_truncated=False)
        for key, row in zip(vectors.records.compute_keys(texts), rows, strict=True)
    }
    if vectors.store is not None:
        vectors.records.write(vectors.store, records)


def products(repeats: int) -> None:
    """Print the times of MaxSim for 1,000 random documents, with a matrix product per document and per block."""
    generator = np.random.default_rng(0)
    query = generator.standard_normal((32, 96)).astype(np.float32)
    documents = [generator.standard_normal((generator.integers(20, 80), 96)).astype(np.float32) for _ in range(1000)]
    for name, compute in (("one product per document", maxsim), ("blocks of 1,024 rows", maxsim_in_blocks)):
        times_ms = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            compute(query, documents)
            times_ms.append(1000 * (time.perf_counter() - start_s))
        sys.stdout.write(f"{name}: median {statistics.median(times_ms):.1f} ms, maximum {max(times_ms):.1f} ms\n")


def maxsim_in_blocks(query: Floats, documents: Sequence[Floats]) -> Floats:
    """Compute `maxsim` with one matrix product for all documents of a block."""
    maxima, start = [], 0
    lengths = [len(document) for document in documents]
    while start < len(documents):
        end = start + int(np.searchsorted(np.cumsum(lengths[start:]), BLOCK_ROWS, "right"))
        cosines = np.concatenate(documents[start:end]) @ query.T
        offsets = np.cumsum([0, *lengths[start : end - 1]])
        maxima.append(np.maximum.reduceat(cosines, offsets, axis=0))
        start = end
    means: Floats = np.concatenate(maxima).mean(axis=1)
    return means


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("present")
    command.add_argument("source", type=Path)
    command.add_argument("folder", type=Path)
    command.add_argument("--dimensions", type=int, default=0, help="dimensions of a random projection; 0: none")
    for name in ("quality", "speed"):
        command = commands.add_parser(name)
        command.add_argument("collection", type=Path)
        command.add_argument("models", nargs="+")
        command.add_argument("--factors", type=float, nargs="+", default=[1.0, 2.0, 4.0])
        command.add_argument("--repeats", type=int, default=20)
    commands.add_parser("products").add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if options.command == "products":
        products(options.repeats)
    elif options.command == "present":
        present(options.source, options.folder, options.dimensions)
    elif options.command == "quality":
        quality(options.collection, options.models, options.factors)
    else:
        speed(options.collection, options.models, options.factors, options.repeats)


if __name__ == "__main__":
    main()
