"""Models of the hub, from a server on this machine that speaks as much of its protocol as is needed."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests import servers

pytestmark = pytest.mark.long

DATA = Path(__file__).parents[2] / "data"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "somebody/tiny"
SCRIPT = """
import sys
from osrerank.errors import ModelLoadError
from osrerank.scoring.registry import load_scorer
try:
    scorer = load_scorer(sys.argv[1], backend=sys.argv[2])
    backend = scorer._backend
    print(scorer.model, backend.precision, type(backend).__name__, scorer.score("low", ["wing"], [(0,)]).inferences)
except ModelLoadError as error:
    print("ModelLoadError:", error)
"""


class Hub(BaseHTTPRequestHandler):
    """One repository, at a branch and a commit."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        listing = f"/api/models/{REPOSITORY}/revision/"
        contents = f"/{REPOSITORY}/resolve/{COMMIT}/"
        if self.path.split("?")[0] in {f"{listing}main", f"{listing}v2", f"/api/models/{REPOSITORY}"}:
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode())
        elif self.path.startswith(contents) and self.path.removeprefix(contents) in self.files:
            name = self.path.removeprefix(contents)
            if self.command == "GET":
                self.asked.append(name)
            self.answer(self.files[name])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    source = DATA / "tiny-bert-one-label"
    files = {str(file.relative_to(source)): file.read_bytes() for file in source.rglob("*") if file.is_file()}
    del files["osrerank.json"]
    extra = {"pytorch_model.bin": b"pickle", "onnx/model_O4.onnx": b"another", "modeling_own.py": b"raise SystemExit"}
    handler = type("TinyHub", (Hub,), {"files": files | extra, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join(5)


def load(model: str, backend: str, endpoint: str, home: Path) -> str:
    """Load in a process of its own: the hub's client reads its environment once."""
    environment = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PATH": "",
        "PYTHONPATH": str(servers.ROOT),
    }
    command = [sys.executable, "-c", SCRIPT, model, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.parametrize("model", [REPOSITORY, f"{REPOSITORY}@v2"])
def test_a_graph_is_downloaded_and_nothing_else(hub: tuple[str, type[Hub]], tmp_path: Path, model: str) -> None:
    endpoint, handler = hub
    assert load(model, "auto", endpoint, tmp_path) == f"{model} fp32 OnnxBackend 1"
    assert sorted(handler.asked) == ["config.json", "onnx/model.onnx", "tokenizer.json"]


def test_int8_is_downloaded_instead_of_fp32(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    endpoint, handler = hub
    handler.files["onnx/model_quantized.onnx"] = handler.files["onnx/model.onnx"]
    assert load(REPOSITORY, "onnx", endpoint, tmp_path) == f"{REPOSITORY} int8 OnnxBackend 1"
    assert sorted(handler.asked) == ["config.json", "onnx/model_quantized.onnx", "tokenizer.json"]


def test_weights_are_downloaded_where_there_is_no_graph(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    endpoint, handler = hub
    handler.files = {name: body for name, body in handler.files.items() if not name.endswith(".onnx")}
    assert load(REPOSITORY, "auto", endpoint, tmp_path) == f"{REPOSITORY} fp32 TorchBackend 1"
    assert sorted(handler.asked) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_repository_that_is_not_there(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    said = load("nobody/none", "auto", hub[0], tmp_path)
    assert said.startswith("ModelLoadError: there is no directory nobody/none")
    assert "hf download nobody/none --local-dir none" in said


def test_no_hub_at_all(tmp_path: Path) -> None:
    said = load("somebody/tiny@v2", "auto", f"http://127.0.0.1:{servers.free_port()}", tmp_path)
    assert "hf download somebody/tiny --revision v2 --local-dir tiny" in said
    assert "\n" not in said


def test_weights_are_downloaded_where_the_graph_lacks_the_head(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    """A modular cross-encoder: sentence-transformers exports its encoder alone."""
    pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.numpy").save
    endpoint, handler = hub
    width = json.loads(handler.files["config.json"])["hidden_size"]
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    written = {
        "modules.json": [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in modules.items()],
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
        "1_Pooling/config.json": {"pooling_mode": "cls"},
        "2_Dense/config.json": {"out_features": 1, "bias": False, "module_output_name": "scores"},
    }
    weights = save({"linear.weight": np.ones((1, width), dtype=np.float32)})
    handler.files |= {name: json.dumps(content).encode() for name, content in written.items()}
    handler.files |= {"2_Dense/model.safetensors": weights}
    assert load(REPOSITORY, "auto", endpoint, tmp_path) == f"{REPOSITORY} fp32 TorchBackend 1"
    assert {"2_Dense/model.safetensors", "model.safetensors", *written} < set(handler.asked)
