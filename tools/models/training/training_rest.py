"""Measure trained query sides on the queries that `training.toml` leaves out of its samples.

python tools/models/training/training_rest.py MODELS SETS STATES SCORES RECIPE ...

It needs tools/models/joined in PYTHONPATH.

The weight of the first pass is the one that the baseline has in `training_table.py`: nothing is picked here.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from osrerank.adapt.adapt import load_backend, tokenizer_of
from osrerank.adapt.bi_encoder import read_bi_encoder
from training import QUERIES, scored
from training_states import Kept, read_plan, read_set, text_of, texts_of
from training_students import student_of
from training_table import Gain, macro_mean
from values import Set

SETS = ("squad", "nfcorpus", "scifact")
START = "e5-small-v2"
WEIGHT = 0.05


def main() -> None:
    """Print BM25, the untrained start and each recipe, as trained and averaged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "sets", "states", "scores"):
        parser.add_argument(name, type=Path)
    parser.add_argument("recipes", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan, kept = read_plan(), Kept()
    for folder in (options.states / START).iterdir():
        if folder.is_dir():
            kept.add(folder)
    kept.queries = torch.load(options.states / START / QUERIES)
    contents = {}
    for name in SETS:
        whole = json.loads((options.sets / f"{name}.json").read_text("utf-8"))
        used = read_set(options.sets, name, plan)["queries"]
        parts = ("queries", "candidates", "qrels")
        contents[name] = {**whole, **{part: {k: v for k, v in whole[part].items() if k not in used} for part in parts}}
    model = read_bi_encoder(options.models / START)
    backend, tokenizer = load_backend(model, "int8", 1), tokenizer_of(model)
    tokenizer.enable_truncation(plan["most_pieces"])
    for text in sorted({text for one in contents.values() for text in texts_of(one)} - kept.places.keys()):
        kept.places[text] = len(kept.vectors)
        ids = tokenizer.encode(model.document_prefix + text).ids
        kept.vectors.append(backend.encoded(np.array(ids, dtype=np.int64))["vector"][0].copy())
    sets = {name: Set.of(content) for name, content in contents.items()}
    bm25 = {name: one.values(one.first_pass) for name, one in sets.items()}
    print(
        "BM25", *(f"{name} {len(one)} {one.mean():.4f}" for name, one in bm25.items()), f"mean {macro_mean(bm25):.4f}"
    )
    base = None
    for recipe in plan["recipes"]:
        if recipe["name"] not in options.recipes:
            continue
        student = student_of(recipe, options.models, kept, plan["most_pieces"])
        before = student.start()
        for share in (1.0, *plan["training"]["averaged"]):
            student.trained.load_state_dict(torch.load(options.scores / f"{recipe['name']}.pt"))
            student.average(before, share)
            values = {}
            for name, content in contents.items():
                documents = [
                    [kept.places[text_of(content, one)] for one in some] for some in content["candidates"].values()
                ]
                cosines = scored(student, list(content["queries"].values()), documents).astype(float)
                values[name] = sets[name].values(cosines + WEIGHT * sets[name].first_pass)
            base = values if base is None else base
            means = " ".join(f"{name} {one.mean():.4f}" for name, one in values.items())
            print(f"{recipe['name']}, start's share {share:g}: {means}, mean {macro_mean(values):.4f};", end=" ")
            print(Gain.of(values, base, plan["rule"]["seed"]), flush=True)


if __name__ == "__main__":
    main()
