"""Convert the models that `train.sh` trained to the shipped monobert-l6 and duobert-l6.

python -m tools.models.papers.make WORK SETS OUTPUT [--only monobert-l6 duobert-l6]

WORK has the trained models; SETS is the output of tools/models/joined/sets.py. OUTPUT must contain e5-small, whose
tokenizer the models share. Word embeddings are rounded to fewer levels, so that the wheel compresses better.
"""

import argparse
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.scoring.card import Calibration
from osrerank.scoring.card_file import read_card
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from tools.models.joined.make import calibrate, share_tokenizer

RECIPES = Path(__file__).parent / "recipes"
WORD_EMBEDDINGS = "word_embeddings.weight"
MAX_LEVEL = 31
"""The maximum absolute value of a rounded number, in units of its row's scale."""


def round_rows(table: Any) -> Any:
    """Round the numbers of each row to multiples of the row's scale."""
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / np.float32(MAX_LEVEL)
    return np.rint(table / scales).astype(np.float32) * scales


def copy_rounded(source: Path, folder: Path) -> None:
    """Copy a trained model, with rounded word embeddings."""
    for name in (CARD_FILE, CONFIG_FILE, TOKENIZER_FILE):
        (folder / name).write_bytes((source / name).read_bytes())
    weights = load_file(source / WEIGHTS_FILE)
    for name in weights:
        if name.endswith(WORD_EMBEDDINGS):
            weights[name] = round_rows(weights[name])
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def make(work: Path, sets: Path, output: Path, recipe: Mapping[str, Any]) -> None:
    """Write a model's directory."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        copy_rounded(work / output.name, Path(folder))
        export_model(Path(folder), output, ExportOptions(precision="int8"))
    card = replace(
        read_card(output),
        name=f"osrerank/{output.name}",
        provenance=recipe["provenance"],
        languages=("en",),
        calibration=Calibration(),
    )
    write_card(output, card)
    if "calibration" in recipe:
        calibration = calibrate(output, sets, recipe["calibration"])
        write_card(output, replace(card, calibration=calibration, first_pass_weight=recipe["first_pass_weight"]))
    share_tokenizer(output, output.parent / "e5-small")


def main() -> None:
    """Write the models that do not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="+", default=["monobert-l6", "duobert-l6"], help="recipes")
    options = parser.parse_args()
    for name in options.only:
        if not (options.output / name).exists():
            recipe = tomllib.loads((RECIPES / f"{name}.toml").read_text("utf-8"))
            make(options.work, options.sets, options.output / name, recipe)


if __name__ == "__main__":
    main()
