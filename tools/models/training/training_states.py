"""Encode the texts of `training.toml`'s lists and sets once, and keep their vectors and states.

python tools/models/training/training_states.py MODELS LISTS SETS STATES [--starts e5-small-v2]

It needs tools/models/joined in PYTHONPATH.

Each start and file of texts gives a folder ``START/NAME``: ``texts.json``, ``vectors.npy`` (fp32), ``bounds.npy`` (rows
of each text) and ``states.0.npy``, ``states.1.npy`` (16 bits): what enters the last two layers. A text is kept once.
"""

import argparse
import itertools
import json
import random
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from measure import sampled
from osrerank.adapt.adapt import load_backend, tokenizer_of
from osrerank.adapt.bi_encoder import read_bi_encoder
from training_lists import COLLECTIONS, PLAN

LAYERS = 2
CHUNK = 500
"""Texts between lines of progress."""

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


def read_plan() -> dict[str, Any]:
    """Return `training.toml`."""
    return tomllib.loads(PLAN.read_text("utf-8"))


def read_set(sets: Path, name: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a development set with the queries that are measured."""
    return sampled(json.loads((sets / f"{name}.json").read_text("utf-8")), plan["queries"][name])


def text_of(content: Mapping[str, Any], doc_id: str) -> str:
    """Return a document's text from its beginning."""
    beginning: str = content["beginnings"].get(doc_id, content["texts"][doc_id][0])
    return beginning


def texts_of(content: Mapping[str, Any]) -> list[str]:
    """Return the texts of all candidates, each once."""
    documents = {doc_id for one in content["candidates"].values() for doc_id in one}
    return sorted({text_of(content, doc_id) for doc_id in documents})


@dataclass(slots=True)
class Kept:
    """A start's vectors and states of texts.

    Attributes:
        vectors: of each text ``(n, hidden)``.
        states: what enters the last layers, of each text, each ``(rows, hidden)``.
        queries: likewise of each query as `training_students.py` encodes it, and its vector.
    """

    places: dict[str, int] = field(default_factory=dict)
    vectors: list[Floats] = field(default_factory=list)
    states: tuple[list[Halves], ...] = field(default_factory=lambda: tuple([] for _ in range(LAYERS)))

    queries: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def add(self, folder: Path) -> None:
        """Add what a folder has."""
        first, bounds = len(self.vectors), np.load(folder / "bounds.npy")
        self.vectors += list(np.load(folder / "vectors.npy"))
        for place in range(LAYERS):
            whole = np.load(folder / f"states.{place}.npy", mmap_mode="r")
            self.states[place].extend(whole[begin:end] for begin, end in itertools.pairwise(bounds))
        texts = json.loads((folder / "texts.json").read_text("utf-8"))
        self.places |= {text: first + place for place, text in enumerate(texts)}


def encode(backend: Any, ids: Sequence[Sequence[int]], output: Path) -> None:
    """Write the vectors and states of token ids."""
    bounds = np.cumsum([0, *map(len, ids)])
    vectors = np.zeros((len(ids), backend.hidden), dtype=np.float32)
    files = [
        np.lib.format.open_memmap(
            output / f"states.{place}.npy", "w+", dtype=np.float16, shape=(int(bounds[-1]), backend.hidden)
        )
        for place in range(LAYERS)
    ]

    def one(number: int) -> None:
        found = backend.encoded(np.array(ids[number], dtype=np.int64))
        vectors[number] = found["vector"][0]
        for place, file in enumerate(files):
            file[bounds[number] : bounds[number + 1]] = found[f"states.{place}"][0]

    began = time.perf_counter()
    with ThreadPoolExecutor(backend.threads) as pool:
        for number, _ in enumerate(pool.map(one, range(len(ids))), 1):
            if number % CHUNK == 0:
                speed = bounds[number] / (time.perf_counter() - began)
                print(f"  {number} of {len(ids)} texts, {speed:.0f} pieces a second", flush=True)
    np.save(output / "vectors.npy", vectors)
    np.save(output / "bounds.npy", bounds)


def files_of(lists: Path, sets: Path, plan: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and contents of lists and sets."""
    for name in COLLECTIONS:
        yield f"train-{name}", json.loads((lists / f"{name}.json").read_text("utf-8"))
    for name in plan["development"]:
        yield name, read_set(sets, name, plan)


def main() -> None:
    """Encode what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("lists", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("states", type=Path)
    parser.add_argument("--starts", nargs="+", default=["e5-small-v2", "bge-small-en-v1.5"])
    parser.add_argument("--only", nargs="+", help="names of folders; all if not given")
    options = parser.parse_args()
    plan = read_plan()
    for start in options.starts:
        model = read_bi_encoder(options.models / start)
        backend, tokenizer = load_backend(model, "int8", LAYERS), tokenizer_of(model)
        tokenizer.enable_truncation(plan["most_pieces"])
        seen: set[str] = set()
        for name, content in files_of(options.lists, options.sets, plan):
            if options.only and name not in options.only:
                continue
            folder = options.states / start / name
            new = [text for text in texts_of(content) if text not in seen]
            random.Random(1).shuffle(new)
            seen.update(new)
            if folder.exists():
                continue
            partial = folder.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            print(f"{start}, {name}: {len(new)} texts", flush=True)
            ids = [one.ids for one in tokenizer.encode_batch([model.document_prefix + text for text in new])]
            encode(backend, ids, partial)
            (partial / "texts.json").write_text(json.dumps(new), "utf-8")
            partial.rename(folder)


if __name__ == "__main__":
    main()
