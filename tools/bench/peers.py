"""Peers: other libraries with the same weights, which run in processes of an environment of their own."""

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
from osrerank.export.export_model import export_model
from osrerank.export.write_graphs import write_onnx
from osrerank.scoring.backends.torch import load_network
from osrerank.scoring.checkpoints.self_check import examples
from osrerank.scoring.model_files import copy_existing, hash_files
from osrerank.scoring.modular.description import has_weighted_modules
from tools.bench.race import BenchQuery, FloatArray
from tools.bench.runner.table import BATCH_SIZES, PEERS

TOKENIZER_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "vocab.txt")
"""The files that other libraries read beside a graph."""
TRANSFORMERS_PEER = "transformers torch fp32"
RUNNER_CODE = "import sys; sys.path.append(sys.argv[1]); from runner.run import main; main()"
CALIBRATION_PAIRS = 100
"""The number of pairs for static quantisation."""
TRIAL_DOCUMENTS = 64
"""The number of documents with which a batch size is tried."""


class PeerProcess:
    """A process in the peers' environment, which replies to requests in JSON lines (`tools.bench.runner.run`).

    Args:
        python: the interpreter of the environment.
        log: the file for the libraries' output.
        threads: the number of CPU threads.
    """

    def __init__(self, python: Path, log: Path, threads: int) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own runner, with the caller's interpreter
                [str(python), "-c", RUNNER_CODE, str(Path(__file__).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(log.parent / "home", threads),
                text=True,
                encoding="utf-8",
            )

    def request(self, **message: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            InferenceError: the peer failed, or the process ended.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            requests.write(json.dumps(message) + "\n")
            requests.flush()
            line = replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            output = self._last_line()
            raise InferenceError(
                f"the process ended with code {code}; {self._log} has its output, which ends: {output}"
            )
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise InferenceError(reply["error"])
        return reply

    def close(self) -> None:
        """End the process; a second call has no effect."""
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes

    def _last_line(self) -> str:
        lines = self._log.read_text("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"


@dataclass(slots=True)
class Peer:
    """A peer in its process.

    Attributes:
        name: the peer's name in the table of peers.
        library: the versions of the library and its engine.
        process: the peer's process, which other peers share.
        batch: the batch size.
        spent_s: the processor time of the peer's scores so far, in seconds.
    """

    name: str
    library: str
    process: PeerProcess
    batch: int = BATCH_SIZES[-2]
    spent_s: float = field(default=0.0, init=False)

    @property
    def version(self) -> str:
        return f"{self.library}, batches of {self.batch}"

    def score(self, query: str, documents: Sequence[str]) -> FloatArray:
        """Return scores ``(n,)``.

        Raises:
            InferenceError: the peer failed, or its process ended.
        """
        message = {"query": query, "documents": list(documents), "batch": self.batch}
        reply = self.process.request(do="score", peer=self.name, **message)
        self.spent_s += reply["cpu_s"]
        return np.asarray(reply["scores"], dtype=np.float64).reshape(len(documents))

    def choose_batch_size(self, query: BenchQuery) -> None:
        """Set the fastest of `BATCH_SIZES`, measured on some documents of a query.

        Raises:
            InferenceError: the peer failed.
        """
        seconds: dict[int, float] = {}
        for self.batch in BATCH_SIZES:
            self.score(query.query, query.documents[:TRIAL_DOCUMENTS])  # warms up
            start_s = time.perf_counter()
            self.score(query.query, query.documents[:TRIAL_DOCUMENTS])
            seconds[self.batch] = time.perf_counter() - start_s
        self.batch = min(seconds, key=seconds.__getitem__)

    def cpu_s(self) -> float:
        return self.spent_s

    def close(self) -> None:
        self.process.close()


def load_peers(
    checkpoint: Path,
    environment: Path,
    *,
    threads: int,
    max_tokens: int,
    is_selected: Callable[[str], bool] = lambda _name: True,
) -> tuple[list[Peer], dict[str, str]]:
    """Load a checkpoint in all peers; return the peers, and the errors of those that cannot load it, by name.

    Exported models are stored in the environment's directory and used again.

    Args:
        checkpoint: a directory with config, tokenizer and safetensors of a classifier.
        environment: the virtual environment of the peers.
        threads: the number of CPU threads of each peer.
        max_tokens: the maximum number of tokens of a pair; longer pairs are truncated.
        is_selected: whether to load the peer of a name.

    Raises:
        FileNotFoundError: the environment has no Python.
    """
    python = environment.absolute() / "bin" / "python"
    folder = environment / "exports" / _fingerprint(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    request = _prepare_files(checkpoint.resolve(), folder.resolve()) | {"threads": threads, "max_tokens": max_tokens}
    peers: list[Peer] = []
    errors: dict[str, str] = {}
    processes: dict[str, PeerProcess] = {}
    for name, group in PEERS.items():
        if not is_selected(name):
            continue
        if name == TRANSFORMERS_PEER and has_weighted_modules(checkpoint):
            errors[name] = f"{checkpoint} has its head in modules, which transformers does not read"
            continue
        if group not in processes:
            processes[group] = PeerProcess(python, folder / f"{group}.log", threads)
        try:
            reply = processes[group].request(do="load", peer=name, request=request)
        except InferenceError as error:
            errors[name] = str(error)
        else:
            peers.append(Peer(name, reply["version"], processes[group]))
    for group, process in processes.items():
        if all(PEERS[peer.name] != group for peer in peers):
            process.close()
    return peers, errors


def _prepare_files(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Write the padded graph and the texts for calibration; return the paths for the runner."""
    calibration = folder / "calibration.jsonl"
    pairs = [(example.question, text) for example in examples() for text in (example.answer, example.unrelated)]
    lines = [json.dumps({"query": query, "document": document}) for query, document in pairs[:CALIBRATION_PAIRS]]
    calibration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = {"checkpoint": checkpoint, "folder": folder, "calibration": calibration}
    paths["padded"] = _export_padded(checkpoint, folder)
    return {name: str(path) for name, path in paths.items()}


def _export_padded(checkpoint: Path, folder: Path) -> Path:
    """Export the checkpoint as a graph for padded batches, unless it exists; return the graph's directory."""
    target = folder / "padded"
    if not target.exists():
        temporary = folder / "padded-new"
        shutil.rmtree(temporary, ignore_errors=True)
        card = export_model(checkpoint, temporary)
        write_onnx(load_network(checkpoint, card), temporary / card.onnx["fp32"], "logits")
        copy_existing(checkpoint, temporary, TOKENIZER_FILES)
        temporary.rename(target)
    return target


def _fingerprint(checkpoint: Path) -> str:
    """Return a digest of the checkpoint's files, 16 hexadecimal digits."""
    files = (*checkpoint.glob("*.json"), *checkpoint.glob("*.safetensors"))
    return hash_files(checkpoint, [path.name for path in files])[:16]


def _environment(home: Path, threads: int) -> dict[str, str]:
    """Return a peer's environment variables: without our paths, with a thread limit, without network or telemetry."""
    telemetry_consent = home / "intel" / "openvino_telemetry"
    telemetry_consent.parent.mkdir(parents=True, exist_ok=True)
    telemetry_consent.write_text("0", encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OSRERANK_"))}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "NNCF_CI"), "1")
    folders = {"HOME": str(home), "HF_HOME": str(home / "huggingface"), "LOCALAPPDATA": str(home)}
    return {**inherited, **offline, **folders, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
