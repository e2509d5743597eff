"""The names of backends and dtypes, for the help of commands, which imports nothing else."""

AUTO, WORKERS, HTTP = "auto", "workers", "http"
LOCAL = ("onnx", "torch")
NAMES = (AUTO, *LOCAL, WORKERS, HTTP)
LOCAL_NAMES = (AUTO, *LOCAL)
WORKER_NAMES = tuple(name for name in NAMES if name != WORKERS)
"""The backends that a worker can use."""
DTYPES = (AUTO, "fp32", "bf16", "fp16")
