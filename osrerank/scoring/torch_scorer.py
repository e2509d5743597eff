"""The torch backend: the plain transformers forward, which every other backend is tested against."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring.inputs import Batch, Tokens, padded
from osrerank.scoring.model import CONFIG_FILE, ModelCard, padding_id, read_json, weight_files

BUDGET_TOKENS = {"cpu": 2048, "cuda": 65536}


class TorchBackend:
    """A torch module in fp32.

    Args:
        network: takes the model's inputs by name, gives logits ``(n, labels)``.
        device: where it runs.
        model: the model's name, for errors.
        files: the weights, relative to the model's directory.
        pad_id: id of the padding token.
    """

    precision = "fp32"
    packed = False
    lanes = 1

    def __init__(self, network: Any, *, device: str, model: str, files: Sequence[str], pad_id: int = 0) -> None:
        self._torch: Any = require("torch", extra="torch")
        self._network: Any = network.to(device).eval()
        self._device = device
        self._model = model
        self._pad_id = pad_id
        self.files = files
        self.budget_tokens = BUDGET_TOKENS[device]

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0) -> Self:
        """Read the directory's safetensors.

        Raises:
            ModelLoadError: there are none, they cannot be read, or they are not the config's.
            MissingDependencyError: the extra ``torch`` is not installed.
        """
        torch = require("torch", extra="torch")
        files = weight_files(directory)
        if not files:
            reason = f"{directory} has no *.safetensors; use --backend onnx, or bring the weights"
            raise ModelLoadError(reason, model=card.name, path=str(directory))
        if threads:
            torch.set_num_threads(threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        network, pad_id = load_network(directory, card), padding_id(directory)
        return cls(network, device=device, model=card.name, files=files, pad_id=pad_id)

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        if self._network is None:
            raise InferenceError(f"{self._model} is closed", model=self._model)
        batch = padded(sequences, self._pad_id)
        try:
            with self._torch.inference_mode():
                inputs = {
                    name: self._torch.from_numpy(getattr(batch, name)).to(self._device) for name in Batch.__slots__
                }
                logits: npt.NDArray[np.float32] = self._network(**inputs).float().cpu().numpy()
        except RuntimeError as error:  # torch.OutOfMemoryError among them
            raise InferenceError(f"{self._model} failed in torch: {error}", model=self._model) from error
        return logits

    def close(self) -> None:
        self._network = None


def load_network(directory: Path, card: ModelCard) -> Any:
    """Return the model as a ``torch.nn.Module`` that takes `Batch`'s fields by name and gives logits ``(n, labels)``.

    Raises:
        ModelLoadError: the weights cannot be read or are not the config's.
    """
    try:
        return _cross_bias(directory, card) if card.layout == "cross-bias" else _standard(directory, card)
    except ModelLoadError:
        raise
    except Exception as error:
        reason = f"the weights in {directory} cannot be read as {card.name}: {type(error).__name__}: {error}"
        raise ModelLoadError(reason, model=card.name, path=str(directory)) from error


def read_weights(directory: Path) -> Mapping[str, Any]:
    """Return all tensors of the directory's safetensors files."""
    safetensors: Any = require("safetensors.torch", extra="torch")
    return {
        name: tensor
        for file in weight_files(directory)
        for name, tensor in safetensors.load_file(directory / file).items()
    }


def _cross_bias(directory: Path, card: ModelCard) -> Any:
    from osrerank.scoring.cross_bias import CrossBias, from_bert  # noqa: PLC0415 - imports torch

    return from_bert(read_weights(directory), read_json(directory / CONFIG_FILE), CrossBias(**card.biases))


def _standard(directory: Path, card: ModelCard) -> Any:
    """Return a transformers classifier that gives its logits, all of its weights read from the files."""
    from osrerank.scoring.classifier import Classifier  # noqa: PLC0415 - imports torch

    transformers: Any = require("transformers", extra="torch")
    is_next_sentence = card.head == "next-sentence"
    architecture = (
        transformers.BertForNextSentencePrediction
        if is_next_sentence
        else transformers.AutoModelForSequenceClassification
    )
    network, loading = architecture.from_pretrained(
        directory, use_safetensors=True, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        reason = (
            f"{directory} lacks weights that its config.json asks for: {missing}; it is perhaps no fine-tuned reranker"
        )
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return Classifier(network)
