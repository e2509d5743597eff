"""Training: mono as the first model in the package was, on ten times the data, and the papers' recipes.

monoBERT's and duoBERT's are trained at their sizes for as long as there is time. The last part is whether a killed
training goes on to the last bit.

monoBERT's and duoBERT's starts are random: what is measured is speed, memory and whether the loss falls.
"""

import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from osrerank.scoring.model_files import CARD_FILE
from tools.gpu.luggage import read_halves, read_lists, write_changed
from tools.gpu.networks import SHAPES, make
from tools.gpu.plan import Plan
from tools.gpu.task import Found, Part, Task
from tools.gpu.texts import write_examples

Recipe = dict[str, Any]
"""As `osrerank.training.recipes.Recipe.of` reads it."""

MONO: Recipe = {
    "name": "modern", "layout": "cross-bias", "batch": 64, "depth": 14, "max_tokens": 192, "rate": 3e-5, "seed": 1,
    "steps": 5200, "evaluate_every": 1300, "freeze": "embeddings",
}  # fmt: skip
"""That of the first model in the package, with ten times its 520 steps on as many more questions. The embeddings are
frozen: their table alone is larger than a file that comes back may be."""
PAPERS: Recipe = {"batch": 128, "max_tokens": 512}
PAPERS_AT = (("monobert", "large"), ("monobert", "base"), ("duobert", "base"))
TRAINING_S, PROBE_STEPS = 150.0, 80
"""Seconds for mono's steps; ordering the documents and measuring come on top. The speed is that of a few steps."""
TINY: Recipe = {"batch": 8, "max_tokens": 48, "max_query_tokens": 16, "negatives": 3, "warmup": 0.25}
PAPER_STEPS = 400_000
"""Of 32 sequences: monoBERT's training (arXiv 1901.04085); 100,000 of 128 (arXiv 1910.14424) are as many sequences."""
PAPER_SEQUENCES = 32 * PAPER_STEPS


def parts(task: Task) -> Iterator[Part]:
    """Yield the trainings."""
    yield Part("mono", 260, functools.partial(mono, task))
    for recipe, shape in task.choose(PAPERS_AT, PAPERS_AT[1:]):
        yield Part(f"{recipe}, {shape}", 65, functools.partial(as_published, task, recipe, shape))
    yield Part("resumed after a kill", 60, functools.partial(resumed, task))


def examples(task: Task, name: str = "lists", most: int = 0) -> Path:
    """Return a file of examples as training reads them."""
    file = task.scratch / f"{name}-{most}.jsonl"
    if not file.exists():
        write_examples(read_lists(task.luggage / "training" / f"{name}.zip"), file, most)
    return file


def start(task: Task) -> Path:
    """Return the directory of the model that mono starts from."""
    folder = task.scratch / "start"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = task.luggage / "models" / "start"
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_bytes((packed / name).read_bytes())
        read_halves(packed / "model.halves.zip", folder / "model.safetensors")
    return folder


def on_this_machine(task: Task, recipe: Recipe, **tiny: Any) -> Recipe:
    """Return a recipe in the precision of a GPU, in a rehearsal with few short sequences in fp32."""
    return {**recipe, **task.choose({"precision": "bf16"}, {**TINY, **tiny})}


