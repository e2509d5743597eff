"""Train the recipes of `training.toml` and score the development sets with each, as trained and averaged.

python tools/models/training/training.py MODELS LISTS SETS STATES SCORES [--recipes NAME ...] [--threads 2]

It needs tools/models/joined in PYTHONPATH.

Each recipe gives ``NAME.0.npz`` and ``NAME.0.5.npz`` (cosines of each set; the start's share in the name) and
``NAME.json``: the loss in tenths of the training, pairs a second, minutes. Untrained students are ``start-...``.
What is there already is not made again. `training_table.py` measures.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from osrerank.training.losses import list_cross_entropy, list_divergence
from osrerank.training.optimiser import Adam, learning_rate, parameter_groups
from training_lists import COLLECTIONS
from training_states import Kept, read_plan, read_set, text_of
from training_students import Student, in_lots, student_of

PAIRS = 500
"""Most pairs of a forward pass without gradients, and of a joined one with gradients."""
WARMUP = 0.1
QUERIES = "queries.pt"


@dataclass(slots=True)
class Lists:
    """Questions with documents, by their places in `Kept`.

    Attributes:
        queries: texts.
        documents: of each.
        relevant: likewise 0 or 1.
        teacher: likewise standardised scores; empty without a teacher.
    """

    queries: list[str] = field(default_factory=list)
    documents: list[list[int]] = field(default_factory=list)
    relevant: list[list[int]] = field(default_factory=list)
    teacher: list[list[float]] = field(default_factory=list)

    def add(self, content: Mapping[str, Any], kept: Kept, teacher: Mapping[str, Sequence[float]] | None) -> None:
        """Add a file's lists whose documents are encoded, with the teacher's scores if there is one."""
        for query_id, candidates in content["candidates"].items():
            texts = [text_of(content, doc_id) for doc_id in candidates]
            if any(text not in kept.places for text in texts):
                continue
            self.queries.append(content["queries"][query_id])
            self.documents.append([kept.places[text] for text in texts])
            self.relevant.append([int(doc_id in content["qrels"][query_id]) for doc_id in candidates])
            if teacher is not None:
                self.teacher.append(list(teacher[query_id]))

    def drawn(self, number: int, depth: int) -> list[int]:
        """Return which of a list's documents count: the relevant ones and the first others, so many in all."""
        relevant = self.relevant[number]
        others = [place for place, is_relevant in enumerate(relevant) if not is_relevant]
        own = [place for place, is_relevant in enumerate(relevant) if is_relevant]
        return sorted([*own, *others[: max(1, depth - len(own))]])


