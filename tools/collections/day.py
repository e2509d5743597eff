"""Run the commands that write a configuration, and measure the searches with it.

::

    python tools/collections/day.py day medquad.jsonl FOLDER
    python tools/collections/day.py estimates medquad.jsonl scifact/corpus.jsonl FOLDER

``day`` runs the commands of a first day: it indexes the answers of 3,000 entries of MedQuAD in the embedded engine,
builds their vectors, and runs ``init`` and ``advise``. Then it searches for 30 questions about diseases with at least
three pages. Only the question's own answer is relevant. A row has the settings that a command wrote, nDCG@10 and the
median time of a warm search. An existing FOLDER is used again, with its vectors.

``estimates`` compares the estimated and the true time of vector builds, for short (titles), long (answers) and mixed
texts. Each is built in four parts, so that changes of the machine's load affect estimates and builds alike. Processor
time does not depend on the load.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

import ir_measures
from ir_measures import ScoredDoc, nDCG

PAGES = 3_000
QUERIES = 30
MIN_PAGES_PER_DISEASE = 3
PARTS = 4
SEED = 55
Judgments = dict[str, dict[str, int]]
INDEX_BODY = {"mappings": {"properties": {"text": {"type": "text"}}}}


def sample_entries(file: Path, count: int) -> list[dict[str, str]]:
    """Return a sample of the entries of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return random.Random(SEED).sample(rows, count)


def index_texts(url: str, index: str, texts: dict[str, str]) -> None:
    """Create an index of texts, given by id."""
    from osrerank import connect  # noqa: PLC0415 - after the environment is set

    with connect(url, timeout=600) as client:
        client.indices.create(index=index, body=INDEX_BODY)
        for doc_id, text in texts.items():
            client.index(index=index, id=doc_id, body={"text": text})
        client.indices.refresh(index=index)


