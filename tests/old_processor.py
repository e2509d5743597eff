"""Scores on a processor that ``qemu-x86_64`` imitates: run as a program there, and by the tests here."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

QEMU = shutil.which("qemu-x86_64")
TIMEOUT_S = 280


def imitated(cpu: str, *arguments: str) -> Any:
    """Return what this program prints on a processor, in JSON; ``""`` is this machine's own."""
    interpreter = Path(sys.executable).resolve()
    prefix = [QEMU, "-cpu", cpu] if cpu else []
    path = os.pathsep.join([str(Path(__file__).parents[1]), sysconfig.get_path("purelib")])
    environment = {"PYTHONPATH": path, "HOME": os.environ["HOME"], "PATH": os.environ["PATH"]}
    command = [*prefix, str(interpreter), "-m", "tests.old_processor", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def scores(model: str) -> list[float]:
    """Return a model's scores of three texts."""
    from osrerank.scoring.registry import load_scorer

    scorer = load_scorer(model, backend="onnx", threads=1)
    texts = ["low blood pressure", "the wing of the engine", "heat " * 60]
    values: list[float] = scorer.score("low pressure", texts, [(0,), (1,), (2,)]).values.tolist()
    return values


def product(graph: str) -> list[float]:
    """Return what a graph makes of ones ``(1, 64)``, as `tests.integration.test_old_processors` writes it."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    row: list[float] = session.run(None, {"vectors": np.ones((1, 64), dtype=np.float32)})[0][0].tolist()
    return row


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"scores": scores, "product": product}[sys.argv[1]](sys.argv[2])) + "\n")
