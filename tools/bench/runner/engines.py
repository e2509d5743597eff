"""ONNX Runtime and OpenVINO by themselves, with the plain graph: documents in order of length, batches padded."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .table import LoadedPeer, Maker, PeerRequest, positive

CALIBRATION = 100
"""Pairs that the static quantisation sees."""


class GraphInputs:
    """Pairs of texts as a graph's inputs.

    Args:
        request: has the tokenizer and the most tokens of a pair.
        names: the graph's inputs.
    """

    def __init__(self, request: PeerRequest, names: Sequence[str]) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - the parent process reads only the table

        self._tokenizer = Tokenizer.from_file(str(request.padded / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(request.max_tokens, strategy="only_second")
        self._names = names
        self._calibration = request.calibration

    def batches(self, query: str, documents: Sequence[str], size: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Yield the documents' indices and the inputs of each batch, the longest documents first."""
        made = self._tokenizer.encode_batch([(query, document) for document in documents])
        order = sorted(range(len(made)), key=lambda index: -len(made[index].ids))
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            yield indices, self._padded([made[index] for index in indices])

    def calibration(self) -> list[dict[str, Any]]:
        """Return the inputs of the pairs for static quantisation, one pair each."""
        rows = [json.loads(line) for line in self._calibration.read_text("utf-8").splitlines()[:CALIBRATION]]
        return [next(self.batches(row["query"], [row["document"]], 1))[1] for row in rows]

    def _padded(self, made: Sequence[Any]) -> dict[str, Any]:
        shape = len(made), max(len(one.ids) for one in made)
        arrays = {name: np.zeros(shape, dtype=np.int64) for name in ("input_ids", "token_type_ids", "attention_mask")}
        for row, one in enumerate(made):
            arrays["input_ids"][row, : len(one.ids)] = one.ids
            arrays["token_type_ids"][row, : len(one.ids)] = one.type_ids
            arrays["attention_mask"][row, : len(one.ids)] = 1
        return {name: array for name, array in arrays.items() if name in self._names}


def _onnxruntime(*, is_int8: bool) -> Maker:
    """Return ONNX Runtime with the plain graph, or with its own dynamic int8 of it."""

    def make(request: PeerRequest) -> LoadedPeer:
        import onnxruntime  # noqa: PLC0415 - slow

        def opened(path: Path) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = request.threads
            options.log_severity_level = 3
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        graph = request.padded / "onnx" / "model.onnx"
        texts = GraphInputs(request, [entry.name for entry in opened(graph).get_inputs()])
        if is_int8:
            graph = _quantised(graph, request.folder / "onnxruntime-dynamic.onnx")
        session = opened(graph)

        def scoring(query: str, documents: Sequence[str], batch: int) -> Any:
            found = np.empty(len(documents))
            for indices, inputs in texts.batches(query, documents, batch):
                found[indices] = positive(session.run(None, inputs)[0])
            return found

        return LoadedPeer(version("onnxruntime"), scoring)

    return make


def _quantised(graph: Path, target: Path) -> Path:
    """Return the dynamic int8 form of a graph; it is written, whole or not at all, unless it is there."""
    if not target.exists():
        from onnxruntime import quantization  # noqa: PLC0415 - slow

        temporary = target.with_name(f"new-{target.name}")
        shared = {"op_types_to_quantize": ["MatMul", "Gemm"], "per_channel": True}
        quantization.quantize_dynamic(graph, temporary, weight_type=quantization.QuantType.QInt8, **shared)
        temporary.rename(target)
    return target


def _openvino(precision: str, form: str = "") -> Maker:
    """Return OpenVINO with one stream for each thread, in fp32 or bf16, with the plain graph or NNCF's static int8."""

    def make(request: PeerRequest) -> LoadedPeer:
        import openvino  # noqa: PLC0415 - slow

        core = openvino.Core()
        graph = request.padded / "onnx" / "model.onnx"
        plain = core.read_model(graph)
        texts = GraphInputs(request, [name for port in plain.inputs for name in port.get_names()])
        if form:
            target = request.folder / "openvino-int8.xml"
            _write_int8(core, plain, target, texts)
            plain = core.read_model(target)
        streams = {"INFERENCE_NUM_THREADS": request.threads, "NUM_STREAMS": str(request.threads)}
        hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": precision}
        compiled = core.compile_model(plain, "CPU", {**hints, **streams})

        def scoring(query: str, documents: Sequence[str], batch: int) -> Any:
            found = np.empty(len(documents))

            def done(request: Any, indices: list[int]) -> None:
                found[indices] = positive(request.get_output_tensor(0).data)

            queue = openvino.AsyncInferQueue(compiled)
            queue.set_callback(done)
            for indices, inputs in texts.batches(query, documents, batch):
                queue.start_async(inputs, indices)
            queue.wait_all()
            return found

        return LoadedPeer(version("openvino"), scoring)

    return make


def _write_int8(core: Any, plain: Any, target: Path, texts: GraphInputs) -> None:
    """Write NNCF's static int8 of a model, unless it is there; the weights beside the description come first."""
    if target.exists():
        return
    import nncf  # noqa: PLC0415 - slow
    import openvino  # noqa: PLC0415 - slow

    inputs = texts.calibration()
    made = nncf.quantize(plain, nncf.Dataset(inputs), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(inputs))
    temporary = target.with_name("new.xml")
    openvino.save_model(made, temporary, compress_to_fp16=False)
    temporary.with_suffix(".bin").rename(target.with_suffix(".bin"))
    temporary.rename(target)
    core.read_model(target)


MAKERS: dict[str, Maker] = {
    "ONNX Runtime fp32": _onnxruntime(is_int8=False),
    "ONNX Runtime int8 dynamic": _onnxruntime(is_int8=True),
    "OpenVINO fp32": _openvino("f32"),
    "OpenVINO int8": _openvino("f32", "int8"),
    "OpenVINO int8 and bf16": _openvino("bf16", "int8"),
}