def run_command(url: str, *arguments: str) -> None:
    """Run a command, and print its time, exit code and output."""
    start_s = time.monotonic()
    command = [sys.executable, "-m", "osrerank", "--url", url, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    print(f"$ osrerank {' '.join(arguments)}    # {time.monotonic() - start_s:,.0f} s, exit code {ended.returncode}")
    print("\n".join(f"    {line}" for line in (ended.stdout + ended.stderr).splitlines()), flush=True)


def measure(
    url: str, name: str, settings: Path | None, queries: dict[str, str], qrels: Judgments, *, rerank: bool
) -> None:
    """Search every query twice, and print nDCG@10 and the median time of the second searches."""
    from osrerank import connect  # noqa: PLC0415 - see index_texts

    os.environ.pop("OSRERANK_SETTINGS_FILE", None)
    options = "nothing"
    if settings is not None and settings.exists():
        os.environ["OSRERANK_SETTINGS_FILE"] = str(settings)
        lines = settings.read_text("utf-8").splitlines()
        options = "; ".join(line for line in lines if line and line[0] not in "#[")
    scored_hits, times_ms = [], []
    with connect(url) as client:
        for number, (query_id, text) in enumerate([*queries.items(), *queries.items()]):
            start_s = time.perf_counter()
            hits = client.search(text, index="docs", size=10, rerank=rerank)["hits"]["hits"]
            if number >= len(queries):
                times_ms.append(1000 * (time.perf_counter() - start_s))
                scored_hits += [ScoredDoc(query_id, hit["_id"], -rank) for rank, hit in enumerate(hits)]
    value = ir_measures.calc_aggregate([nDCG @ 10], qrels, scored_hits)[nDCG @ 10]
    print(f"| {name} | {options} | {value:.4f} | {median(times_ms):.0f} |", flush=True)


def day(file: Path, folder: Path) -> None:
    """Print the commands' output, and a table of the searches with each configuration."""
    url = f"embedded:{folder / 'engine'}"
    rows = sample_entries(file, PAGES)
    n_pages = Counter(row["focus"] for row in rows)
    candidates = (row for row in rows if row["qtype"] != "information")
    query_rows = [row for row in candidates if n_pages[row["focus"]] >= MIN_PAGES_PER_DISEASE][:QUERIES]
    queries = {row["id"]: row["question"] for row in query_rows}
    qrels = {query_id: {query_id: 1} for query_id in queries}
    (folder / "queries.tsv").write_text("".join(f"{query_id}\t{text}\n" for query_id, text in queries.items()))
    (folder / "qrels.txt").write_text("".join(f"{query_id} 0 {query_id} 1\n" for query_id in queries))
    files = ["--queries", str(folder / "queries.tsv"), "--qrels", str(folder / "qrels.txt")]
    if not (folder / "engine").exists():
        index_texts(url, "docs", {row["id"]: row["answer"] for row in rows})
        run_command(url, "init", "--index", "docs", "--output", str(folder / "cold.toml"))
        run_command(url, "vectors", "build", "--index", "docs")
    init, advice = folder / "init.toml", folder / "advice.toml"
    advice.unlink(missing_ok=True)
    run_command(url, "init", "--index", "docs", "--force", "--output", str(init))
    run_command(url, "advise", "--index", "docs", *files, "--output", str(advice))
    print("| | settings | nDCG@10 | ms |\n|---|---|---|---|")
    measure(url, "BM25", None, queries, qrels, rerank=False)
    for name, settings in [("default", None), ("init", init), ("advise", advice)]:
        measure(url, name, settings, queries, qrels, rerank=True)


def estimates(medquad: Path, scifact: Path, folder: Path) -> None:
    """Print a table of the estimated and the true times of builds, in seconds."""
    titles = [(row["id"], row["title"]) for row in sample_entries(scifact, 1_360)]
    answers = [(row["id"], row["answer"]) for row in sample_entries(medquad, 400)]
    short, long = titles[:1_200], answers[:240]
    mixed = [text for pair in zip(titles[1_200:1_360], answers[240:400], strict=True) for text in pair]
    print("| texts | documents | estimated s | true s | ratio | estimated CPU s | true CPU s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, texts in [("short", short), ("long", long), ("mixed", mixed)]:
        parts = []
        for part in range(PARTS):
            url = f"embedded:{folder / name}-{part}"
            index_texts(url, name, dict(texts[part::PARTS]))
            parts.append(estimate_and_build(url, name))
        wall, true, cpu, true_cpu = (sum(times) for times in zip(*parts, strict=True))
        cells = f"{wall:.0f} | {true:.0f} | {wall / true:.2f} | {cpu:.0f} | {true_cpu:.0f} | {cpu / true_cpu:.2f}"
        print(f"| {name} | {len(texts)} | {cells} |", flush=True)


def estimate_and_build(url: str, index: str) -> tuple[float, float, float, float]:
    """Return the estimated and the true wall time of a build, then of the processor, in seconds."""
    from osrerank import connect  # noqa: PLC0415 - see index_texts
    from osrerank.indexing.build import build_vectors  # noqa: PLC0415 - see index_texts
    from osrerank.indexing.estimate import estimate  # noqa: PLC0415 - see index_texts

    with connect(url, warm=True) as client:
        start_s, cpu_start_s = time.monotonic(), time.process_time()
        build_s = estimate(client, index).build_s
        cpu_share = (time.process_time() - cpu_start_s) / (time.monotonic() - start_s)
        start_s, cpu_start_s = time.monotonic(), time.process_time()
        build_vectors(client, index)
        return build_s, time.monotonic() - start_s, build_s * cpu_share, time.process_time() - cpu_start_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["day", "estimates"])
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    options.files[-1].mkdir(parents=True, exist_ok=True)
    os.environ["OSRERANK_VECTORS_FOLDER"] = str(options.files[-1] / "vectors")
    if options.command == "day":
        day(*options.files)
    else:
        estimates(*options.files)
