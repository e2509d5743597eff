"""Make rerankers of public bi-encoders by their recipes in ``recipes``: the shipped models. Nothing is trained.

python tools/models/joined/make.py MODELS SETS OUTPUT [--only e5-small minilm-l6]

MODELS has the bi-encoders in folders of their own, as sentence-transformers saves them; SETS is what `sets.py` writes.
A model's map to probabilities is fitted on as many pairs of each set as the recipe names, BM25's best 20 of each query.
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

RECIPES = Path(__file__).parent / "recipes"
DEPTH = 20

Labelled = tuple[str, list[str], list[bool]]


def read_recipe(name: str) -> Mapping[str, Any]:
    """Return the recipe of a shipped model."""
    return tomllib.loads((RECIPES / f"{name}.toml").read_text("utf-8"))


def labelled(folder: Path, *, sets: list[str], pairs: int) -> Iterator[Labelled]:
    """Yield queries, their best candidates' texts and which are relevant: about as many pairs of each set."""
    for name in sets:
        content = json.loads((folder / f"{name}.json").read_text("utf-8"))
        queries = sorted(content["queries"])
        random.Random(1).shuffle(queries)
        taken = 0
        for query_id in queries:
            documents = list(content["candidates"][query_id])[:DEPTH]
            texts = [content["beginnings"].get(document, content["texts"][document][0]) for document in documents]
            relevance = content["qrels"][query_id]
            if documents:
                yield content["queries"][query_id], texts, [relevance.get(document, 0) > 0 for document in documents]
            taken += len(documents)
            if taken >= pairs:
                break


def make_model(models: Path, sets: Path, directory: Path, recipe: Mapping[str, Any]) -> None:
    """Make a model's directory, with a tokenizer of its own."""
    export_model(models / recipe["start"], directory, ExportOptions(**recipe["export"]))
    card = replace(read_card(directory), name=f"osrerank/{directory.name}", provenance=recipe["provenance"])
    write_card(directory, replace(card, calibration=Calibration()))
    calibration = calibrated(directory, sets, recipe["calibration"])
    weight = round(recipe["first_pass_weight"] * calibration.scale, 4)
    write_card(directory, replace(card, calibration=calibration, first_pass_weight=weight))
    print(f"{directory}: {calibration}, first-pass weight {weight}", flush=True)


def calibrated(directory: Path, sets: Path, asked: Mapping[str, Any]) -> Calibration:
    """Fit the calibration of a model that has none yet to labelled texts, as `labelled` is asked for."""
    raw: list[float] = []
    is_relevant: list[bool] = []
    with closing(load_scorer(str(directory))) as scorer:
        for query, texts, relevant in labelled(sets, **asked):
            raw += scorer.score(query, texts, [(index,) for index in range(len(texts))]).values.tolist()
            is_relevant += relevant
    return fit_calibration(np.array(raw, dtype=np.float32), np.array(is_relevant))


def share_tokenizer(directory: Path, other: Path) -> None:
    """Let a model read another one's tokenizer in place of its own, which is the same.

    Raises:
        ValueError: it is not the same.
    """
    if read_json(directory / TOKENIZER_FILE) != read_json(other / TOKENIZER_FILE):
        raise ValueError(f"{directory} and {other} have different tokenizers")
    card = {**read_json(directory / CARD_FILE), "tokenizer": f"../{other.name}/{TOKENIZER_FILE}"}
    (directory / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (directory / TOKENIZER_FILE).unlink()


def make(models: Path, sets: Path, output: Path, name: str) -> None:
    """Make a shipped model's directory."""
    recipe = read_recipe(name)
    make_model(models, sets, output / name, recipe)
    if "tokenizer_of" in recipe:
        share_tokenizer(output / name, output / recipe["tokenizer_of"])


def main() -> None:
    """Make what is not there yet."""
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
