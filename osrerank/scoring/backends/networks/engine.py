"""Run a network on a device: choose its precision, copy its inputs to the device, and copy its outputs back."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osrerank.scoring.backends.networks.bert import PackedNetwork
from osrerank.scoring.backends.networks.classifier import Classifier, ModularClassifier
from osrerank.scoring.backends.networks.packing import Int32Array
from osrerank.scoring.inputs import PaddedBatch, Tokens, pad
from osrerank.types.vectors import Rows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> torch's type."""


class PackedEngine:
    """Runs osrerank's own implementation of a network, which takes a batch's sequences concatenated without padding.

    All inputs of a batch are copied to the device in one transfer, and its outputs are copied back in another. Neither
    transfer waits for other batches, so one thread can prepare a batch while the device computes another thread's
    batch.

    Attributes:
        is_packed: whether the batch is also computed without padding. Some attention implementations pad it.
    """

    def __init__(self, network: PackedNetwork, device: torch.device) -> None:
        self._network = network.to(device)
        self._device = device
        self.is_packed = network.attention.is_packed

    def __call__(self, sequences: Sequence[Tokens]) -> Rows:
        """Return the logits or the vector of each sequence."""
        arrays = self._network.pack(sequences)
        lengths = arrays[-1]  # the network needs them both on the device and in the CPU's memory
        with torch.inference_mode():
            return copy_to_host(self._network(copy_to_device(arrays, self._device), lengths))


class TokenVectorEngine(PackedEngine):
    """Runs a network for late interaction, and splits its token vectors by sequence."""

    def __call__(self, sequences: Sequence[Tokens]) -> Rows:
        ends = np.cumsum([len(tokens.ids) for tokens in sequences])
        return np.split(super().__call__(sequences), ends[:-1])


class PaddedEngine:
    """Runs a network of transformers on padded batches, for architectures that osrerank does not implement."""

    is_packed = False

    def __init__(self, network: Classifier | ModularClassifier, device: torch.device, pad_id: int) -> None:
        self._network = network.to(device).eval()
        self._device = device
        self._pad_id = pad_id

    def __call__(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        batch = pad(sequences, self._pad_id)
        shape = batch.input_ids.shape
        names = PaddedBatch.__slots__  # the names of the network's inputs
        flat_tensors = copy_to_device([getattr(batch, name).ravel() for name in names], self._device)
        inputs = {name: flat.view(shape).long() for name, flat in zip(names, flat_tensors, strict=True)}
        with torch.inference_mode():
            return copy_to_host(self._network(**inputs).float())


Engine = PackedEngine | PaddedEngine
"""A network on its device. A call returns the logits or vectors of a batch, in the order of the sequences."""


def copy_to_device(arrays: Sequence[Int32Array | npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Copy one-dimensional arrays to the device in one transfer, and return them as int32 tensors."""
    sizes = [len(array) for array in arrays]
    buffer = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate(arrays, out=buffer.numpy(), casting="same_kind")  # converts int64 to int32
    return list(torch.split(buffer.to(device, non_blocking=True), sizes))


def copy_to_host(outputs: Tensor) -> npt.NDArray[np.float32]:
    """Copy fp32 outputs to the CPU's memory when they are computed, without waiting for later work on the device."""
    if outputs.device.type != "cuda":
        return np.asarray(outputs.numpy(), dtype=np.float32)
    host = torch.empty(outputs.shape, dtype=outputs.dtype, pin_memory=True)
    host.copy_(outputs, non_blocking=True)
    event = torch.cuda.current_stream(outputs.device).record_event()
    event.synchronize()
    return np.array(host.numpy(), dtype=np.float32)  # a copy, which frees the pinned memory


def choose_precision(name: str, device: torch.device) -> str:
    """Return ``name``, or the device's precision for ``auto``: fp32 on the CPU, and bf16 or fp16 on a GPU.

    On a GPU, fp16 would be more precise, but bf16 is preferred: its range is that of fp32, so no checkpoint overflows.
    """
    if name != "auto":
        return name
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
