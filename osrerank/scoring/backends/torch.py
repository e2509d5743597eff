"""Run models in torch: BERT, RoBERTa and ModernBERT with osrerank's forward pass, other families with transformers.

Osrerank's forward pass computes *packed* batches, whose sequences are concatenated without padding.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from osrerank._optional import require
from osrerank._threads import NATIVE_CODE
from osrerank.errors import InferenceError, MissingDependencyError, ModelLoadError
from osrerank.scoring.backends.base import closed_error
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import list_parameter_files
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.model_files import CONFIG_FILE, read_config, read_padding_id
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.modular.description import STATIC_MODEL_TYPE
from osrerank.scoring.modular.head import Head
from osrerank.types.vectors import Rows

if TYPE_CHECKING:
    from osrerank.scoring.backends.networks.engine import Engine  # imports torch

BUDGET_TOKENS = {"cpu": 2048, "cuda": 32768}
"""The maximum number of tokens in a batch on each device."""
THREADS = {"cpu": 1, "cuda": 2}
"""The number of threads that compute batches on each device. With two, one prepares a batch while the GPU computes."""

logger = logging.getLogger(__name__)


class TorchBackend:
    """A network in torch, on a CUDA device if the machine has one.

    A batch that does not fit into the device's memory fails, and the caller splits it. Later batches are at most half
    as large.

    Args:
        engine: the network on its device.
        device: ``cpu`` or ``cuda``.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        model: the model's name, for error messages.
        files: the weight files, relative to the model's directory.
    """

    name = "torch"

    def __init__(
        self,
        engine: "Engine",
        *,
        device: str,
        precision: str,
        model: str,
        files: Sequence[str],
    ) -> None:
        self._torch: Any = require("torch", extra="torch")
        self._engine: Engine | None = engine
        self._model = model
        self.precision = precision
        self.files = files
        self.is_packed = engine.is_packed
        self.threads = THREADS[device]
        self.is_parallel = False  # the threads do not compute in parallel, because they share one device
        self.budget_tokens = BUDGET_TOKENS[device]

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0, dtype: str = "auto") -> Self:
        """Load a network from the directory's safetensors or, if there are none, from its ONNX graph.

        ``threads`` CPU threads compute a batch. 0 keeps torch's default. The dtype ``auto`` uses 16 bits on a GPU and
        fp32 on the CPU.

        Raises:
            ModelLoadError: the directory contains no weights, or they cannot be read or do not match the config.
            MissingDependencyError: the extra ``torch`` is not installed.
        """
        torch = require("torch", extra="torch")
        from osrerank.scoring.backends.networks.engine import choose_precision  # noqa: PLC0415 - imports torch

        files = list_parameter_files(directory)
        if not files:
            reason = f"{directory} has neither *.safetensors nor an ONNX graph; add the model's weights"
            raise ModelLoadError(reason, model=card.name, path=str(directory))
        if threads:
            torch.set_num_threads(threads)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = choose_precision(dtype, device)
        with NATIVE_CODE:
            engine, implementation = _load_engine(directory, card, device, precision)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        logger.info("%s runs in torch %s on %s, %s, %s", card.name, torch.__version__, name, precision, implementation)
        return cls(engine, device=device.type, precision=precision, model=card.name, files=files)

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        engine = self._engine
        if engine is None:
            raise closed_error(self._model)
        try:
            return engine(sequences)
        except self._torch.OutOfMemoryError as error:
            memory_error = self._limit_batches(sequences)
            raise memory_error from error.with_traceback(None)  # the traceback keeps GPU memory in use
        except (RuntimeError, InferenceError) as error:
            raise InferenceError(f"{self._model} failed in torch: {error}", model=self._model) from error

    def close(self) -> None:
        self._engine = None

    def _limit_batches(self, sequences: Sequence[Tokens]) -> InferenceError:
        """Limit later batches to half of a batch that did not fit into memory, and return the error to raise."""
        lengths = [len(tokens.ids) for tokens in sequences]
        batch_tokens = sum(lengths) if self.is_packed else len(lengths) * max(lengths)  # including padding
        self.budget_tokens = max(1, min(self.budget_tokens, batch_tokens // 2))
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()
        size = f"{len(sequences)} sequences, {batch_tokens} tokens in all"
        reason = f"{self._model}: a batch ({size}) does not fit into the GPU's memory"
        logger.warning("[memory-short] %s; later batches have at most %d tokens", reason, self.budget_tokens)
        return InferenceError(f"{reason}; free some memory, or use a smaller model", model=self._model)


load = TorchBackend.load  # `osrerank.scoring.registry` calls this


def _load_engine(directory: Path, card: ModelCard, device: Any, precision: str) -> "tuple[Engine, str]":
    """Load the network onto its device. Return it, and its implementation for the log, such as "packed attention"."""
    from osrerank.scoring.backends.networks import load as packed_loading  # noqa: PLC0415 - imports torch
    from osrerank.scoring.backends.networks.attention import choose_attention  # noqa: PLC0415 - imports torch
    from osrerank.scoring.backends.networks.engine import (  # noqa: PLC0415 - imports torch
        DTYPES,
        PackedEngine,
        PaddedEngine,
        TokenVectorEngine,
    )

    config = read_config(directory)
    dtype = DTYPES[precision]
    head = read_head(directory, card)
    unsupported_reason = packed_loading.unsupported_reason(config, card, head)
    if unsupported_reason:
        if card.kind == "late-interaction":
            message = f"{directory} cannot run in torch: {unsupported_reason}"
            raise ModelLoadError(message, model=card.name, path=str(directory))
        network = load_network(directory, card).to(dtype)
        return PaddedEngine(network, device, read_padding_id(directory)), f"transformers ({unsupported_reason})"
    attention_head_size = config["hidden_size"] // config["num_attention_heads"]
    has_windows = packed_loading.has_windows(config)
    attention, padding_reason = choose_attention(device, dtype, attention_head_size, has_windows=has_windows)
    try:
        packed_network = packed_loading.load_packed(
            read_weights(directory), config, card, attention=attention, dtype=dtype, head=head
        )
    except KeyError as error:
        raise _missing_weights_error(directory, card, str(error.args[0])) from error
    except (ModelLoadError, MissingDependencyError):
        raise
    except Exception as error:
        raise _unreadable_error(directory, card, error) from error
    implementation = f"{attention.name} attention"
    if padding_reason:
        implementation += f" ({padding_reason})"
    engine_class = TokenVectorEngine if card.kind == "late-interaction" else PackedEngine
    return engine_class(packed_network, device), implementation


def load_network(directory: Path, card: ModelCard) -> Any:
    """Load the model as a ``torch.nn.Module`` of transformers.

    The module takes the fields of `PaddedBatch` by name. It returns logits ``(n, labels)``, or a bi-encoder's vectors
    ``(n, dimensions)``.

    Raises:
        ModelLoadError: the weights cannot be read, or do not match the config.
    """
    try:
        head = read_head(directory, card)
        return _load_classifier(directory, card) if head is None else _load_modular(directory, card, head)
    except (ModelLoadError, MissingDependencyError):
        raise
    except Exception as error:
        raise _unreadable_error(directory, card, error) from error


def read_head(directory: Path, card: ModelCard) -> Head | None:
    """Return the head that follows the encoder, or None for a transformers classifier, which contains its head."""
    if card.is_encoder:
        return card.vector_head
    description = read_cross_encoder(directory)
    return description.head if description else None


def read_weights(directory: Path) -> Mapping[str, Any]:
    """Read the directory's weights by name, from its safetensors or, if there are none, from its ONNX graph.

    If sentence-transformers saved the model, the names of a module's weights begin with the module's folder, such as
    ``2_Dense.linear.weight``.

    Raises:
        ModelLoadError: the directory contains only an ONNX graph, and osrerank did not export it.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    files = list_parameter_files(directory)
    if files and files[0].endswith(".onnx"):
        return _read_graph(directory, files[0])
    safetensors: Any = require("safetensors.torch", extra="torch")
    return {
        ".".join((*Path(file).parent.parts, name)): tensor
        for file in files
        for name, tensor in safetensors.load_file(directory / file).items()
    }


