"""Measure late interaction: what pooling saves and costs, and how fast known and unknown documents are.

    python -m tools.collections.late present BI_ENCODER FOLDER [--dimensions 96]
    python -m tools.collections.late quality COLLECTION MODEL... [--factors 1 2 4]
    python -m tools.collections.late speed COLLECTION MODEL... [--factors 1 2 4] [--repeats 20]
    python -m tools.collections.late products [--repeats 20]

``present`` writes a bi-encoder that sentence-transformers saved as a late-interaction checkpoint of its own token
vectors: without a projection, or with a random orthonormal one to so many dimensions.
``quality`` and ``speed`` read model directories that ``osrerank export`` made, and a bi-encoder for comparison.
COLLECTION has ``corpus.jsonl``, ``queries.tsv``, ``qrels.full.txt`` or ``qrels.txt``, and ``runs/BM25.txt``.

``speed`` measures all models and factors in turns. A search goes from its text to the order, with a query that was not
asked before and documents whose records are in a file; a build
encodes 64 passages into it, three times.
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
from osrerank.formats.lines import numbered_objects
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
BLOCK = 1024
"""Rows that are multiplied together."""
BUILDS, BUILT = 3, 64
"""Builds of each model and factor, and the passages that one encodes."""
WEIGHTS = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2)
"""What the best BM25 score adds to a mean of cosines, as far as it is tried."""
NORMAL = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
LIBRARY = "sentence_transformers."


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
        drawn = np.linalg.qr(np.random.default_rng(0).standard_normal((hidden, dimensions)))[0].T
        form = {"in_features": hidden, "out_features": dimensions, "bias": False}
        identity = "torch.nn.modules.linear.Identity"
        write_json(folder / "1_Dense" / "config.json", {**form, "activation_function": identity, **NORMAL})
        save_file({"linear.weight": np.ascontiguousarray(drawn, np.float32)}, folder / "1_Dense" / "model.safetensors")
        modules.append("base.modules.dense.Dense")
    modules += ["multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "base.modules.normalize.Normalize"]
    names = [f"{at}_{name.rpartition('.')[2]}" if at else "" for at, name in enumerate(modules)]
    listed = [
        {"idx": at, "name": str(at), "path": names[at], "type": LIBRARY + name} for at, name in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    write_json(folder / names[-2] / "config.json", {"skiplist_words": []})
    write_json(folder / names[-1] / "config.json", NORMAL)


@dataclass(frozen=True, slots=True)
class Collection:
    """Judged queries with BM25's first candidates.

    Attributes:
        queries: those that have judgments and candidates.
        candidates: of each query, id -> BM25's score.
        relevance: of each query.
        texts: of all documents, by id.
    """

    queries: Sequence[Query]
    candidates: Sequence[Mapping[str, float]]
    relevance: Sequence[Mapping[str, int]]
    texts: Mapping[str, str]


def read_collection(folder: Path) -> Collection:
    """Read a collection's files."""
    qrels = next(file for name in ("qrels.full.txt", "qrels.txt") if (file := folder / name).exists())
    judged, run = read_qrels(qrels).judgments, read_run(folder / "runs" / "BM25.txt").rankings
    queries = [
        query for query in read_queries(folder / "queries.tsv") if query.query_id in judged and query.query_id in run
    ]
    lines = (row for _, row in numbered_objects(folder / "corpus.jsonl"))
    texts = {str(row["id"]): f"{row.get('title') or ''} {row['text']}".strip() for row in lines}
    ranked = [{one.doc_id: one.score for one in run[query.query_id][:DEPTH]} for query in queries]
    return Collection(queries, ranked, [judged[query.query_id] for query in queries], texts)


def loaded(models: Sequence[str], factors: Sequence[float]) -> Iterator[tuple[str, BiEncoder]]:
    """Yield each encoder, of late interaction with each factor, and its name."""
    for model in models:
        directory = locate(model)
        card = read_card(directory)
        network = load_backend(directory, card)
        for factor in factors if card.kind == "late-interaction" else [1.0]:
            tokens = replace(card.tokens, pool_factor=factor) if card.kind == "late-interaction" else card.tokens
            encoder = build_model(directory, replace(card, tokens=tokens), network)
            if not isinstance(encoder, BiEncoder):
                raise TypeError(f"{model} is no encoder")
            yield card.name, encoder


def measured(encoder: BiEncoder, collection: Collection, records: Mapping[str, VectorRecord]) -> str:
    """Return bytes a passage, and nDCG@10 with some weights of BM25, in a table's cells."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    parts = zip(collection.queries, collection.candidates, collection.relevance, strict=True)
    for query, candidates, relevance in parts:
        named, first = list(candidates), np.array(list(candidates.values()))
        logits = encoder.similarity(
            encoder.encode([query.text], "query").rows[0], stack_vectors([records[one] for one in named])
        )
        for weight in WEIGHTS:
            totals = logits + encoder.card.calibration.scale * weight * first / first.max()
            order = np.argsort(-totals, kind="stable")
            values[weight].append(ndcg([named[at] for at in order], dict(relevance)))
    size = statistics.mean(len(record.to_bytes(b"")) for record in records.values())
    return f"{size:.0f} | {' | '.join(f'{np.mean(values[weight]):.4f}' for weight in WEIGHTS)}"


def quality(folder: Path, models: Sequence[str], factors: Sequence[float]) -> None:
    """Print a table of bytes a passage and nDCG@10; each text is encoded once, and pooled by each factor."""
    collection = read_collection(folder)
    ids = sorted({doc_id for some in collection.candidates for doc_id in some})
    weights = " | ".join(f"BM25 {weight:g}" for weight in WEIGHTS)
    sys.stdout.write(f"| model | bytes | {weights} |\n|{'---|' * (len(WEIGHTS) + 2)}\n")
    for name, encoder in loaded(models, [1.0]):
        rows = encoder.encode([collection.texts[one] for one in ids], "document").rows
        by_tokens = encoder.card.kind == "late-interaction"
        for factor in factors if by_tokens else [1.0]:
            kept = (pool_tokens(row, factor) if by_tokens else row for row in rows)
            records = {
                one: VectorRecord.from_vector(row, ROUNDED_BITS, is_truncated=False)
                for one, row in zip(ids, kept, strict=True)
            }
            sys.stdout.write(f"| {name}, factor {factor:g} | {measured(encoder, collection, records)} |\n")
            sys.stdout.flush()


@contextmanager
def kept_in_a_file(encoder: BiEncoder) -> Iterator[DocumentVectors]:
    """Yield an encoder's source of vectors, which keeps them in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder), max_bytes=1 << 32, ttl_s=86_400)
        vectors = DocumentVectors(encoder, VectorStorage(store, ROUNDED_BITS))
        try:
            yield vectors
        finally:
            vectors.close()
            store.close()


