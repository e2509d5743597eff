"""Short trainings that differ in one thing each, and what they are worth on queries kept aside, as Markdown tables.

python tools/models/train_shipped.py all-MiniLM-L6-v2 data work --only data      # makes the examples
python tools/models/ablations.py all-MiniLM-L6-v2 work --seed 1                  # all; or --only loss size

Each is a command of its own, printed before it runs; one that is done is not run again, one that was stopped goes on.
The measure is nDCG@10 over the first 200 of ``work/dev.jsonl``, SQuAD and SciFact training queries that no training
reads, of the 12 best documents of BM25 in the order of the last weights.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.training.curve import read_curve
from osrerank.training.examples.lists import Example, read_examples, write_examples

KEPT, DEPTH = 200, 12
SETS = ("squad-labels", "nq-labels", "scifact", "pubmedqa", "medquad-labels")
BM25 = tuple(f"{name}.bm25" for name in SETS)
SIZES = (25, 100, 400)
SHORT = {"steps": "100", "batch": "32", "depth": "14", "max_tokens": "96", "rate": "5e-5", "freeze": "embeddings"}
QUICK = {"precision": "bf16", "compiled": "true", "budget_tokens": "4096", "measure": "nDCG@10"}
LISTS = {"preset": "modern", "layout": "cross-bias", "mine_at": "0", **SHORT, **QUICK}
STANDARD = {**LISTS, "layout": "standard"}
PAIRS = {"preset": "monobert", "head": "", "layout": "standard", "warmup": "0.1", "decay_from": "warmup"}
MASKED = {"preset": "masked", "steps": "100", "batch": "32", "max_tokens": "96", "freeze": "embeddings"}


@dataclass(frozen=True, slots=True)
class Ablation:
    """One training.

    Attributes:
        what: how it differs, for the table.
        recipe: its recipe, the preset's name among the fields.
        sets: files of examples.
        start: what it starts from: the bi-encoder where empty, else the directory of another training here.
    """

    what: str
    recipe: dict[str, str]
    sets: Sequence[str] = SETS
    start: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Trainings that are compared.

    Attributes:
        title: of the table.
        members: by the name of their directories.
    """

    title: str
    members: dict[str, Ablation]


BASE = Ablation("the base: lists of 1 + 7, bi-encoder's negatives, all five sets", LISTS)
GROUPS = {
    "loss": Group(
        "Loss, in the standard layout",
        {
            "standard": Ablation("softmax over lists of 1 + 7", STANDARD),
            "pointwise": Ablation("cross-entropy of single pairs, balanced", {**STANDARD, **PAIRS}),
        },
    ),
    "negatives": Group(
        "Negatives",
        {
            "base": BASE,
            "bm25": Ablation("BM25's top 30", {**LISTS, "depth": "30"}, BM25),
            "mined": Ablation("BM25's top 30, mined after half", {**LISTS, "depth": "30", "mine_at": "0.5"}, BM25),
        },
    ),
    "data": Group(
        "Data",
        {
            "base": BASE,
            "squad": Ablation("SQuAD alone", LISTS, ("squad-labels",)),
            "scifact": Ablation("SciFact alone", LISTS, ("scifact",)),
            "others": Ablation(
                "without SQuAD and SciFact, whose queries are kept", LISTS, ("nq-labels", "pubmedqa", "medquad-labels")
            ),
        },
    ),
    "size": Group(
        "Training set",
        {
            **{f"size-{size}": Ablation(f"{size} queries", LISTS, (f"some-{size}",)) for size in SIZES},
            "base": BASE,
        },
    ),
    "start": Group(
        "Start",
        {
            "base": BASE,
            "seed": Ablation("the base, another seed", {**LISTS, "seed": "2"}),
            "standard": Ablation("the same weights in the standard layout, with a new head", STANDARD),
            "nothing": Ablation("random weights in the standard layout", STANDARD, start="fresh"),
        },
    ),
    "pretrain": Group(
        "Pre-training on the collection",
        {
            "standard": Ablation("without", STANDARD),
            "pretrained": Ablation("100 steps of masked language modelling before", STANDARD, start="masked"),
        },
    ),
}