def _read_graph(directory: Path, graph: str) -> Mapping[str, Any]:
    from osrerank.scoring.backends.networks.onnx_weights import read_graph_weights  # noqa: PLC0415 - imports torch

    file, config = directory / graph, read_config(directory)
    if config.get("model_type") != "bert":
        reason = f"only a BERT's weights can be read from its graph, and model_type is {config.get('model_type')!r}"
        fix = "add the safetensors, or export the model again with --keep-weights"
        raise ModelLoadError(f"{file}: {reason}; {fix}", path=str(file))
    try:
        return read_graph_weights(file, config)
    except KeyError as error:
        reason = f"{file} has no weight {error}, because osrerank did not export this graph; add the safetensors"
        raise ModelLoadError(reason, path=str(file)) from error


def _load_classifier(directory: Path, card: ModelCard) -> Any:
    """Load a classifier of transformers. The directory's files must contain all of its weights."""
    from osrerank.scoring.backends.networks.classifier import Classifier  # noqa: PLC0415 - imports torch

    transformers: Any = require("transformers", extra="torch")
    _refuse_decoder(directory, card, transformers)
    architecture = transformers.AutoModelForSequenceClassification
    if card.head == "next-sentence":
        architecture = transformers.BertForNextSentencePrediction
    network, loading = architecture.from_pretrained(
        directory, use_safetensors=True, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    if loading["missing_keys"]:
        raise _missing_weights_error(directory, card, ", ".join(sorted(loading["missing_keys"])[:3]))
    return Classifier(network)


def _refuse_decoder(directory: Path, card: ModelCard, transformers: Any) -> None:
    """Refuse a decoder, such as Qwen: a family for which transformers has no masked language model."""
    family = str(read_config(directory).get("model_type"))
    if family not in transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        file = directory / CONFIG_FILE
        reason = f"{file}: model_type is {family!r}, a decoder, but osrerank runs only encoders"
        fix = "run the model on a rerank server (--backend http)"
        raise ModelLoadError(f"{reason}; {fix}", model=card.name, path=str(file))


def _load_modular(directory: Path, card: ModelCard, head: Head) -> Any:
    """Load an encoder of transformers and a separate head. The directory's files must contain all weights of both."""
    from osrerank.scoring.backends.networks.classifier import (  # noqa: PLC0415 - imports torch
        EmbeddingTable,
        ModularClassifier,
    )
    from osrerank.scoring.backends.networks.heads import HeadNetwork  # noqa: PLC0415 - imports torch

    transformers: Any = require("transformers", extra="torch")
    weights, config = read_weights(directory), read_config(directory)
    if config.get("model_type") == STATIC_MODEL_TYPE:
        table = EmbeddingTable(weights["embedding.weight"], transformers.PretrainedConfig(**config))
        return ModularClassifier(table, HeadNetwork(head, weights)).eval()
    network, loading = transformers.AutoModel.from_pretrained(
        directory, use_safetensors=True, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    missing = [name for name in loading["missing_keys"] if not name.startswith("pooler.")]  # the head replaces it
    if missing:
        raise _missing_weights_error(directory, card, ", ".join(sorted(missing)[:3]))
    try:
        return ModularClassifier(network, HeadNetwork(head, weights)).eval()
    except KeyError as error:
        raise _missing_weights_error(directory, card, str(error.args[0])) from error


def _missing_weights_error(directory: Path, card: ModelCard, names: str) -> ModelLoadError:
    reason = f"{directory} lacks weights that its config.json requires ({names}); use a fine-tuned reranker"
    return ModelLoadError(reason, model=card.name, path=str(directory))


def _unreadable_error(directory: Path, card: ModelCard, error: Exception) -> ModelLoadError:
    reason = (
        f"the weights in {directory} cannot be read; download or save the model again ({type(error).__name__}: {error})"
    )
    return ModelLoadError(reason, model=card.name, path=str(directory))
