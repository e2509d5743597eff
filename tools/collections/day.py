"""Try the commands that lead to a configuration, as on a first day: does any of them leave a user worse off?

::

    python tools/collections/day.py day medquad.jsonl FOLDER
    python tools/collections/day.py estimates medquad.jsonl scifact/corpus.jsonl FOLDER

``day`` indexes the answers of 3,000 entries of MedQuAD in the embedded engine, builds their vectors, and asks 30 of the
questions about diseases that at least three of the pages are about. The rule of the judgments: the answer to the
question is relevant, and no other page, not even of the same disease. A row has what a command wrote, nDCG@10 and the
milliseconds of a warm search. A FOLDER that exists is used again, with its vectors.

``estimates`` compares the estimated time of a build with the time that it then takes, for short (titles), long
(answers) and mixed texts, each in four parts, so that a load that changes meets estimates and builds alike. The
processor's time does not depend on the load.
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

PAGES, QUERIES, ABOUT, PARTS, SEED = 3_000, 30, 3, 4, 55
Judged = dict[str, dict[str, int]]
BODY = {"mappings": {"properties": {"text": {"type": "text"}}}}


def entries(file: Path, count: int) -> list[dict[str, str]]:
    """Return entries of a file of JSON lines, the same ones for the same count."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return random.Random(SEED).sample(rows, count)


def fill(url: str, index: str, texts: dict[str, str]) -> None:
    """Index texts by id."""
    from osrerank import connect  # noqa: PLC0415 - after the environment is set

    with connect(url, timeout=600) as client:
        client.indices.create(index=index, body=BODY)
        for doc_id, text in texts.items():
            client.index(index=index, id=doc_id, body={"text": text})
        client.indices.refresh(index=index)


def run(url: str, *arguments: str) -> str:
    """Run a command and return what it says, with the time that it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "osrerank", "--url", url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    print(f"$ osrerank {' '.join(arguments)}    # {time.monotonic() - began:,.0f} s, exit code {done.returncode}")
    print("\n".join(f"    {line}" for line in (done.stdout + done.stderr).splitlines()), flush=True)
    return done.stdout


def measure(
    url: str, name: str, settings: Path | None, queries: dict[str, str], qrels: Judged, *, rerank: bool
) -> None:
    """Search every query twice, and print nDCG@10 and the median time of the second searches."""
    from osrerank import connect  # noqa: PLC0415 - see fill

    os.environ.pop("OSRERANK_SETTINGS_FILE", None)
    written = "nothing"
    if settings is not None and settings.exists():
        os.environ["OSRERANK_SETTINGS_FILE"] = str(settings)
        lines = settings.read_text("utf-8").splitlines()
        written = "; ".join(line for line in lines if line and line[0] not in "#[")
    run_of, took = [], []
    with connect(url) as client:
        for number, (query_id, text) in enumerate([*queries.items(), *queries.items()]):
            began = time.perf_counter()
            hits = client.search(text, index="docs", size=10, rerank=rerank)["hits"]["hits"]
            if number >= len(queries):
                took.append(1000 * (time.perf_counter() - began))
                run_of += [ScoredDoc(query_id, hit["_id"], -place) for place, hit in enumerate(hits)]
    value = ir_measures.calc_aggregate([nDCG @ 10], qrels, run_of)[nDCG @ 10]
    print(f"| {name} | {written} | {value:.4f} | {median(took):.0f} |", flush=True)


def day(file: Path, folder: Path) -> None:
    """Print the commands' output, and a table of what they lead to."""
    url = f"embedded:{folder / 'engine'}"
    rows = entries(file, PAGES)
    pages = Counter(row["focus"] for row in rows)
    asked = [row for row in rows if row["qtype"] != "information" and pages[row["focus"]] >= ABOUT][:QUERIES]
    queries = {row["id"]: row["question"] for row in asked}
    qrels = {row["id"]: {row["id"]: 1} for row in asked}
    (folder / "queries.tsv").write_text("".join(f"{query_id}\t{text}\n" for query_id, text in queries.items()))
    lines = (f"{query_id} 0 {doc_id} {grade}\n" for query_id, of in qrels.items() for doc_id, grade in of.items())
    (folder / "qrels.txt").write_text("".join(lines))
    files = ["--queries", str(folder / "queries.tsv"), "--qrels", str(folder / "qrels.txt")]
    if not (folder / "engine").exists():
        fill(url, "docs", {row["id"]: row["answer"] for row in rows})
        run(url, "init", "--index", "docs", "--output", str(folder / "cold.toml"))
        run(url, "vectors", "build", "--index", "docs")
    init, advice = folder / "init.toml", folder / "advice.toml"
    advice.unlink(missing_ok=True)
    run(url, "init", "--index", "docs", "--force", "--output", str(init))
    run(url, "advise", "--index", "docs", *files, "--output", str(advice))
    print("| | written | nDCG@10 | ms |\n|---|---|---|---|")
    measure(url, "BM25", None, queries, qrels, rerank=False)
    for name, settings in [("default", None), ("init", init), ("advise", advice)]:
        measure(url, name, settings, queries, qrels, rerank=True)


def estimates(medquad: Path, scifact: Path, folder: Path) -> None:
    """Print a table of estimated and true seconds of builds."""
    titles = [(row["id"], row["title"]) for row in entries(scifact, 1_360)]
    answers = [(row["id"], row["answer"]) for row in entries(medquad, 400)]
    short, long = titles[:1_200], answers[:240]
    mixed = [one for some in zip(titles[1_200:1_360], answers[240:400], strict=True) for one in some]
    print("| texts | documents | estimated s | true s | ratio | estimated CPU s | true CPU s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, texts in [("short", short), ("long", long), ("mixed", mixed)]:
        parts = []
        for part in range(PARTS):
            url = f"embedded:{folder / name}-{part}"
            fill(url, name, dict(texts[part::PARTS]))
            parts.append(estimate_and_build(url, name))
        wall, true, cpu, true_cpu = (sum(times) for times in zip(*parts, strict=True))
        cells = f"{wall:.0f} | {true:.0f} | {wall / true:.2f} | {cpu:.0f} | {true_cpu:.0f} | {cpu / true_cpu:.2f}"
        print(f"| {name} | {len(texts)} | {cells} |", flush=True)


def estimate_and_build(url: str, index: str) -> tuple[float, float, float, float]:
    """Return the estimated and the true seconds of a build, and the same of the processor."""
    from osrerank import connect  # noqa: PLC0415 - see fill
    from osrerank.indexing.build import build_vectors  # noqa: PLC0415 - likewise
    from osrerank.indexing.estimate import estimate  # noqa: PLC0415 - likewise

    with connect(url, warm=True) as client:
        began, used = time.monotonic(), time.process_time()
        found = estimate(client, index)
        cpu = found.build_s * (time.process_time() - used) / (time.monotonic() - began)
        began, used = time.monotonic(), time.process_time()
        build_vectors(client, index)
        return found.build_s, time.monotonic() - began, cpu, time.process_time() - used


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["day", "estimates"])
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    given.files[-1].mkdir(parents=True, exist_ok=True)
    os.environ["OSRERANK_VECTORS_FOLDER"] = str(given.files[-1] / "vectors")
    if given.what == "day":
        day(*given.files)
    else:
        estimates(*given.files)
