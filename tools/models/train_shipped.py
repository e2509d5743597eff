"""Make the shipped models from all-MiniLM-L6-v2 and openly licensed data: mono, mono-small, mono-standard, duo.

python tools/models/train_shipped.py all-MiniLM-L6-v2 data work --minutes 9     # again, until it says "all done"

DATA has the folders ``squad`` (train-v1.1.json), ``nq-open-oracle``, ``scifact`` (corpus.jsonl, train), ``medquad`` and
``pubmedqa-l``. Nothing of SQuAD's development set, SciFact's test claims or any other check set is read. 300 of the
training queries are kept aside: 40 of them choose the weights, 100 calibrate. A call stops after ``--minutes``, and the
next goes on; ``--questions 12 --steps 20 --batch 8 --depth 3`` is a trial. Products are in bfloat16 and the networks
compiled, which needs a C++ compiler.

- ``mono``: the bi-encoder's weights in the layout cross-bias, by lists with the documents that it confuses most; then
  the mean of these weights and the start's.
- ``mono-small``: mono on a third of a document's states, by mono's states and soft labels of lists, in two
  trainings one after the other; then the mean of these weights and mono's, on two states of five pieces.
- ``duo``: pairs of documents in the layout cross-bias, from mono, by labels and by what the untrained duo model says of
  them.
- ``mono-standard``: an ordinary ``[CLS] q [SEP] d [SEP]`` classifier from the same start, by mono's logits and labels.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.export.quantise import Recipe as Quantised
from osrerank.scoring.model_files import read_card
from osrerank.training.examples.sources import open_source
from osrerank.training.fit import Request, distill, train
from osrerank.training.recipes import Recipe
from osrerank.training.weights.averaging import average
from shipped_data import prepare

FIRST_PASS_WEIGHTS = {"mono": 8.0, "mono-small": 10.0}
"""Chosen on the queries kept aside (docs/models.md)."""
LABELLED = ("squad-labels", "nq-labels", "scifact", "scifact", "pubmedqa", "medquad-labels")
UNLABELLED = ("squad", "nq", "nq", "scifact", "pubmedqa", "medquad")
SETS = {
    "mono-trained": LABELLED,
    "mono-small-first": UNLABELLED,
    "mono-small-trained": UNLABELLED,
    "duo": ("nq", "scifact", "pubmedqa", "medquad-labels"),
    "mono-standard": LABELLED,
}
"""What a pass reads; a small set twice."""
KNOWN = {
    "base_model": "sentence-transformers/all-MiniLM-L6-v2, from nreimers/MiniLM-L6-H384-uncased",
    "base_data": "1,170,060,424 pairs, by the base model's own card: Reddit comments, S2ORC, WikiAnswers, PAQ, Stack "
    "Exchange, MS MARCO, GOOAQ, Yahoo Answers, Code Search, COCO, SPECTER, SearchQA, ELI5, Flickr30k, AllNLI, Sentence "
    "Compression, Wikihow, Altlex, Quora, Simple Wikipedia, Natural Questions, SQuAD 2.0, TriviaQA",
    "our_data": {
        "squad": "SQuAD v1.1 train, CC BY-SA 4.0",
        "nq": "Natural Questions, CC BY-SA 3.0",
        "scifact": "SciFact train, CC BY 4.0, abstracts ODC-By 1.0",
        "medquad": "MedQuAD, CC BY 4.0",
        "pubmedqa": "PubMedQA labelled, MIT",
    },
    "choice_of_g": "g = -2 was chosen on TREC DL 2019 passages, before any training: the measure on that set is "
    "optimistic",
    "licence": "Apache-2.0",
}
FAST = {"precision": "bf16", "compiled": True, "budget_tokens": 4096, "seed": 1, "measure": "nDCG@10"}
HERE = {**FAST, "layout": "cross-bias", "freeze": "embeddings", "mine_at": 0.0}
MONO = {**HERE, "batch": 64, "depth": 14, "max_tokens": 192, "rate": 3e-5, "steps": 520, "evaluate_every": 260}
PRIOR_SHARE = 0.5
"""Of mono's scores in duo's logits: one of two opinions."""
SHARE = 0.5
"""Of the trained weights in mono, the rest the start's: what Wortsman et al. recommend where nothing tells."""
ADAM = {"warmup": 0.1, "decay_from": "warmup", "bias_correction": True}
SMALL = {
    **HERE,
    **ADAM,
    "layout": "",
    "name": "tinybert-listwise",
    "attention": False,
    "hard": False,
    "batch": 32,
    "depth": 14,
    "max_tokens": 144,
    "rate": 4e-5,
    "warmup": 40,
    "steps": 1150,
    "evaluate_every": 1150,
}
LONGER = {**SMALL, "max_tokens": 128, "rate": 5e-5, "warmup": 60, "steps": 2000, "evaluate_every": 2000, "seed": 2}
"""The second training of mono-small."""
BEFORE = {"mono-small": "started from 1,150 steps of 32 sequences, rate 4e-5, seed 1, on the same data"}
POOL_FACTORS = {"mono-small-first": 3.0, "mono-small": 2.5}
DUO = {
    **HERE,
    **ADAM,
    "name": "duobert",
    "method": "logits",
    "draw": "list",
    "negatives": 3,
    "depth": 8,
    "batch": 48,
    "max_tokens": 288,
    "rate": 2e-5,
    "steps": 200,
    "evaluate_every": 200,
}
STANDARD = {
    **FAST,
    "name": "logits",
    "layout": "standard",
    "head": "logit1",
    "batch": 32,
    "depth": 14,
    "max_tokens": 144,
    "rate": 1e-4,
    "warmup": 60,
    "dropout": 0.0,
    "steps": 1250,
    "evaluate_every": 625,
}
SHIPPED_TOKENS = 512
QUANTISED = {"mono-small": Quantised(outlier_gain=3.0, activations="static")}
"""How a graph is quantised, where not as usual: what is done for each product weighs more where rows are few."""


