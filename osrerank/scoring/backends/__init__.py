"""The backends that compute a model: ONNX Runtime and torch in this process, or a rerank server over HTTP."""
