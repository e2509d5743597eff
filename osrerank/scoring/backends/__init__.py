"""The backends, which compute a model: in this process by ONNX Runtime or torch, or on a rerank server over HTTP."""
