"""Make rerankers of public bi-encoders by their recipes in ``recipes``: the shipped models. Nothing is trained.

python tools/models/joined/make.py MODELS SETS OUTPUT [--only mono duo]

MODELS has the bi-encoders in folders of their own, as sentence-transformers saves them; SETS is what `sets.py` writes.
A mono model's map to probabilities is fitted on as many pairs of each set that the recipe names, BM25's best 20 of each
query. A duo model takes the mono model's scale, its encoder's file and its tokenizer.
"""

import argparse
import json
import random
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.export.calibration import fit_scorer
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.export.write_graphs import GRAPHS
from osrerank.scoring.card import Calibration
from osrerank.scoring.model_files import CARD_FILE, TOKENIZER_FILE, read_card, read_json
from osrerank.scoring.registry import load_scorer

RECIPES = Path(__file__).parent / "recipes"
DEPTH = 20
ENCODER = GRAPHS["int8"]

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
            texts = [content["beginnings"].get(one, content["texts"][one][0]) for one in documents]
            relevance = content["qrels"][query_id]
            if documents:
                yield content["queries"][query_id], texts, [relevance.get(one, 0) > 0 for one in documents]
            taken += len(documents)
            if taken >= pairs:
                break


def make_mono(models: Path, sets: Path, directory: Path, recipe: Mapping[str, Any]) -> None:
    """Make a mono model's directory."""
    adapt(models / recipe["start"], directory, AdaptOptions(**recipe["adapt"]))
    card = replace(read_card(directory), name=f"osrerank/{directory.name}", provenance=recipe["provenance"])
    write_card(directory, replace(card, calibration=Calibration()))
    with closing(load_scorer(str(directory))) as scorer:
        calibration = fit_scorer(scorer, labelled(sets, **recipe["calibration"]))
    weight = round(recipe["first_pass_weight"] * calibration.scale, 4)
    write_card(directory, replace(card, calibration=calibration, first_pass_weight=weight))
    print(f"{directory}: {calibration}, first-pass weight {weight}", flush=True)


def make_duo(models: Path, directory: Path, recipe: Mapping[str, Any]) -> None:
    """Make a duo model's directory, and give the mono model beside it an encoder that has a document's states, too."""
    mono = directory.parent / recipe["encoder_of"]
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        joined = Path(folder) / "joined"
        adapt(models / recipe["start"], joined, AdaptOptions(**recipe["adapt"], keep_weights=True))
        export_model(joined, directory, ExportOptions(kind="duo", precision="int8"))
        shutil.move(joined / ENCODER, mono / ENCODER)
    (directory / ENCODER).unlink()  # mono's, which the card names
    scale = read_card(mono).calibration.scale
    card = read_card(directory)
    card = replace(
        card,
        name=f"osrerank/{directory.name}",
        calibration=Calibration(scale=scale),
        prior_share=recipe["prior_share"],
        onnx={**card.onnx, "int8": f"../{mono.name}/{ENCODER}"},
        provenance=recipe["provenance"],
    )
    write_card(directory, card)
    print(f"{directory}: {card.calibration}, encoder {card.onnx['int8']}", flush=True)


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
    if "encoder_of" in recipe:
        make_duo(models, output / name, recipe)
    else:
        make_mono(models, sets, output / name, recipe)
    if "tokenizer_of" in recipe:
        share_tokenizer(output / name, output / recipe["tokenizer_of"])


def main() -> None:
    """Make what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="+", default=["mono", "mono-small", "duo"], help="recipes")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if not (options.output / name).exists():
            make(options.models, options.sets, options.output, name)


if __name__ == "__main__":
    main()
