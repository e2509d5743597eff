"""The peers, each made from the same checkpoint, or the reason why it cannot be made."""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from osrerank._optional import require
from osrerank.bench.contenders import Maker, Peer
from osrerank.bench.workload import synthetic
from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.model_files import read_json
from osrerank.scoring.modular.description import has_own_head

EXTRA = "bench"
BATCH = 32
"""Batch size of the plain transformers forward; also sentence-transformers' default."""
CALIBRATION = 100
"""Pairs that NNCF quantises with."""


def _positive(logits: Any) -> Any:
    """Return one number for each row of logits ``(n, 1)`` or ``(n, 2)``."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def transformers_forward(checkpoint: Path, _folder: Path, threads: int) -> Peer:
    """Return the plain forward of transformers in fp32: batches of 32 in the order given, padded to the longest."""
    torch: Any = require("torch", extra=EXTRA)
    transformers: Any = require("transformers", extra=EXTRA)
    torch.set_num_threads(threads)
    if has_own_head(checkpoint, read_json):
        raise ModelLoadError(f"{checkpoint} has its head in modules, which transformers does not read; leave it out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()

    def scoring(query: str, documents: Sequence[str]) -> Any:
        found = []
        for start in range(0, len(documents), BATCH):
            part = list(documents[start : start + BATCH])
            inputs = tokenizer(
                [query] * len(part), part, padding=True, truncation="only_second", max_length=512, return_tensors="pt"
            )
            with torch.inference_mode():
                found.append(_positive(network(**inputs).logits.numpy()))
        return np.concatenate(found)

    return Peer("transformers torch fp32", f"{version('transformers')}, torch {version('torch')}", scoring)


def _sentence_transformers(backend: str, file: str = "") -> Maker:
    def make(checkpoint: Path, folder: Path, threads: int) -> Peer:
        torch: Any = require("torch", extra=EXTRA)
        library: Any = require("sentence_transformers", extra=EXTRA)
        torch.set_num_threads(threads)
        options: dict[str, Any] = {"local_files_only": True, "max_length": 512, "device": "cpu"}
        source, label, engine = str(checkpoint), "torch fp32", f"torch {version('torch')}"
        if backend == "onnx":
            source, label = str(_onnx_copy(checkpoint, folder)), f"onnx {file or 'fp32'}"
            engine = f"onnxruntime {version('onnxruntime')}"
            options["model_kwargs"] = {
                "file_name": _onnx_file(library, source, file),
                "session_options": _session(threads),
            }
        model = library.CrossEncoder(source, backend=backend, **options)

        def scoring(query: str, documents: Sequence[str]) -> Any:
            pairs = [(query, document) for document in documents]
            logits = model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
            return _positive(np.asarray(logits).reshape(len(pairs), -1))

        return Peer(f"sentence-transformers {label}", f"{version('sentence-transformers')}, {engine}", scoring)

    return make


def _session(threads: int) -> Any:
    onnxruntime: Any = require("onnxruntime", extra=EXTRA)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def _onnx_copy(checkpoint: Path, folder: Path) -> Path:
    """Return a copy of the checkpoint with a graph of sentence-transformers' own export."""
    target = folder / "sentence-transformers"
    if not target.exists():
        library: Any = require("sentence_transformers", extra=EXTRA)
        require("optimum.onnxruntime", extra="onnx")
        shutil.copytree(checkpoint, folder / "checkpoint", ignore=shutil.ignore_patterns("onnx"))
        model = library.CrossEncoder(
            str(folder / "checkpoint"), backend="onnx", local_files_only=True, model_kwargs={"export": True}
        )
        model.save_pretrained(str(target))
    return target


def _onnx_file(library: Any, source: str, file: str) -> str:
    """Return the graph's name below the folder, making it with sentence-transformers' own functions where it is new."""
    name = {"": "model.onnx", "int8 avx512_vnni": "model_qint8_avx512_vnni.onnx"}.get(file, f"model_{file}.onnx")
    if not (Path(source) / "onnx" / name).exists():
        model = library.CrossEncoder(
            source, backend="onnx", local_files_only=True, model_kwargs={"file_name": "onnx/model.onnx"}
        )
        if file.startswith("int8"):
            library.export_dynamic_quantized_onnx_model(model, "avx512_vnni", source)
        else:
            library.export_optimized_onnx_model(model, file, source)
    return f"onnx/{name}"


def _padded(checkpoint: Path, folder: Path) -> Path:
    """Return our padded export of the checkpoint, for libraries that cannot export."""
    target = folder / "padded"
    if not target.exists():
        export_model(checkpoint, target, ExportOptions(padded=True))
        for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "vocab.txt"):
            if (checkpoint / name).exists():
                shutil.copyfile(checkpoint / name, target / name)
    return target


