"""Make the shipped models from all-MiniLM-L6-v2 and openly licensed data: mono, mono-small, mono-standard, duo.

python docs/examples/train_shipped.py all-MiniLM-L6-v2 data work --minutes 9     # again, until it says "all done"

DATA has the folders ``squad`` (train-v1.1.json), ``nq-open-oracle``, ``scifact`` (corpus.jsonl, train), ``medquad`` and
``pubmedqa-l``. Nothing of SQuAD's development set, SciFact's test claims or any other check set is read. 300 of the
training queries are kept aside to choose the weights by and to calibrate. A call stops after ``--minutes``, and the
next goes on; ``--questions 12 --steps 20
--batch 8 --depth 3`` is a trial. With a CUDA device the matrix products are in bfloat16.

- ``mono``: the bi-encoder's weights in the layout cross-bias, by lists with negatives mined once.
- ``mono-small``: three of its six layers, by Simplified TinyBERT over lists.
- ``mono-standard``: an ordinary ``[CLS] q [SEP] d [SEP]`` classifier from the same start, by mono's logits and labels.
- ``duo``: pairs of documents, from mono-standard.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from osrerank.errors import EvaluationError
from osrerank.evaluation.queries import read_queries
from osrerank.evaluation.trec import read_qrels
from osrerank.scoring.model import read_card
from osrerank.training.examples import Example, read_examples, text_of, write_examples
from osrerank.training.export import ExportOptions, export_model
from osrerank.training.first_pass import from_index, from_questions, temporary_search
from osrerank.training.fit import Request, distill, train
from osrerank.training.recipes import Recipe
from osrerank.training.sources import open_source
from osrerank.types import Qrels, Query

KEPT_ASIDE = {"squad": 200, "scifact": 100}
REPEATED = {"squad": 1, "nq": 3, "scifact": 6, "medquad": 1, "pubmedqa": 2}
"""How often a pass reads each set: small ones more often."""
LICENCES = {
    "squad": "SQuAD v1.1 train, CC BY-SA 4.0",
    "nq": "Natural Questions, CC BY-SA 3.0",
    "scifact": "SciFact train, CC BY 4.0, abstracts ODC-By 1.0",
    "medquad": "MedQuAD, CC BY 4.0",
    "pubmedqa": "PubMedQA labelled, MIT",
}
COMMON = {"max_tokens": 256, "seed": 1, "measure": "nDCG@10"}
MONO = {**COMMON, "layout": "cross-bias", "rate": 2e-5, "freeze": "embeddings", "batch": 64, "epochs": 1.0}
SMALL = {**COMMON, "name": "tinybert-listwise", "rate": 1e-4, "freeze": "embeddings", "epochs": 2.0}
STANDARD = {**COMMON, "name": "logits", "layout": "standard", "rate": 1e-4, "epochs": 2.0}
DUO = {**COMMON, "name": "duobert", "rate": 3e-5, "batch": 64, "steps": 0, "epochs": 1.0, "warmup": 0.1, "depth": 10}


def documents_of(folder: Path) -> dict[str, str]:
    """Return the documents of a ``corpus.jsonl`` by id, title before text."""
    lines = (json.loads(line) for line in (folder / "corpus.jsonl").open(encoding="utf-8"))
    return {line["id"]: text_of(line) for line in lines}


def paragraphs(data: Path) -> dict[str, str]:
    """Return SQuAD's train paragraphs: other documents for a collection that has relevant ones only."""
    articles = json.loads((data / "squad" / "train-v1.1.json").read_bytes())["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    return {f"squad-{number}": text for number, text in enumerate(contexts)}


def found(documents: dict[str, str], queries: Iterable[Query], qrels: Qrels) -> Iterator[Example]:
    """Yield BM25's first thirty for each query."""
    with temporary_search(documents.items(), 30) as search:
        yield from from_index(search, queries, qrels)


def nq(data: Path) -> Iterator[Example]:
    """Yield Natural Questions, with SQuAD's paragraphs among the documents."""
    folder = data / "nq-open-oracle"
    documents = {**documents_of(folder), **paragraphs(data)}
    yield from found(documents, read_queries(folder / "queries.tsv"), read_qrels(folder / "qrels.txt"))


def collection(folder: Path, split: Path) -> Iterator[Example]:
    """Yield a collection in corpus.jsonl, queries.tsv, qrels.txt."""
    yield from found(documents_of(folder), read_queries(split / "queries.tsv"), read_qrels(split / "qrels.txt"))


def medquad(data: Path, questions: int) -> Iterator[Example]:
    """Yield so many of MedQuAD's questions, each with its answer; an equal question's answers are relevant too."""
    lines = [json.loads(line) for line in (data / "medquad" / "medquad.jsonl").open(encoding="utf-8")]
    answers: dict[str, dict[str, int]] = {}
    for line in lines:
        answers.setdefault(line["question"], {})[line["id"]] = 1
    asked = random.Random(1).sample(sorted(answers), min(questions, len(answers)))
    queries = [Query(str(number), question) for number, question in enumerate(asked)]
    qrels = Qrels({query.query_id: answers[query.text] for query in queries})
    yield from found({line["id"]: line["answer"] for line in lines}, queries, qrels)


def prepare(data: Path, work: Path, questions: int) -> None:
    """Write the sets' examples, some of them aside, each file once."""
    makers: dict[str, Callable[[], Iterable[Example]]] = {
        "squad": lambda: from_questions(data / "squad" / "train-v1.1.json", depth=30, questions=questions),
        "nq": lambda: nq(data),
        "scifact": lambda: collection(data / "scifact", data / "scifact" / "train"),
        "medquad": lambda: medquad(data, min(4000, questions)),
        "pubmedqa": lambda: collection(data / "pubmedqa-l", data / "pubmedqa-l"),
    }
    aside: list[Example] = []
    for name, make in makers.items():
        whole, file = work / f"{name}.all.jsonl", work / f"{name}.jsonl"
        if not whole.exists():
            write_examples(whole, itertools.islice(make(), questions))
        examples = list(read_examples(whole))
        random.Random(1).shuffle(examples)
        kept = min(KEPT_ASIDE.get(name, 0), len(examples) // 3)
        aside += examples[:kept]
        if not file.exists():
            print(f"{name}: {write_examples(file, examples[kept:])} examples, {kept} kept aside", flush=True)
    write_examples(work / "dev.jsonl", aside)
    calibration_files(aside, work)


def calibration_files(examples: Iterable[Example], work: Path) -> None:
    """Write the examples kept aside as candidates with judgments, for ``export``."""
    with (work / "dev.candidates.jsonl").open("w") as candidates, (work / "dev.qrels").open("w") as qrels:
        for number, example in enumerate(examples):
            documents = [{"doc_id": f"d{place}", "text": text} for place, text in enumerate(example.documents)]
            line = {"query_id": str(number), "query": example.query, "candidates": documents}
            candidates.write(f"{json.dumps(line)}\n")
            qrels.writelines(
                f"{number} 0 d{place} {grade}\n" for place, grade in enumerate(example.relevance) if grade > 0
            )


def main() -> None:
    """Make what is not there yet, for as long as the call may take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path, help="all-MiniLM-L6-v2")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9, help="time for this call")
    parser.add_argument("--steps", type=int, default=0, help="of each training; 0 for the recipes' own")
    parser.add_argument("--batch", type=int, default=0, help="sequences of a step; 0 for the recipes' own")
    parser.add_argument("--depth", type=int, default=30, help="documents that are reordered to choose the weights by")
    parser.add_argument("--questions", type=int, default=30_000, help="of each set at most")
    parser.add_argument("--only", nargs="*", help="data, or names of models")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.minutes * 60
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.work, options.questions)
    for name, make in MODELS.items():
        if options.only is not None and name not in options.only:
            continue
        if (options.work / f"{name}-int8").exists():
            continue
        left = (ends_s - time.monotonic()) / 60
        if left <= 0 or not make(options, left):
            print("the time is over: call again", flush=True)
            return
        finish(options.work, name)
    print("all done", flush=True)


def request(options: argparse.Namespace, source: Path, name: str, recipe: dict[str, Any], minutes: float) -> Request:
    """Return the training of a model on all sets."""
    work: Path = options.work
    trial = {field: getattr(options, field) for field in ("steps", "batch") if getattr(options, field)}
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    data = [
        open_source({"examples": str(work / f"{one}.jsonl")}) for one, times in REPEATED.items() for _ in range(times)
    ]
    return Request(
        source=source,
        output=work / name,
        recipe=Recipe.of({**recipe, **trial, "precision": precision}, "modern"),
        data=data,
        development=open_source({"examples": str(work / "dev.jsonl")}),
        depth=min(10, options.depth) if name == "duo" else options.depth,
        max_minutes=minutes,
        say=lambda line: print(f"{name}: {line}", flush=True),
    )


def make_mono(options: argparse.Namespace, minutes: float) -> bool:
    """Train mono; return whether it is done."""
    wanted = request(options, options.start, "mono", MONO, minutes)
    return wanted.output.exists() or train(wanted) is not None


def make_small(options: argparse.Namespace, minutes: float) -> bool:
    """Distil mono into three layers; return whether it is done."""
    wanted = request(options, options.work / "mono", "mono-small", SMALL, minutes)
    return wanted.output.exists() or distill(wanted, layers=3) is not None


def make_standard(options: argparse.Namespace, minutes: float) -> bool:
    """Distil mono's logits into a classifier of the papers' form; return whether it is done."""
    wanted = request(options, options.work / "mono", "mono-standard", STANDARD, minutes)
    return wanted.output.exists() or distill(wanted, student=options.start) is not None


def make_duo(options: argparse.Namespace, minutes: float) -> bool:
    """Train duo from mono-standard; return whether it is done."""
    wanted = request(options, options.work / "mono-standard", "duo", DUO, minutes)
    return wanted.output.exists() or train(wanted, "duo") is not None


MODELS: dict[str, Callable[[argparse.Namespace, float], bool]] = {
    "mono": make_mono,
    "mono-small": make_small,
    "mono-standard": make_standard,
    "duo": make_duo,
}


def finish(work: Path, name: str) -> None:
    """Export a trained model as int8, mono ones with a map to probabilities."""
    card = read_card(work / name)
    provenance = {**card.provenance, "licences": LICENCES, "base_data": "see osrerank/mono: MS MARCO is among it"}
    options = ExportOptions(name=f"osrerank/{name}", precision="int8", provenance=provenance)
    calibrate = (work / "dev.candidates.jsonl", work / "dev.qrels") if card.kind == "mono" else None
    try:
        export_model(work / name, work / f"{name}-int8", options, calibrate=calibrate)
    except EvaluationError as error:  # of a trial, which has learnt nothing
        print(f"{name}: no map to probabilities: {error}", flush=True)
        export_model(work / name, work / f"{name}-int8", options)
    size = sum(file.stat().st_size for file in (work / f"{name}-int8").rglob("*") if file.is_file())
    print(f"{name}: exported, {size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
