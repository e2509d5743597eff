"""Convert public bi-encoders to the shipped models, by the recipes in ``recipes``, without training.

python tools/models/joined/make.py MODELS SETS OUTPUT [--only e5-small minilm-l6]

MODELS has a folder per bi-encoder, as sentence-transformers saves it; SETS is the output of `sets.py`. A model's
calibration is fitted to BM25's best 20 candidates per query, with the recipe's number of pairs per set.
"""

import argparse
import json
import random
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osrerank.export.calibration import fit_calibration
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.scoring.card import Calibration
from osrerank.scoring.card_file import read_card
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import CARD_FILE, TOKENIZER_FILE
from osrerank.scoring.registry import load_scorer
from osrerank.types.scores import single_documents

RECIPES = Path(__file__).parent / "recipes"
DEPTH = 20

LabelledQuery = tuple[str, list[str], list[bool]]
"""A query, the texts of its candidates, and whether each is relevant."""


def read_recipe(name: str) -> Mapping[str, Any]:
    """Return the recipe of a shipped model."""
    return tomllib.loads((RECIPES / f"{name}.toml").read_text("utf-8"))


def read_labelled_queries(folder: Path, *, sets: list[str], pairs: int) -> Iterator[LabelledQuery]:
    """Yield random queries of each set until they have a number of pairs."""
    for name in sets:
        content = json.loads((folder / f"{name}.json").read_text("utf-8"))
        query_ids = sorted(content["queries"])
        random.Random(1).shuffle(query_ids)
        n_pairs = 0
        for query_id in query_ids:
            doc_ids = list(content["candidates"][query_id])[:DEPTH]
            texts = [content["beginnings"].get(doc_id, content["texts"][doc_id][0]) for doc_id in doc_ids]
            relevance = content["qrels"][query_id]
            if doc_ids:
                yield content["queries"][query_id], texts, [relevance.get(doc_id, 0) > 0 for doc_id in doc_ids]
            n_pairs += len(doc_ids)
            if n_pairs >= pairs:
                break


def make_model(models: Path, sets: Path, directory: Path, recipe: Mapping[str, Any]) -> None:
    """Write a model's directory with its own copy of the tokenizer."""
    export_model(models / recipe["start"], directory, ExportOptions(**recipe["export"]))
    card = replace(read_card(directory), name=f"osrerank/{directory.name}", provenance=recipe["provenance"])
    write_card(directory, replace(card, calibration=Calibration()))
    calibration = calibrate(directory, sets, recipe["calibration"])
    weight = round(recipe["first_pass_weight"] * calibration.scale, 4)
    write_card(directory, replace(card, calibration=calibration, first_pass_weight=weight))
    print(f"{directory}: {calibration}, first-pass weight {weight}", flush=True)


def calibrate(directory: Path, sets: Path, options: Mapping[str, Any]) -> Calibration:
    """Fit the calibration of an uncalibrated model; the options are those of `read_labelled_queries`."""
    values: list[float] = []
    is_relevant: list[bool] = []
    with closing(load_scorer(str(directory))) as scorer:
        for query, texts, labels in read_labelled_queries(sets, **options):
            values += scorer.score(query, texts, single_documents(len(texts))).values.tolist()
            is_relevant += labels
    return fit_calibration(np.array(values, dtype=np.float32), np.array(is_relevant))


def share_tokenizer(directory: Path, other: Path) -> None:
    """Delete a model's tokenizer, and refer to the equal tokenizer of another model.

    Raises:
        ValueError: the tokenizers differ.
    """
    if read_json(directory / TOKENIZER_FILE) != read_json(other / TOKENIZER_FILE):
        raise ValueError(f"{directory} and {other} have different tokenizers")
    card = {**read_json(directory / CARD_FILE), "tokenizer": f"../{other.name}/{TOKENIZER_FILE}"}
    (directory / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (directory / TOKENIZER_FILE).unlink()


def make(models: Path, sets: Path, output: Path, name: str) -> None:
    """Write a shipped model's directory."""
    recipe = read_recipe(name)
    make_model(models, sets, output / name, recipe)
    if "tokenizer_of" in recipe:
        share_tokenizer(output / name, output / recipe["tokenizer_of"])


def main() -> None:
    """Write the models that do not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="+", default=["e5-small", "minilm-l6"], help="recipes")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if not (options.output / name).exists():
            make(options.models, options.sets, options.output, name)


if __name__ == "__main__":
    main()
