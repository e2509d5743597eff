"""Score every development set with every setting of `protocol.toml`, without looking at the judgments.

python tools/models/joined/sweep.py MODELS SETS SCORES [--starts bge-small-en-v1.5 e5-small-v2] [--only dl21 ...]

Each start and set gives one file of scores, ``START.SET.npz``: an array per setting, in the order of the candidates of
the set's queries. What is there already is not made again. Texts are encoded by the int8 graph, as in use.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.adapt.adapt import DEFAULT_BIASES, load_backend, load_encoder, tokenizer_of
from osrerank.adapt.bi_encoder import BiEncoder, read_bi_encoder
from osrerank.adapt.grid import MOST_LAYERS, Grid, Setting, joinings

STARTS = ("bge-small-en-v1.5", "e5-small-v2")
PREFIXES = {"bge-small-en-v1.5": ("none", "own"), "e5-small-v2": ("own",)}
FACTORS = (1.0, 4.0, 8.0)
SETS = ("wikiqa", "dl21", "checkthat", "squad", "nfcorpus", "scifact")
"""All but the articles, of which `choose.py` names the settings."""
KEPT_ROWS = 5_000_000

Floats = npt.NDArray[np.float32]


def settings_of(model: BiEncoder, prefixes: Sequence[str], wanted: Sequence[str] | None) -> dict[str, Setting]:
    """Return the settings by name: prefix, layers, rows and bias, pieces for each row of a document."""
    found = {}
    every = joinings(model.pooling, model.query_prefix, model.document_prefix)
    for (joining, prefix), factor in product(product(every, prefixes), FACTORS):
        if factor > 1 and (joining.layers, joining.bias) != (1, DEFAULT_BIASES[model.pooling]):
            continue
        used = joining if prefix == "own" else replace(joining, query_prefix="")
        way = f"m{joining.layers}.{joining.rows}.g{joining.bias:g}" if joining.layers else "plain"
        name = f"{prefix}/{way}/r{factor:g}"
        if wanted is None or name in wanted:
            found[name] = Setting(used, factor)
    return found


def scored(one: Mapping[str, Any], grid: Grid) -> dict[str, Floats]:
    """Return the scores of a set's candidates, queries one after the other, for each setting; of passages the best."""
    found: dict[str, list[Floats]] = {}
    for query_id, text in one["queries"].items():
        candidates = list(one["candidates"][query_id])
        texts = [passage for doc_id in candidates for passage in one["texts"][doc_id]]
        bounds = np.cumsum([0, *(len(one["texts"][doc_id]) for doc_id in candidates)])[:-1]
        for name, values in (grid.scores(text, texts) if texts else {}).items():
            found.setdefault(name, []).append(np.maximum.reduceat(values, bounds).astype(np.float32))
    return {name: np.concatenate(values) for name, values in found.items()}


def main() -> None:
    """Make the files of scores that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--only", nargs="+", default=list(SETS), help="names of sets")
    parser.add_argument("--precision", default="int8", choices=["int8", "fp32"], help="of the graph that encodes")
    parser.add_argument("--settings", nargs="+", help="names of settings; all if not given")
    options = parser.parse_args()
    options.scores.mkdir(parents=True, exist_ok=True)
    for name, start in product(options.only, options.starts):
        output = options.scores / f"{start}.{name}.npz"
        if output.exists():
            continue
        began = time.perf_counter()
        model = read_bi_encoder(options.models / start)
        settings = settings_of(model, PREFIXES[start], options.settings)
        backend = load_backend(model, options.precision, MOST_LAYERS)
        grid = Grid(load_encoder(model), backend, tokenizer_of(model), settings, kept_rows=KEPT_ROWS)
        found = scored(json.loads((options.sets / f"{name}.json").read_text("utf-8")), grid)
        partial = output.with_suffix(".partial.npz")
        np.savez(partial, allow_pickle=False, **found)
        partial.replace(output)
        print(f"{output.name}: {len(found)} settings, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
