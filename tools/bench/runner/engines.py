"""Load ONNX Runtime and OpenVINO without another library; batches hold documents of similar length, padded."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .table import LoadedPeer, PeerLoader, PeerRequest, to_scores


class GraphInputs:
    """Converts pairs of texts to inputs of a graph.

    Args:
        request: the request of the peer, with the tokenizer and the maximum number of tokens.
        names: the names of the graph's inputs.
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
        encodings = self._tokenizer.encode_batch([(query, document) for document in documents])
        order = sorted(range(len(encodings)), key=lambda index: -len(encodings[index].ids))
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            yield indices, self._pad([encodings[index] for index in indices])

    def calibration(self) -> list[dict[str, Any]]:
        """Return the inputs for static quantisation, one pair each."""
        rows = [json.loads(line) for line in self._calibration.read_text("utf-8").splitlines()]
        return [next(self.batches(row["query"], [row["document"]], 1))[1] for row in rows]

    def _pad(self, encodings: Sequence[Any]) -> dict[str, Any]:
        shape = len(encodings), max(len(encoding.ids) for encoding in encodings)
        arrays = {name: np.zeros(shape, dtype=np.int64) for name in ("input_ids", "token_type_ids", "attention_mask")}
        for row, encoding in enumerate(encodings):
            arrays["input_ids"][row, : len(encoding.ids)] = encoding.ids
            arrays["token_type_ids"][row, : len(encoding.ids)] = encoding.type_ids
            arrays["attention_mask"][row, : len(encoding.ids)] = 1
        return {name: array for name, array in arrays.items() if name in self._names}


def _onnxruntime_loader(*, is_int8: bool) -> PeerLoader:
    """Return the loader of ONNX Runtime, in fp32 or with its own dynamic int8."""

    def load(request: PeerRequest) -> LoadedPeer:
        import onnxruntime  # noqa: PLC0415 - slow

        def open_session(path: Path) -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = request.threads
            options.log_severity_level = 3
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

        graph = request.padded / "onnx" / "model.onnx"
        graph_inputs = GraphInputs(request, [entry.name for entry in open_session(graph).get_inputs()])
        if is_int8:
            graph = _quantise_dynamically(graph, request.folder / "onnxruntime-dynamic.onnx")
        session = open_session(graph)

        def score(query: str, documents: Sequence[str], batch: int) -> Any:
            scores = np.empty(len(documents))
            for indices, inputs in graph_inputs.batches(query, documents, batch):
                scores[indices] = to_scores(session.run(None, inputs)[0])
            return scores

        return LoadedPeer(version("onnxruntime"), score)

    return load


def _quantise_dynamically(graph: Path, target: Path) -> Path:
    """Write the dynamic int8 form of a graph atomically, unless it exists; return its path."""
    if not target.exists():
        from onnxruntime import quantization  # noqa: PLC0415 - slow

        temporary = target.with_name(f"new-{target.name}")
        options = {"op_types_to_quantize": ["MatMul", "Gemm"], "per_channel": True}
        quantization.quantize_dynamic(graph, temporary, weight_type=quantization.QuantType.QInt8, **options)
        temporary.rename(target)
    return target


def _openvino_loader(precision: str, *, is_int8: bool) -> PeerLoader:
    """Return the loader of OpenVINO with one stream per thread.

    Args:
        precision: the precision of computation, ``f32`` or ``bf16``.
        is_int8: whether the weights are in NNCF's static int8.
    """

    def load(request: PeerRequest) -> LoadedPeer:
        import openvino  # noqa: PLC0415 - slow

        core = openvino.Core()
        model = core.read_model(request.padded / "onnx" / "model.onnx")
        graph_inputs = GraphInputs(request, [name for port in model.inputs for name in port.get_names()])
        if is_int8:
            target = request.folder / "openvino-int8.xml"
            if not target.exists():
                _quantise_statically(model, target, graph_inputs)
            model = core.read_model(target)
        streams = {"INFERENCE_NUM_THREADS": request.threads, "NUM_STREAMS": str(request.threads)}
        hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": precision}
        compiled = core.compile_model(model, "CPU", {**hints, **streams})

        def score(query: str, documents: Sequence[str], batch: int) -> Any:
            scores = np.empty(len(documents))

            def set_scores(request: Any, indices: list[int]) -> None:
                scores[indices] = to_scores(request.get_output_tensor(0).data)

            queue = openvino.AsyncInferQueue(compiled)
            queue.set_callback(set_scores)
            for indices, inputs in graph_inputs.batches(query, documents, batch):
                queue.start_async(inputs, indices)
            queue.wait_all()
            return scores

        return LoadedPeer(version("openvino"), score)

    return load


def _quantise_statically(model: Any, target: Path, graph_inputs: GraphInputs) -> None:
    """Write NNCF's static int8 form of a model; the weights are renamed before the description that refers to them."""
    import nncf  # noqa: PLC0415 - slow
    import openvino  # noqa: PLC0415 - slow

    inputs = graph_inputs.calibration()
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(inputs)}
    quantised = nncf.quantize(model, nncf.Dataset(inputs), **options)
    temporary = target.with_name("new.xml")
    openvino.save_model(quantised, temporary, compress_to_fp16=False)
    temporary.with_suffix(".bin").rename(target.with_suffix(".bin"))
    temporary.rename(target)


LOADERS: dict[str, PeerLoader] = {
    "ONNX Runtime fp32": _onnxruntime_loader(is_int8=False),
    "ONNX Runtime int8 dynamic": _onnxruntime_loader(is_int8=True),
    "OpenVINO fp32": _openvino_loader("f32", is_int8=False),
    "OpenVINO int8": _openvino_loader("f32", is_int8=True),
    "OpenVINO int8 and bf16": _openvino_loader("bf16", is_int8=True),
}
