"""Export a checkpoint as a model directory for clients and workers: ONNX graph, tokenizer and model card."""