def main() -> None:
    """Run what is not done and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=Path, help="all-MiniLM-L6-v2")
    parser.add_argument("work", type=Path, help="of train_shipped.py")
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--seed", default="1")
    parser.add_argument("--steps", default="", help="of each, for a trial")
    options = parser.parse_args()
    prepare(options.work)
    for name in options.only:
        print(table(GROUPS[name], [run(options, *member) for member in GROUPS[name].members.items()]), flush=True)


def prepare(work: Path) -> None:
    """Write the kept-aside queries, the same examples with BM25's negatives, and beginnings of the whole."""
    folder = work / "ablations"
    folder.mkdir(exist_ok=True)
    if (folder / "kept.jsonl").exists():
        return
    learnt = {name: list(read_examples(work / f"{name}.jsonl")) for name in SETS}
    for name, examples in learnt.items():
        write_examples(folder / f"{name}.jsonl", examples)
        wanted = {key(example) for example in examples}
        whole = read_examples(work / f"{name.removesuffix('-labels')}.all.jsonl")
        write_examples(folder / f"{name}.bm25.jsonl", (example for example in whole if key(example) in wanted))
    mixed = [one for row in itertools.zip_longest(*learnt.values()) for one in row if one is not None]
    for size in SIZES:
        write_examples(folder / f"some-{size}.jsonl", mixed[:size])
    write_examples(folder / "kept.jsonl", itertools.islice(read_examples(work / "dev.jsonl"), KEPT))


def key(example: Example) -> tuple[str, str]:
    """Return what says that two examples are of one question."""
    return example.query, min(example.relevant, default="")


def run(options: argparse.Namespace, name: str, ablation: Ablation) -> tuple[str, float]:
    """Run a training where it is not done; return how it differs and its measure."""
    folder = options.work / "ablations"
    output = folder / f"{name}-{options.seed}"
    if not output.exists():
        recipe = {**ablation.recipe, **({"steps": options.steps} if options.steps else {})}
        recipe = {"seed": options.seed, **recipe, "evaluate_every": recipe["steps"]}
        sources = [word for one in ablation.sets for word in ("--data", f"examples={folder / one}.jsonl")]
        osrerank("train", "mono", "--init-from", start(options, ablation), *sources,
                 "--dev", f"examples={folder / 'kept.jsonl'}", "--dev-depth", DEPTH,
                 "--recipe", spelled(recipe), "--output", output)  # fmt: skip
    rows = read_curve(output / "curve.csv")
    return ablation.what, float(next(row["measure"] for row in reversed(rows) if row["measure"]))


def start(options: argparse.Namespace, ablation: Ablation) -> Path:
    """Return what a training starts from, made where it is not there yet."""
    begun: Path = options.start
    made: Path = options.work / "ablations" / ablation.start
    if not ablation.start:
        return begun
    if not made.exists():
        corpus = made.parent / "corpus.jsonl"
        if not corpus.exists():
            write_corpus(corpus, (made.parent / f"{one}.jsonl" for one in SETS))
        fresh = ["--new", "layers=6,hidden=384,vocabulary=30522"] if ablation.start == "fresh" else []
        begin = fresh or ["--init-from", options.start]
        recipe = {**MASKED, **({"steps": "1", "freeze": ""} if fresh else {})}
        osrerank("pretrain", *begin, "--corpus", corpus, "--recipe", spelled(recipe), "--output", made)
    return made


def write_corpus(file: Path, examples: Iterable[Path]) -> None:
    """Write the documents of the examples as a collection."""
    texts = sorted({text for one in examples for example in read_examples(one) for text in example.documents})
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(f"{json.dumps({'id': str(number), 'text': text})}\n" for number, text in enumerate(texts))


def spelled(recipe: dict[str, str]) -> str:
    """Return a recipe as ``--recipe`` takes it."""
    fields = dict(recipe)
    return ",".join([fields.pop("preset"), *(f"{name}={value}" for name, value in fields.items() if value)])


def osrerank(*words: object) -> None:
    """Run a command of osrerank, shown first."""
    command = ["osrerank", *map(str, words)]
    print(" ".join(command), flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True)  # noqa: S603 - our own words


def table(group: Group, rows: Iterable[tuple[str, float]]) -> str:
    """Return a group as a Markdown table."""
    head = [f"| {group.title} | nDCG@10 |", "|---|---|"]
    return "\n".join([*head, *(f"| {what} | {measure:.4f} |" for what, measure in rows), ""])


if __name__ == "__main__":
    main()
