"""How things are timed and described: seconds, the matrix peak, model FLOPs, the device and the versions."""

import datetime as dt
import functools
import platform
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import torch

from osrerank.scoring.inputs import Tokens

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
HALF = torch.bfloat16 if ON_GPU else torch.float32
PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "onnxruntime", "numpy")
Shape = tuple[int, int, int, int]
"""Hidden, layers, heads, inner."""


def wait() -> None:
    """Return when the device has done all that it was asked for."""
    if ON_GPU:
        torch.cuda.synchronize()


def seconds(action: Callable[[], Any], rounds: int) -> float:
    """Return the median wall time of an action, after one that does not count."""
    action()
    wait()
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        wait()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@functools.cache
def matrix_peak() -> float:
    """Return the FLOP/s of a large product of random matrices, on a GPU in bf16."""
    size = 8192 if ON_GPU else 512
    left, right = (torch.randn(size, size, device=DEVICE, dtype=HALF) for _ in range(2))

    def ten() -> None:
        for _ in range(10):
            torch.mm(left, right)

    return 10 * 2 * size**3 / seconds(ten, 5)


def flops(sequences: Sequence[Tokens], shape: Shape) -> float:
    """Return the FLOPs of whole forward passes without padding.

    A token costs 2 x the weights of the matrices, and 4 x hidden x length for the attention of a layer.
    """
    hidden, layers, _, inner = shape
    a_token = 2 * (4 * hidden**2 + 2 * hidden * inner)
    lengths = [len(tokens.ids) for tokens in sequences]
    return layers * (a_token * sum(lengths) + 4 * hidden * sum(length**2 for length in lengths))


@contextmanager
def peak_memory() -> Iterator[Callable[[], float | None]]:
    """Yield what returns the most MiB that were allocated on the GPU since; None on the CPU."""
    if not ON_GPU:
        yield lambda: None
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield lambda: round(torch.cuda.max_memory_allocated() / 2**20)
    torch.cuda.empty_cache()


@functools.cache
def _fixed() -> dict[str, str]:
    found = {"device": torch.cuda.get_device_name() if ON_GPU else platform.processor() or platform.machine()}
    found["driver"] = _smi("driver_version") or "none"
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def machine() -> dict[str, str]:
    """Return what figures depend on: device, driver, versions, and the date."""
    return {**_fixed(), "date": dt.datetime.now(tz=dt.UTC).date().isoformat()}


def _smi(field: str) -> str:
    """Return what nvidia-smi says of the first GPU; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - fixed
    return found.stdout.strip() if found.returncode == 0 else ""


class BusyShare:
    """Watches how much of the time the GPU computes, as nvidia-smi has it; `share` is None without one."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def share(self) -> float | None:
        """The mean share, from 0 to 1."""
        return round(statistics.mean(self._seen) / 100, 3) if self._seen else None

    def _watch(self) -> None:
        while ON_GPU and not self._ended.wait(0.3):
            found = _smi("utilization.gpu")
            if found.isdecimal():
                self._seen.append(float(found))