@torch.inference_mode()
def scored(student: Student, queries: Sequence[str], documents: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the cosines of queries' documents, list after list."""
    queries = [query for query, some in zip(queries, documents, strict=True) if some]
    documents = [some for some in documents if some]
    lots = in_lots([len(some) for some in documents], PAIRS)
    found = [student.cosines([queries[at] for at in lot], [documents[at] for at in lot]).numpy() for lot in lots]
    return np.concatenate(found)


def spread(student: Student, lists: Lists) -> float:
    """Return the mean standard deviation of the untrained cosines within a list, of at most 300 lists."""
    chosen = random.Random(1).sample(range(len(lists.queries)), min(300, len(lists.queries)))
    documents = [lists.documents[at] for at in chosen]
    values = scored(student, [lists.queries[at] for at in chosen], documents)
    parts = np.split(values, np.cumsum([len(some) for some in documents])[:-1])
    return float(np.mean([part.std() for part in parts]))


def loss_of(student: Student, lists: Lists, numbers: Sequence[int], recipe: Mapping[str, Any], scale: float) -> Tensor:
    """Return the mean loss of some lists."""
    chosen = [lists.drawn(number, recipe["depth"]) for number in numbers]
    documents = [[lists.documents[number][at] for at in some] for number, some in zip(numbers, chosen, strict=True)]
    sizes = [len(some) for some in chosen]
    logits = recipe["temperature"] * student.cosines([lists.queries[number] for number in numbers], documents)
    loss = torch.zeros(())
    if recipe["loss"] in {"labels", "both"}:
        targets = [lists.relevant[number][at] for number, some in zip(numbers, chosen, strict=True) for at in some]
        loss = loss + list_cross_entropy(logits, torch.tensor(targets), sizes)
    if recipe["loss"] in {"kl", "both"}:
        wanted = [lists.teacher[number][at] for number, some in zip(numbers, chosen, strict=True) for at in some]
        loss = loss + list_divergence(logits, scale * torch.tensor(wanted), sizes)
    return loss


def train(student: Student, lists: Lists, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Train a student; return its curve and speed."""
    batch = recipe["lists"]
    scale = recipe["temperature"] * spread(student, lists) if recipe["loss"] != "labels" else 0.0
    rng = random.Random(1)
    order = [
        number for _ in range(recipe["epochs"]) for number in rng.sample(range(len(lists.queries)), len(lists.queries))
    ]
    total = len(order) // batch
    optimiser = Adam(parameter_groups(student.trained.parameters(), 0.01), bias_correction=True)
    losses, pairs, began = [], 0, time.perf_counter()
    for step in range(total):
        rate = learning_rate(
            step, peak=recipe["rate"], warmup=max(1, int(WARMUP * total)), total=total, decay_from="warmup"
        )
        for group in optimiser.param_groups:
            group["lr"] = rate
        numbers = order[step * batch : (step + 1) * batch]
        counts = [len(lists.drawn(number, recipe["depth"])) for number in numbers]
        value = 0.0
        for lot in in_lots(counts, PAIRS if recipe["trained"] == "own" else sum(counts)):
            share = len(lot) / batch
            loss = share * loss_of(student, lists, [numbers[at] for at in lot], recipe, scale)
            loss.backward()
            value += loss.item()
        torch.nn.utils.clip_grad_norm_(student.trained.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(value)
        pairs += sum(counts)
        if (step + 1) % max(1, total // 10) == 0:
            seconds = time.perf_counter() - began
            print(f"  step {step + 1} of {total}: loss {np.mean(losses[-max(1, total // 10) :]):.4f}", end="")
            print(f", {pairs / seconds:.0f} pairs a second", flush=True)
    seconds = time.perf_counter() - began
    tenths = [round(float(part.mean()), 4) for part in np.array_split(np.array(losses), 10) if len(part)]
    speed = {"pairs_per_s": round(pairs / seconds), "minutes": round(seconds / 60, 2)}
    return {"lists": len(lists.queries), "steps": total, "pairs": pairs, **speed, "loss": tenths}


def standardised(values: np.ndarray) -> np.ndarray:
    """Return scores less their mean and over their standard deviation."""
    found: np.ndarray = (values - values.mean()) / (values.std() + 1e-9)
    return found


class Bench:
    """The files of an experiment."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._models, self._lists, self._sets, self._states = (
            options.models,
            options.lists,
            options.sets,
            options.states,
        )
        self.scores: Path = options.scores
        self.plan = read_plan()
        self._kept: dict[str, Kept] = {}

    def kept(self, start: str) -> Kept:
        """Return all that is encoded of a start."""
        if start not in self._kept:
            self._kept[start] = Kept()
            for folder in sorted((self._states / start).iterdir()):
                if folder.is_dir() and not folder.name.endswith(".partial"):
                    self._kept[start].add(folder)
            if (queries := self._states / start / QUERIES).exists():
                self._kept[start].queries = torch.load(queries)
        return self._kept[start]

    def prepare(self, student: Student, start: str, queries: Sequence[str]) -> None:
        """Encode queries that are not kept yet, and keep them in a file."""
        count = len(self.kept(start).queries)
        student.prepare(queries)
        if len(self.kept(start).queries) > count:
            torch.save(self.kept(start).queries, self._states / start / QUERIES)

    def student(self, recipe: Mapping[str, Any]) -> Student:
        """Return a recipe's student, untrained."""
        return student_of(recipe, self._models, self.kept(recipe["start"]), self.plan["most_pieces"])

    def lists(self, start: str, most: int | None, *, teacher: bool) -> Lists:
        """Return the lists of all collections; with a teacher at most so many of each, None for all."""
        found = Lists()
        for name in COLLECTIONS:
            if teacher and name not in self.plan["teacher"]["collections"]:
                continue
            content = json.loads((self._lists / f"{name}.json").read_text("utf-8"))
            if teacher:
                content["candidates"] = dict(itertools.islice(content["candidates"].items(), most))
            found.add(content, self.kept(start), self._teacher(name, content) if teacher else None)
        return found

    def _teacher(self, name: str, content: Mapping[str, Any]) -> dict[str, list[float]]:
        """Return the teacher's scores of a file's lists, kept in a file."""
        counts = [len(some) for some in content["candidates"].values()]
        file = self.scores / f"teacher.{name}.{len(counts)}.npz"
        if not file.exists():
            means = np.zeros(sum(counts))
            for recipe in self.plan["teacher"]["models"]:
                lists = Lists()
                lists.add(content, self.kept(recipe["start"]), None)
                values = scored(self.student({**recipe, "trained": "own"}), lists.queries, lists.documents)
                parts = np.split(values, np.cumsum(counts)[:-1])
                means += np.concatenate([standardised(part) for part in parts]) / len(self.plan["teacher"]["models"])
            np.savez(file, scores=means.astype(np.float32))
        parts = np.split(np.load(file)["scores"], np.cumsum(counts)[:-1])
        return {query_id: part.tolist() for query_id, part in zip(content["candidates"], parts, strict=True)}

    def score(self, student: Student, start: str, name: str, sets: Sequence[str]) -> None:
        """Score the sets that are encoded and not scored yet."""
        file = self.scores / f"{name}.npz"
        found = dict(np.load(file)) if file.exists() else {}
        places = self.kept(start).places
        for one in sets:
            if one in found:
                continue
            content = read_set(self._sets, one, self.plan)
            documents = [[text_of(content, doc_id) for doc_id in some] for some in content["candidates"].values()]
            if all(text in places for some in documents for text in some):
                began, numbers = time.perf_counter(), [[places[text] for text in some] for some in documents]
                found[one] = scored(student, list(content["queries"].values()), numbers)
                print(f"{name}: scored {one}, {time.perf_counter() - began:.0f} s", flush=True)
        np.savez(file, **found)

    def run(self, recipe: Mapping[str, Any]) -> None:
        """Train a recipe if it is not trained yet, and score its student."""
        name, start = recipe["name"], recipe["start"]
        plan = self.plan
        given = {"depth": plan["data"]["depth"], "lists": plan["training"]["lists"], "sets": plan["development"]}
        recipe = {**given, **recipe}
        way = "" if recipe["trained"] == "query" else f"-{recipe['layers']}-{recipe['rows']}"
        student, weights = self.student(recipe), self.scores / f"{name}.pt"
        self.score(student, start, f"start-{start}{way}", recipe["sets"])
        before = student.start()
        if not weights.exists():
            print(name, flush=True)
            lists = self._chosen(recipe)
            self.prepare(student, start, lists.queries)
            curve = train(student, lists, recipe)
            (self.scores / f"{name}.json").write_text(
                json.dumps({"recipe": recipe, "training": curve}, indent=1), "utf-8"
            )
            torch.save(student.start(), weights)
        trained = torch.load(weights)
        for share in self.plan["training"]["averaged"]:
            student.trained.load_state_dict(trained)
            student.average(before, share)
            self.score(student, start, f"{name}.{share:g}", recipe["sets"])

    def _chosen(self, recipe: Mapping[str, Any]) -> Lists:
        """Return the lists that a recipe is trained on."""
        most = recipe.get("taught", self.plan["teacher"]["questions"]) or None
        whole = self.lists(recipe["start"], most, teacher=recipe["loss"] != "labels")
        everything = range(len(whole.queries))
        chosen = random.Random(1).sample(everything, min(recipe.get("questions", len(everything)), len(everything)))
        return Lists(
            [whole.queries[at] for at in chosen],
            [whole.documents[at] for at in chosen],
            [whole.relevant[at] for at in chosen],
            [whole.teacher[at] for at in chosen] if whole.teacher else [],
        )


def main() -> None:
    """Run recipes in their order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "lists", "sets", "states", "scores"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--recipes", nargs="+", help="names; all if not given")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.scores.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for recipe in bench.plan["recipes"]:
        if options.recipes is None or recipe["name"] in options.recipes:
            bench.run(recipe)


if __name__ == "__main__":
    main()
