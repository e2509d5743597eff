"""Load transformers, and sentence-transformers with each of its backends, exported and quantised by itself."""

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .table import LoadedPeer, PeerLoader, PeerRequest, to_scores


def load_transformers(request: PeerRequest) -> LoadedPeer:
    """Load transformers in fp32; batches hold documents in the given order, padded to the longest."""
    import torch  # noqa: PLC0415 - slow
    import transformers  # noqa: PLC0415 - slow

    torch.set_num_threads(request.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(request.checkpoint, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        request.checkpoint, local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()
    options = {"padding": True, "truncation": "only_second", "max_length": request.max_tokens, "return_tensors": "pt"}

    def score(query: str, documents: Sequence[str], batch: int) -> Any:
        scores = []
        for start in range(0, len(documents), batch):
            part = list(documents[start : start + batch])
            with torch.inference_mode():
                scores.append(to_scores(network(**tokenizer([query] * len(part), part, **options)).logits))
        return np.concatenate(scores)

    return LoadedPeer(f"{version('transformers')}, torch {version('torch')}", score)


def _load_cross_encoder(request: PeerRequest, source: Path, backend: str, **model: Any) -> LoadedPeer:
    """Load a ``CrossEncoder`` of sentence-transformers, which sorts documents by length."""
    import torch  # noqa: PLC0415 - slow
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - slow

    torch.set_num_threads(request.threads)
    options: dict[str, Any] = {"local_files_only": True, "max_length": request.max_tokens, "device": "cpu"}
    encoder = CrossEncoder(str(source), backend=backend, model_kwargs=model, **options)
    engine = {"onnx": "onnxruntime"}.get(backend, backend)

    def score(query: str, documents: Sequence[str], batch: int) -> Any:
        pairs = [(query, document) for document in documents]
        identity = torch.nn.Identity()
        return to_scores(encoder.predict(pairs, batch_size=batch, activation_fn=identity, show_progress_bar=False))

    return LoadedPeer(f"{version('sentence-transformers')}, {engine} {version(engine)}", score)


def _torch_loader(dtype: str) -> PeerLoader:
    return lambda request: _load_cross_encoder(request, request.checkpoint, "torch", torch_dtype=dtype)


def _export(request: PeerRequest, backend: str) -> Path:
    """Copy the checkpoint and export it with the library, unless that was done before; return the copy's path."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - slow

    target = request.folder / f"sentence-transformers-{backend}"
    if not target.exists():
        source, temporary = request.folder / f"plain-{backend}", request.folder / f"made-{backend}"
        for folder in (source, temporary):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(request.checkpoint, source, ignore=shutil.ignore_patterns("onnx", "openvino"))
        model = CrossEncoder(str(source), backend=backend, local_files_only=True, model_kwargs={"export": True})
        model.save_pretrained(str(temporary))
        temporary.rename(target)
    return target


def _onnx_loader(variant: str) -> PeerLoader:
    """Return the loader of the ONNX backend.

    Args:
        variant: an optimisation level such as ``O2``, ``avx512_vnni`` for int8, or "" for the exported graph.
    """
    name = {"": "model.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}.get(variant, f"model_{variant}.onnx")

    def load(request: PeerRequest) -> LoadedPeer:
        import onnxruntime  # noqa: PLC0415 - slow

        source = _export(request, "onnx")
        if not (source / "onnx" / name).exists():
            _write_onnx_variant(source, variant)
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = request.threads
        session.log_severity_level = 3
        return _load_cross_encoder(request, source, "onnx", file_name=f"onnx/{name}", session_options=session)

    return load


def _write_onnx_variant(source: Path, variant: str) -> None:
    import sentence_transformers as library  # noqa: PLC0415 - slow

    graph = {"file_name": "onnx/model.onnx"}
    model = library.CrossEncoder(str(source), backend="onnx", local_files_only=True, model_kwargs=graph)
    if variant == "avx512_vnni":
        library.export_dynamic_quantized_onnx_model(model, variant, str(source))
    else:
        library.export_optimized_onnx_model(model, variant, str(source))


def _openvino_loader(precision: str) -> PeerLoader:
    """Return the loader of the OpenVINO backend, in ``fp32`` or with its static int8, ``qint8``."""
    name = {"qint8": "openvino_model_qint8_quantized.xml"}.get(precision, "openvino_model.xml")

    def load(request: PeerRequest) -> LoadedPeer:
        source = _export(request, "openvino")
        if not (source / "openvino" / name).exists():
            _write_qint8(request, source)
        settings = {"INFERENCE_NUM_THREADS": str(request.threads)}
        if precision == "fp32":
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        return _load_cross_encoder(request, source, "openvino", file_name=f"openvino/{name}", ov_config=settings)

    return load


def _write_qint8(request: PeerRequest, source: Path) -> None:
    """Quantise with texts from a local file, because the library's default is a data set on the hub."""
    import sentence_transformers as library  # noqa: PLC0415 - slow
    from optimum.intel import OVQuantizationConfig  # noqa: PLC0415 - slow

    texts = request.folder / "texts"
    texts.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in request.calibration.read_text("utf-8").splitlines()]
    lines = [json.dumps({"text": f"{row['query']} {row['document']}"}) for row in rows]
    (texts / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    graph = {"file_name": "openvino/openvino_model.xml"}
    model = library.CrossEncoder(str(source), backend="openvino", local_files_only=True, model_kwargs=graph)
    library.export_static_quantized_openvino_model(
        model,
        OVQuantizationConfig(num_samples=len(lines)),
        str(source),
        dataset_name=str(texts),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )


LOADERS: dict[str, PeerLoader] = {
    "transformers torch fp32": load_transformers,
    "sentence-transformers torch fp32": _torch_loader("float32"),
    "sentence-transformers torch bf16": _torch_loader("bfloat16"),
    "sentence-transformers onnx fp32": _onnx_loader(""),
    "sentence-transformers onnx O2": _onnx_loader("O2"),
    "sentence-transformers onnx O3": _onnx_loader("O3"),
    "sentence-transformers onnx int8 avx512_vnni": _onnx_loader("avx512_vnni"),
    "sentence-transformers openvino fp32": _openvino_loader("fp32"),
    "sentence-transformers openvino qint8": _openvino_loader("qint8"),
}
