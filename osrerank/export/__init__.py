"""Make from a checkpoint what clients and workers load: an ONNX graph in fp32 or int8, the tokenizer, the card."""