def flashrank(checkpoint: Path, folder: Path, _threads: int) -> Peer:
    """Return FlashRank with this checkpoint's graph in place of a downloaded one."""
    library: Any = require("flashrank", extra=EXTRA)
    known = "ms-marco-TinyBERT-L-2-v2"
    place = folder / "flashrank" / known
    if not place.exists():
        source = _padded(checkpoint, folder)
        shutil.copytree(source, place)
        shutil.copyfile(source / "onnx" / "model.onnx", place / "flashrank-TinyBERT-L-2-v2.onnx")
    ranker = library.Ranker(known, cache_dir=str(place.parent), max_length=512, log_level="ERROR")

    def scoring(query: str, documents: Sequence[str]) -> Any:
        passages = [{"id": place, "text": document} for place, document in enumerate(documents)]
        found = np.empty(len(documents))
        for passage in ranker.rerank(library.RerankRequest(query=query, passages=passages)):
            found[passage["id"]] = passage["score"]
        return found

    return Peer("FlashRank onnx fp32", f"{version('flashrank')}, onnxruntime {version('onnxruntime')}", scoring)


def fastembed(checkpoint: Path, folder: Path, threads: int) -> Peer:
    """Return fastembed with this checkpoint's graph as a custom model."""
    library: Any = require("fastembed.rerank.cross_encoder", extra=EXTRA)
    described: Any = require("fastembed.common.model_description", extra=EXTRA)
    source, name = _padded(checkpoint, folder), f"osrerank-bench/{folder.name}"
    library.TextCrossEncoder.add_custom_model(name, described.ModelSource(hf=name), model_file="onnx/model.onnx")
    model = library.TextCrossEncoder(name, specific_model_path=str(source), threads=threads, local_files_only=True)

    def scoring(query: str, documents: Sequence[str]) -> Any:
        return list(model.rerank(query, list(documents)))

    return Peer("fastembed onnx fp32", f"{version('fastembed')}, onnxruntime {version('onnxruntime')}", scoring)


def _openvino(precision: str) -> Maker:
    """Return OpenVINO with our padded export, its batches in order of length and one stream for each thread.

    In int8 it is quantised by NNCF, statically, with invented texts to calibrate.
    """

    def make(checkpoint: Path, folder: Path, threads: int) -> Peer:
        library: Any = require("openvino", extra=EXTRA)
        transformers: Any = require("transformers", extra=EXTRA)
        source = _padded(checkpoint, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)
        core = library.Core()
        model = core.read_model(source / "onnx" / "model.onnx")
        names = {name for port in model.inputs for name in port.get_names()}

        def encoded(query: str, documents: Sequence[str]) -> dict[str, Any]:
            inputs = tokenizer(
                [query] * len(documents),
                list(documents),
                padding=True,
                truncation="only_second",
                max_length=512,
                return_tensors="np",
            )
            return {name: array for name, array in inputs.items() if name in names}

        if precision == "int8":
            nncf: Any = require("nncf", extra=EXTRA)
            tasks = synthetic(60, queries=CALIBRATION, depth=1)
            dataset = nncf.Dataset([encoded(task.query, list(task.documents.values())) for task in tasks])
            model = nncf.quantize(model, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION)
        streams = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": str(threads)} if threads else {}
        compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT", **streams})

        def scoring(query: str, documents: Sequence[str]) -> Any:
            order = sorted(range(len(documents)), key=lambda place: len(documents[place]))
            parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            found = np.empty(len(documents))

            def done(request: Any, part: list[int]) -> None:
                found[part] = _positive(request.get_output_tensor(0).data)

            queue = library.AsyncInferQueue(compiled)
            queue.set_callback(done)
            for part in parts:
                queue.start_async(encoded(query, [documents[place] for place in part]), part)
            queue.wait_all()
            return found

        return Peer(f"OpenVINO {precision}", version("openvino"), scoring)

    return make


PEERS: Mapping[str, Maker] = {
    "transformers torch fp32": transformers_forward,
    "sentence-transformers torch fp32": _sentence_transformers("torch"),
    "sentence-transformers onnx fp32": _sentence_transformers("onnx"),
    "sentence-transformers onnx O3": _sentence_transformers("onnx", "O3"),
    "sentence-transformers onnx int8 avx512_vnni": _sentence_transformers("onnx", "int8 avx512_vnni"),
    "FlashRank onnx fp32": flashrank,
    "fastembed onnx fp32": fastembed,
    "OpenVINO fp32": _openvino("fp32"),
    "OpenVINO int8": _openvino("int8"),
}


def make_peers(
    checkpoint: Path, folder: Path, threads: int, *, wanted: Callable[[str], bool] = lambda _name: True
) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can be made of a checkpoint, and why the others cannot.

    Args:
        checkpoint: a directory with config, tokenizer and safetensors of a classifier.
        folder: for the files that they write.
        threads: for each of them.
        wanted: names of the peers to make.
    """
    made, missing = [], {}
    with _quiet():
        for name, make in PEERS.items():
            if not wanted(name):
                continue
            try:
                made.append(make(checkpoint, folder, threads))
            except Exception as error:  # noqa: BLE001 - whatever a foreign library raises is the reason
                missing[name] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return made, missing


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the peers log and warn while they load."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