def main() -> None:
    """Make what is not there yet, for as long as the call may take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path, help="all-MiniLM-L6-v2")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9, help="time for this call")
    parser.add_argument("--steps", type=int, default=0, help="of each training; 0 for the recipes' own")
    parser.add_argument("--batch", type=int, default=0, help="sequences of a step; 0 for the recipes' own")
    parser.add_argument("--depth", type=int, default=12, help="documents that are reordered to choose the weights by")
    parser.add_argument("--questions", type=int, default=30_000, help="of each set at most")
    parser.add_argument("--only", nargs="*", help="data, or names of models")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.minutes * 60
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.start, options.work, options.questions)
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
    files = [work / f"{one}.jsonl" for one in SETS[name]]
    return Request(
        source=source,
        output=work / name,
        recipe=Recipe.of({**recipe, **trial}, "modern"),
        data=[open_source({"examples": str(file)}) for file in files],
        development=open_source({"examples": str(work / "choosing.jsonl")}),
        depth=min(5, options.depth) if name.startswith("duo") else options.depth,
        max_minutes=minutes,
        say=lambda line: print(f"{name}: {line}", flush=True),
    )


def make_mono(options: argparse.Namespace, minutes: float) -> bool:
    """Train mono and average it with its start; return whether it is done."""
    wanted = request(options, options.start, "mono-trained", MONO, minutes)
    if not wanted.output.exists() and train(wanted) is None:
        return False
    if not (options.work / "mono").exists():
        average([wanted.output, options.start], [SHARE, 1 - SHARE], options.work / "mono")
    return True


def make_small(options: argparse.Namespace, minutes: float) -> bool:
    """Distil mono into itself on pooled documents and average it with mono; return whether it is done."""
    ends_s = time.monotonic() + minutes * 60
    mono = options.work / "mono"
    first = request(options, mono, "mono-small-first", SMALL, minutes)
    factor = POOL_FACTORS["mono-small-first"]
    if not first.output.exists() and distill(first, layers=6, pool_factor=factor) is None:
        return False
    wanted = request(options, mono, "mono-small-trained", LONGER, (ends_s - time.monotonic()) / 60)
    if not wanted.output.exists() and distill(wanted, layers=range(1, 7), student=first.output) is None:
        return False
    if not (options.work / "mono-small").exists():
        average([wanted.output, mono], [SHARE, 1 - SHARE], options.work / "mono-small")
    return True


def make_standard(options: argparse.Namespace, minutes: float) -> bool:
    """Distil mono's logits into a classifier of the papers' form; return whether it is done."""
    wanted = request(options, options.work / "mono", "mono-standard", STANDARD, minutes)
    return wanted.output.exists() or distill(wanted, student=options.start) is not None


def make_duo(options: argparse.Namespace, minutes: float) -> bool:
    """Train duo from mono; return whether it is done."""
    mono, untrained = options.work / "mono", options.work / "duo-untrained"
    if not untrained.exists():
        export_model(mono, untrained, ExportOptions(kind="duo", precision="fp32", keep_weights=True))
    wanted = request(options, untrained, "duo", DUO, minutes)
    return wanted.output.exists() or distill(wanted, student=mono) is not None


MODELS: dict[str, Callable[[argparse.Namespace, float], bool]] = {
    "mono": make_mono,
    "mono-small": make_small,
    "duo": make_duo,
    "mono-standard": make_standard,
}


def finish(work: Path, name: str) -> None:
    """Export a trained model as int8 that reads 512 tokens, mono ones with a map to probabilities."""
    card = read_card(work / name)
    prior = PRIOR_SHARE if card.kind == "duo" else 0.0
    write_card(work / name, replace(card, max_tokens=SHIPPED_TOKENS, prior_share=prior))
    provenance = {**card.provenance, **KNOWN}
    if "average_of" in card.provenance:
        provenance["choice_of_share"] = "a half, as Wortsman et al. recommend (arXiv 2109.01903)"
    if name in BEFORE:
        provenance["before_our_training"] = BEFORE[name]
    if card.kind == "mono":
        provenance["calibration_data"] = "100 of the SQuAD and SciFact train queries kept aside, BM25's top 20"
    weight = FIRST_PASS_WEIGHTS.get(name, 0.0)
    options = ExportOptions(
        name=f"osrerank/{name}",
        kind=card.kind,
        pool_factor=POOL_FACTORS.get(name),
        precision="int8",
        recipe=QUANTISED.get(name, Quantised()),
        first_pass_weight=weight,
        provenance=provenance,
    )
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
