"""The peers: libraries in an environment of their own, each measured in a process there, with the same weights."""

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from osrerank.errors import InferenceError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.checkpoints.self_check import examples
from osrerank.scoring.modular.description import has_weighted_modules
from tools.bench.race import BenchQuery, Values
from tools.bench.runner.table import BATCH_SIZES, PEERS

DESCRIPTIONS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "vocab.txt")
"""Files that other libraries read beside a graph."""
PLAIN = "transformers torch fp32"
START = "import sys; sys.path.append(sys.argv[1]); from runner.run import main; main()"
TRIED = 64
"""Documents that a batch size is tried with."""


class PeerProcess:
    """A process in the peers' environment; it answers JSON lines (`tools.bench.runner.run`).

    Args:
        python: the environment's.
        log: the file for what the libraries print.
        threads: what libraries read from the environment.
    """

    def __init__(self, python: Path, log: Path, threads: int) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own runner, by the interpreter that the caller named
                [str(python), "-c", START, str(Path(__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(log.parent / "home", threads),
                text=True,
                encoding="utf-8",
            )

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            InferenceError: the peer failed, or the process ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps(message) + "\n")
            requests.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise InferenceError(f"its process ended with code {code}; {self._log} has what it printed: {self._last()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InferenceError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process; doing it again does nothing."""
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both were asked for

    def _last(self) -> str:
        lines = self._log.read_text("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"


@dataclass(slots=True)
class Peer:
    """A peer in its process.

    Attributes:
        label: its name in the table of peers.
        library: its version, and its engine's.
        process: where it runs.
        batch: its batch size.
        spent_s: processor time that its scores took so far; other peers share its process.
    """

    label: str
    library: str
    process: PeerProcess
    batch: int = BATCH_SIZES[-2]
    spent_s: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        return self.label

    @property
    def version(self) -> str:
        return f"{self.library}, batches of {self.batch}"

    def score(self, query: str, documents: Sequence[str]) -> Values:
        """Return scores ``(n,)``.

        Raises:
            InferenceError: the peer failed, or its process ended.
        """
        message = {"query": query, "documents": list(documents), "batch": self.batch}
        answer = self.process.ask(do="score", peer=self.label, **message)
        self.spent_s += answer["cpu_s"]
        return np.asarray(answer["scores"], dtype=np.float64).reshape(len(documents))

    def choose_batch(self, task: BenchQuery) -> None:
        """Take the fastest of `BATCH_SIZES`, tried on some of a task's documents, each after a first time.

        Raises:
            InferenceError: the peer failed.
        """
        taken: dict[int, float] = {}
        for self.batch in BATCH_SIZES:
            self.score(task.query, task.documents[:TRIED])
            began = time.perf_counter()
            self.score(task.query, task.documents[:TRIED])
            taken[self.batch] = time.perf_counter() - began
        self.batch = min(taken, key=taken.__getitem__)

    def cpu_s(self) -> float:
        return self.spent_s

    def close(self) -> None:
        self.process.close()


def make_peers(
    checkpoint: Path,
    environment: Path,
    *,
    threads: int,
    max_tokens: int,
    wanted: Callable[[str], bool] = lambda _name: True,
) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can be made of a checkpoint, and why the others cannot.

    What they export is kept in the environment's directory, by the checkpoint's content, for the next time.

    Args:
        checkpoint: a directory with config, tokenizer and safetensors of a classifier.
        environment: the virtual environment where they are installed.
        threads: CPU threads of each.
        max_tokens: of a pair; what is longer is cut.
        wanted: names of the peers to make.

    Raises:
        FileNotFoundError: the environment has no Python.
    """
    python = environment.absolute() / "bin" / "python"
    folder = environment / "exports" / _fingerprint(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    request = _request(checkpoint.resolve(), folder.resolve()) | {"threads": threads, "max_tokens": max_tokens}
    made: list[Peer] = []
    missing: dict[str, str] = {}
    processes: dict[str, PeerProcess] = {}
    for name, group in PEERS.items():
        if not wanted(name):
            continue
        if name == PLAIN and has_weighted_modules(checkpoint):
            missing[name] = f"{checkpoint} has its head in modules, which transformers does not read"
            continue
        if group not in processes:
            processes[group] = PeerProcess(python, folder / f"{group}.log", threads)
        try:
            answer = processes[group].ask(do="load", peer=name, request=request)
        except InferenceError as error:
            missing[name] = str(error)
        else:
            made.append(Peer(name, answer["version"], processes[group]))
    for group, process in processes.items():
        if all(PEERS[peer.label] != group for peer in made):
            process.close()
    return made, missing


def _request(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Return the files that the runner needs; the plain graph and the calibration's texts are written."""
    calibration = folder / "calibration.jsonl"
    pairs = [(example.question, text) for example in examples() for text in (example.answer, example.unrelated)]
    lines = [json.dumps({"query": query, "document": document}) for query, document in pairs]
    calibration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = {"checkpoint": checkpoint, "folder": folder, "calibration": calibration}
    paths["padded"] = _padded(checkpoint, folder)
    return {name: str(path) for name, path in paths.items()}


def _padded(checkpoint: Path, folder: Path) -> Path:
    """Return the plain export of the checkpoint, for libraries that cannot export."""
    target = folder / "padded"
    if not target.exists():
        made = folder / "padded-new"
        shutil.rmtree(made, ignore_errors=True)
        export_model(checkpoint, made, ExportOptions(padded=True))
        for name in DESCRIPTIONS:
            if (checkpoint / name).exists():
                shutil.copyfile(checkpoint / name, made / name)
        made.rename(target)
    return target


def _fingerprint(checkpoint: Path) -> str:
    """Return sixteen hexadecimal digits of what the checkpoint's files contain."""
    digest = hashlib.sha256()
    for path in sorted((*checkpoint.glob("*.json"), *checkpoint.glob("*.safetensors"))):
        digest.update(path.name.encode())
        with path.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def _environment(home: Path, threads: int) -> dict[str, str]:
    """Return the variables of a peer's process: no path of ours, so many threads, no network, nothing reported."""
    consent = home / "intel" / "openvino_telemetry"
    consent.parent.mkdir(parents=True, exist_ok=True)
    consent.write_text("0", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OSRERANK_"))}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "NNCF_CI"), "1")
    folders = {"HOME": str(home), "HF_HOME": str(home / "huggingface"), "LOCALAPPDATA": str(home)}
    return {**kept, **offline, **folders, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
