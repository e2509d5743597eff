"""Make public bi-encoders joined in several ways, and measure each with records as they are kept: nDCG@10.

python tools/models/joined/table.py MODELS SETS WORK [--only dl19 dl21] [--starts bge-small-en-v1.5]

Made after the shipped model was chosen, so it chooses nothing. Each row has the model alone, then with weights of BM25
beside a cosine. Graphs are int8; models, logits and records are kept in WORK, so that a run goes on where it stopped.
"""

import argparse
import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from measure import Profile, kept_logits, with_states
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.model_files import read_card
from osrerank.scoring.states.record import PROFILES, Record, TextStates
from osrerank.scoring.states.scorer import BiEncoderScorer
from values import Set

BATCH = 256
WEIGHTS = (0.0, 0.02, 0.05, 0.1)
QUERY = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True, slots=True)
class Row:
    """A way to read a start.

    Attributes:
        start: name of the bi-encoder.
        name: of the model's directory.
        options: for `adapt`.
        profile: of the records.
    """

    start: str
    name: str
    options: AdaptOptions
    profile: Profile = "exact"


BGE = AdaptOptions(pooling="cls", query_prefix="", document_prefix="", layers=1, bias=-3.0)
E5 = AdaptOptions(pooling="mean", query_prefix="query: ", document_prefix="passage: ", layers=1, bias=-4.0)
ROWS = (
    Row("bge-small-en-v1.5", "bge-plain", replace(BGE, layers=0)),
    *(Row("bge-small-en-v1.5", "bge-m1", BGE, profile) for profile in ("exact", "standard", "small")),
    Row("bge-small-en-v1.5", "bge-m2", replace(BGE, layers=2)),
    Row("bge-small-en-v1.5", "bge-m1-prefix", replace(BGE, query_prefix=QUERY)),
    Row("e5-small-v2", "e5-plain", replace(E5, layers=0)),
    *(Row("e5-small-v2", "e5-m1", E5, profile) for profile in ("exact", "standard", "small")),
)


def made(row: Row, models: Path, work: Path) -> str:
    """Return the directory of a row's model, which is made where it is not there."""
    directory = work / row.name
    if not directory.exists():
        adapt(models / row.start, directory, row.options)
    return str(directory)


def round_records(model: str, texts: Iterable[str], profile: Profile, folder: Path) -> None:
    """Make a profile's records of the exact ones that are there, so that no text is encoded twice."""
    every = list(texts)
    with closing(with_states(model, folder, "exact")) as whole, closing(with_states(model, folder, profile)) as rounded:
        assert isinstance(whole, BiEncoderScorer)
        assert isinstance(rounded, BiEncoderScorer)
        assert whole.store is not None
        assert rounded.store is not None
        for some in (every[start : start + BATCH] for start in range(0, len(every), BATCH)):
            keys = whole.keys_of(some)
            found = whole.store.read(keys)
            made = {}
            for key, target in zip(keys, rounded.keys_of(some), strict=True):
                if record := Record.read(found.get(key, b""), key):
                    rows, vector = record.states.astype(np.float32), record.vector.astype(np.float32)
                    states = TextStates(rows, record.pieces, vector, record.cut)
                    made[target] = Record.of(states, PROFILES[profile]).write(target)
            rounded.store.write(made)


def main() -> None:
    """Print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", default=["dl19", "dl21"])
    parser.add_argument("--starts", nargs="+", default=["bge-small-en-v1.5", "e5-small-v2"])
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    contents = {name: json.loads((options.sets / f"{name}.json").read_text("utf-8")) for name in options.only}
    print("model", "profile", *(f"{name} w={weight:g}" for name in contents for weight in WEIGHTS), sep="\t")
    for row in (row for row in ROWS if row.start in options.starts):
        values = []
        for name, content in contents.items():
            one = Set.of(content)
            model = made(row, options.models, options.work)
            if row.profile != "exact":
                every = [text for parts in content["texts"].values() for text in parts]
                round_records(model, every, row.profile, options.work)
            logits, _ = kept_logits(model, name, content, options.work, row.profile)
            scale = read_card(Path(model)).calibration.scale
            values += [one.values(logits + weight * scale * one.first_pass).mean() for weight in WEIGHTS]
        print(row.name, row.profile, *(f"{value:.4f}" for value in values), sep="\t", flush=True)


if __name__ == "__main__":
    main()
