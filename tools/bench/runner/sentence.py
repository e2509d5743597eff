"""transformers, and sentence-transformers with each of its backends, exported and quantised by its own functions."""

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .table import LoadedPeer, Maker, PeerRequest, positive

SAMPLES = 100
"""Pairs that the static quantisation sees."""


def transformers_forward(request: PeerRequest) -> LoadedPeer:
    """Return the plain forward of transformers in fp32: batches in the order given, padded to the longest."""
    import torch  # noqa: PLC0415 - slow
    import transformers  # noqa: PLC0415 - slow

    torch.set_num_threads(request.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(request.checkpoint, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        request.checkpoint, local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()
    cut = {"padding": True, "truncation": "only_second", "max_length": request.max_tokens, "return_tensors": "pt"}

    def scoring(query: str, documents: Sequence[str], batch: int) -> Any:
        found = []
        for start in range(0, len(documents), batch):
            part = list(documents[start : start + batch])
            with torch.inference_mode():
                found.append(positive(network(**tokenizer([query] * len(part), part, **cut)).logits))
        return np.concatenate(found)

    return LoadedPeer(f"{version('transformers')}, torch {version('torch')}", scoring)


def _encoder(request: PeerRequest, source: Path, backend: str, **model: Any) -> LoadedPeer:
    """Return a ``CrossEncoder``, which puts documents in its own order."""
    import torch  # noqa: PLC0415 - slow
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - slow

    torch.set_num_threads(request.threads)
    options: dict[str, Any] = {"local_files_only": True, "max_length": request.max_tokens, "device": "cpu"}
    made = CrossEncoder(str(source), backend=backend, model_kwargs=model, **options)
    engine = {"onnx": "onnxruntime"}.get(backend, backend)

    def scoring(query: str, documents: Sequence[str], batch: int) -> Any:
        pairs = [(query, document) for document in documents]
        identity = torch.nn.Identity()
        return positive(made.predict(pairs, batch_size=batch, activation_fn=identity, show_progress_bar=False))

    return LoadedPeer(f"{version('sentence-transformers')}, {engine} {version(engine)}", scoring)


def _torch(dtype: str) -> Maker:
    return lambda request: _encoder(request, request.checkpoint, "torch", torch_dtype=dtype)


def _exported(request: PeerRequest, backend: str) -> Path:
    """Return a copy of the checkpoint with a graph of the library's own export."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - slow

    target = request.folder / f"sentence-transformers-{backend}"
    if not target.exists():
        plain, made = request.folder / f"plain-{backend}", request.folder / f"made-{backend}"
        for folder in (plain, made):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(request.checkpoint, plain, ignore=shutil.ignore_patterns("onnx", "openvino"))
        model = CrossEncoder(str(plain), backend=backend, local_files_only=True, model_kwargs={"export": True})
        model.save_pretrained(str(made))
        made.rename(target)
    return target


def _onnx(form: str) -> Maker:
    """Return the ONNX backend: the plain graph, an optimisation level (``O2``), or ``avx512_vnni`` for int8."""
    name = {"": "model.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}.get(form, f"model_{form}.onnx")

    def make(request: PeerRequest) -> LoadedPeer:
        import onnxruntime  # noqa: PLC0415 - slow

        source = _exported(request, "onnx")
        if not (source / "onnx" / name).exists():
            _write_onnx(source, form)
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = request.threads
        session.log_severity_level = 3
        return _encoder(request, source, "onnx", file_name=f"onnx/{name}", session_options=session)

    return make


def _write_onnx(source: Path, form: str) -> None:
    import sentence_transformers as library  # noqa: PLC0415 - slow

    plain = {"file_name": "onnx/model.onnx"}
    model = library.CrossEncoder(str(source), backend="onnx", local_files_only=True, model_kwargs=plain)
    if form == "avx512_vnni":
        library.export_dynamic_quantized_onnx_model(model, form, str(source))
    else:
        library.export_optimized_onnx_model(model, form, str(source))


def _openvino(precision: str) -> Maker:
    """Return the OpenVINO backend in exact ``fp32``, or with its static int8, ``qint8``."""
    name = {"qint8": "openvino_model_qint8_quantized.xml"}.get(precision, "openvino_model.xml")

    def make(request: PeerRequest) -> LoadedPeer:
        source = _exported(request, "openvino")
        if not (source / "openvino" / name).exists():
            _write_qint8(request, source)
        settings = {"INFERENCE_NUM_THREADS": str(request.threads)}
        settings |= {"INFERENCE_PRECISION_HINT": "f32"} if precision == "fp32" else {}
        return _encoder(request, source, "openvino", file_name=f"openvino/{name}", ov_config=settings)

    return make


def _write_qint8(request: PeerRequest, source: Path) -> None:
    """Quantise with texts from a local file: the library's default is a data set on the hub."""
    import sentence_transformers as library  # noqa: PLC0415 - slow
    from optimum.intel import OVQuantizationConfig  # noqa: PLC0415 - slow

    texts = request.folder / "texts"
    texts.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in request.calibration.read_text("utf-8").splitlines()]
    lines = [json.dumps({"text": f"{row['query']} {row['document']}"}) for row in rows[:SAMPLES]]
    (texts / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    plain = {"file_name": "openvino/openvino_model.xml"}
    model = library.CrossEncoder(str(source), backend="openvino", local_files_only=True, model_kwargs=plain)
    library.export_static_quantized_openvino_model(
        model,
        OVQuantizationConfig(num_samples=len(lines)),
        str(source),
        dataset_name=str(texts),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )


MAKERS: dict[str, Maker] = {
    "transformers torch fp32": transformers_forward,
    "sentence-transformers torch fp32": _torch("float32"),
    "sentence-transformers torch bf16": _torch("bfloat16"),
    "sentence-transformers onnx fp32": _onnx(""),
    "sentence-transformers onnx O2": _onnx("O2"),
    "sentence-transformers onnx O3": _onnx("O3"),
    "sentence-transformers onnx int8 avx512_vnni": _onnx("avx512_vnni"),
    "sentence-transformers openvino fp32": _openvino("fp32"),
    "sentence-transformers openvino qint8": _openvino("qint8"),
}