def speed(folder: Path, models: Sequence[str], factors: Sequence[float], repeats: int) -> None:
    """Print a table of times."""
    collection = read_collection(folder)
    texts = list(collection.texts.values())
    known, fresh = texts[: max(DEPTHS)], texts[max(DEPTHS) :]
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as opened:
        sources = {}
        for model, encoder in loaded(models, factors):
            name = f"{model}, factor {encoder.card.tokens.pool_factor:g}"
            sources[name] = opened.enter_context(kept_in_a_file(encoder))
        for model, encoder in loaded(models, [1.0]):
            rows = encoder.encode(known, "document").rows
            for vectors in (source for source in sources.values() if source.encoder.model == model):
                keep(vectors, known, rows)
        for turn in range(repeats):
            query = Query("q", f"{collection.queries[turn % len(collection.queries)].text} {turn}")
            for name, vectors in sources.items():
                for depth in DEPTHS:
                    spent[name][f"{depth} candidates, ms"].append(1000 * searched_s(vectors, query, known[:depth]))
        for start in range(0, BUILDS * BUILT, BUILT):
            for name, vectors in sources.items():
                began = time.perf_counter()
                vectors.build(fresh[start : start + BUILT])
                spent[name]["passages built, 1/s"].append(BUILT / (time.perf_counter() - began))
    columns = list(next(iter(spent.values())))
    sys.stdout.write(f"| model | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n")
    for name, found in spent.items():
        cells = " | ".join(f"{statistics.median(found[column]):.1f}" for column in columns)
        sys.stdout.write(f"| {name} | {cells} |\n")


def searched_s(vectors: DocumentVectors, query: Query, texts: Sequence[str]) -> float:
    """Return the seconds from a query's text to the order of known texts."""
    stage = VectorStage(vectors, depth=len(texts))
    candidates = (Candidate(str(at), text, 1 / at, at) for at, text in enumerate(texts, start=1))
    ranking = Ranking(query, tuple(candidates))
    began = time.perf_counter()
    report = stage.rerank(ranking).reports[-1]
    spent_s = time.perf_counter() - began
    if report.known != len(texts):
        raise RuntimeError(f"some texts had no record: {report}")
    return spent_s


def keep(vectors: DocumentVectors, texts: Sequence[str], rows: Rows) -> None:
    """Write the records of texts, pooled as their model does it."""
    encoder = vectors.encoder
    if isinstance(encoder, LateInteraction):
        rows = [pool_tokens(row, encoder.tokens.pool_factor) for row in rows]
    made = {
        key: VectorRecord.from_vector(row, ROUNDED_BITS, is_truncated=False)
        for key, row in zip(vectors.records.compute_keys(texts), rows, strict=True)
    }
    if vectors.store is not None:
        vectors.records.write(vectors.store, made)


def products(repeats: int) -> None:
    """Print the milliseconds of MaxSim over 1,000 random documents: a product for each, and one for 1,024 rows."""
    draw = np.random.default_rng(0)
    query = draw.standard_normal((32, 96)).astype(np.float32)
    documents = [draw.standard_normal((draw.integers(20, 80), 96)).astype(np.float32) for _ in range(1000)]
    for name, way in (("a product a document", maxsim), ("blocks of 1,024 rows", in_blocks)):
        spent = []
        for _ in range(repeats):
            began = time.perf_counter()
            way(query, documents)
            spent.append(1000 * (time.perf_counter() - began))
        sys.stdout.write(f"{name}: median {statistics.median(spent):.1f} ms, most {max(spent):.1f} ms\n")


def in_blocks(query: Floats, documents: Sequence[Floats]) -> Floats:
    """Return what `maxsim` does, with one product for the documents that fill a block."""
    best, start = [], 0
    lengths = [len(document) for document in documents]
    while start < len(documents):
        end = start + int(np.searchsorted(np.cumsum(lengths[start:]), BLOCK, "right"))
        together = np.concatenate(documents[start:end]) @ query.T
        starts = np.cumsum([0, *lengths[start : end - 1]])
        best.append(np.maximum.reduceat(together, starts, axis=0))
        start = end
    means: Floats = np.concatenate(best).mean(axis=1)
    return means


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("present")
    making.add_argument("source", type=Path)
    making.add_argument("folder", type=Path)
    making.add_argument("--dimensions", type=int, default=0, help="of a random projection; 0 for none")
    for name in ("quality", "speed"):
        measuring = commands.add_parser(name)
        measuring.add_argument("collection", type=Path)
        measuring.add_argument("models", nargs="+")
        measuring.add_argument("--factors", type=float, nargs="+", default=[1.0, 2.0, 4.0])
        measuring.add_argument("--repeats", type=int, default=20)
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
