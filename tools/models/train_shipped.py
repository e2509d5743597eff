"""Make the shipped models from all-MiniLM-L6-v2 and openly licensed data, each by its recipe in ``recipes``.

python tools/models/train_shipped.py all-MiniLM-L6-v2 data work --minutes 9     # again, until it says "all done"

DATA has the folders ``squad`` (train-v1.1.json), ``nq-open-oracle``, ``scifact`` (corpus.jsonl, train), ``medquad`` and
``pubmedqa-l``. Nothing of SQuAD's development set, SciFact's test claims or any other check set is read. 300 of the
training queries are kept aside: 40 of them choose the weights, 100 calibrate. A call stops after ``--minutes``, and the
next one resumes; ``--questions 12 --steps 20 --batch 8 --depth 3`` is a trial. Products are in bfloat16 and the
networks compiled, which needs a C++ compiler.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from osrerank.errors import EvaluationError
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.export.quantise import Recipe as Quantised
from osrerank.scoring.model_files import read_card
from osrerank.training.examples.sources import open_source
from osrerank.training.fit import Request, distill, train
from osrerank.training.weights.averaging import average
from shipped_data import prepare
from shipped_recipes import MODELS, START, ShippedModel, Training, read_model


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
    deadline = time.monotonic() + options.minutes * 60
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options.data, options.start, options.work, options.questions)
    for name in MODELS:
        if options.only is not None and name not in options.only:
            continue
        if (options.work / f"{name}-int8").exists():
            continue
        model = read_model(name)
        if not all(run(options, training, deadline) for training in model.trainings):
            print("the time is over: call again", flush=True)
            return
        if model.average and not (options.work / name).exists():
            sources = [directory(options, one) for one in model.average]
            average(sources, list(model.average.values()), options.work / name)
        export(options.work, model)
    print("all done", flush=True)


def directory(options: argparse.Namespace, name: str) -> Path:
    """Return the directory of a model that a recipe names."""
    folder: Path = options.start if name == START else options.work / name
    return folder


def run(options: argparse.Namespace, training: Training, deadline: float) -> bool:
    """Run a training where it is not done; return whether it is done now."""
    wanted = request(options, training, (deadline - time.monotonic()) / 60)
    if wanted.output.exists():
        return True
    if (wanted.max_minutes or 0) <= 0:
        return False
    if not training.distil:
        return train(wanted) is not None
    student = directory(options, training.student) if training.student else None
    layers, factor = training.layers, training.pool_factor
    return distill(wanted, layers=layers, pool_factor=factor, student=student) is not None


def request(options: argparse.Namespace, training: Training, minutes: float) -> Request:
    """Return a training as `osrerank.training.fit` takes it."""
    work: Path = options.work
    source = directory(options, training.init_from)
    if training.as_duo:
        source = work / f"{training.init_from}-as-duo"
        if not source.exists():
            untrained = ExportOptions(kind="duo", precision="fp32", keep_weights=True)
            export_model(directory(options, training.init_from), source, untrained)
    trial = {field: getattr(options, field) for field in ("steps", "batch") if getattr(options, field)}
    return Request(
        source=source,
        output=work / training.output,
        recipe=replace(training.recipe, **trial),
        data=[open_source({"examples": str(work / f"{name}.jsonl")}) for name in training.data],
        development=open_source({"examples": str(work / "choosing.jsonl")}),
        depth=min(5, options.depth) if training.as_duo else options.depth,
        max_minutes=minutes,
        report=lambda line: print(f"{training.output}: {line}", flush=True),
    )


def export(work: Path, model: ShippedModel) -> None:
    """Export a trained model as int8, mono ones with a map to probabilities."""
    source, output = work / model.name, work / f"{model.name}-int8"
    card = read_card(source)
    fields = {name: model.card[name] for name in ("max_tokens", "prior_share") if name in model.card}
    write_card(source, replace(card, **fields))
    quantised = {name: model.export[name] for name in ("activations", "outlier_gain") if name in model.export}
    options = ExportOptions(
        name=model.card["name"],
        kind=model.card["kind"],
        pool_factor=model.card["biases"].get("pool_factor"),
        precision=model.export["precision"],
        recipe=Quantised(**quantised),
        first_pass_weight=model.card["first_pass_weight"],
        provenance={**card.provenance, **model.provenance},
    )
    calibrate = (work / "dev.candidates.jsonl", work / "dev.qrels") if model.export.get("calibrate") else None
    try:
        export_model(source, output, options, calibrate=calibrate)
    except EvaluationError as error:  # of a trial, which has learnt nothing
        print(f"{model.name}: no map to probabilities: {error}", flush=True)
        export_model(source, output, options)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print(f"{model.name}: exported, {size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