def train_once(task: Task, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Run a training in a process of its own; return what it found.

    Raises:
        RuntimeError: it failed; the end of its output says why.
    """
    process, found = begin(task, name, content)
    if process.wait(max(30.0, task.left_s)):
        raise RuntimeError(_log(task, name).read_text("utf-8", errors="replace")[-600:])
    return dict(json.loads(found.read_text("utf-8")))


def begin(task: Task, name: str, content: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a training; return its process and the file of what it will find."""
    request, found = task.scratch / f"{name}.request.json", task.scratch / f"{name}.found.json"
    request.write_text(json.dumps(dict(content)), encoding="utf-8")
    found.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tools.gpu.train_once", str(request), str(found)]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with _log(task, name).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)  # noqa: S603 - our own
    return process, found


def _log(task: Task, name: str) -> Path:
    return task.scratch / f"{name}.log"


def mono(task: Task) -> Found:
    """Train mono; the weights that changed go to the results."""
    source, output = start(task), task.scratch / "mono"
    steps = task.choose(fitting_steps, lambda _task: 6)(task)
    recipe = {**on_this_machine(task, MONO), "steps": steps, "evaluate_every": math.ceil(steps / 4)}
    found = train_once(
        task,
        "mono",
        {
            "source": str(source),
            "output": str(output),
            "recipe": recipe,
            "examples": str(examples(task)),
            "development": str(examples(task, "development")),
            "minutes": max(0.5, (task.left_s - 20) / 60),
        },
    )
    if not found["finished"]:
        raise RuntimeError(f"the time was over after {found['steps']} of {steps} steps; the next call goes on")
    trained = output / "model.safetensors"
    for file in task.results.glob("mono-*.safetensors"):
        file.unlink()
    most = Plan.read().limits.file_bytes
    files = write_changed(source / "model.safetensors", trained, task.results, stem="mono", most_bytes=most)
    card = json.loads((output / CARD_FILE).read_text("utf-8"))
    return {"recipe": recipe, **found, "files": [file.name for file in files], "card": card}


def fitting_steps(task: Task) -> int:
    """Return how many steps of mono's recipe there is time for, by the speed of the first ones; tried once."""
    file = task.scratch / "steps.json"
    if not file.exists():
        recipe = {**on_this_machine(task, MONO), "steps": PROBE_STEPS, "mine_at": 0.0}
        content = {"source": str(start(task)), "output": str(task.scratch / "probe"), "recipe": recipe, "minutes": 1.0}
        found = train_once(task, "probe", {**content, "examples": str(examples(task, most=2000))})
        file.write_text(json.dumps(min(MONO["steps"], int(TRAINING_S * found["sequences/s"] / MONO["batch"]))))
    return int(json.loads(file.read_text()))


def as_published(task: Task, name: str, shape: str) -> Found:
    """Train a random BERT by a paper's recipe until its time is over; say how long the whole training would take."""
    folder = task.scratch / f"{shape}-start"
    make(folder, SHAPES[task.choose(shape, "tiny")], task.luggage / "models" / "mono" / "tokenizer.json")
    recipe = on_this_machine(task, {"name": name, **PAPERS}, steps=3)
    output = task.scratch / f"{name}-{shape}"
    content = {"source": str(folder), "output": str(output), "recipe": recipe, "kind": name.removesuffix("bert")}
    found = train_once(task, output.name, {**content, "examples": str(examples(task, most=2000)), "minutes": 0.7})
    hours = PAPER_SEQUENCES / found["sequences/s"] / 3600
    return {"recipe": recipe, **found, "hours to 400,000 steps of 32": round(hours, 2)}


def resumed(task: Task) -> Found:
    """Kill a training by force, let it go on, and compare with one that was left alone, bit by bit."""
    source = start(task)
    steps = task.choose(120, 8)
    content = {
        "source": str(source),
        "recipe": {**on_this_machine(task, MONO), "steps": steps, "mine_at": 0.0},
        "examples": str(examples(task, most=500)),
        "minutes": 5,
        "save_every_s": 0.0,
    }
    whole = train_once(task, "whole", {**content, "output": str(task.scratch / "whole")})
    killed_at = _killed(task, {**content, "output": str(task.scratch / "killed")}, steps // 3)
    train_once(task, "killed", {**content, "output": str(task.scratch / "killed")})
    left, right = (load_file(task.scratch / name / "model.safetensors") for name in ("whole", "killed"))
    differences = [float(abs(left[name] - right[name]).max()) for name in left]
    return {
        "steps": whole["steps"],
        "killed at": killed_at,
        "bitwise": not any(differences),
        "difference": max(differences),
    }


def _killed(task: Task, content: Mapping[str, Any], step: int) -> int:
    """Start a training and kill it once it has a checkpoint of a step; return which."""
    folder = task.scratch / "killed.training"
    process, _ = begin(task, "killed", content)
    give_up = time.monotonic() + max(30.0, task.left_s)
    try:
        while process.poll() is None and time.monotonic() < give_up:
            done = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
            if done and max(done) >= step:
                process.send_signal(signal.SIGKILL)
                return max(done)
            time.sleep(0.02)
        raise RuntimeError(_log(task, "killed").read_text("utf-8", errors="replace")[-600:])
    finally:
        process.kill()
        process.wait()
