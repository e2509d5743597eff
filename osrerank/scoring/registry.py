"""Load models by their names: `load_model` into this process, and `load` as the settings say.

With the settings, the model can also run in workers or on a rerank server. `BACKENDS` lists the backends.
"""

import difflib
import hashlib
import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from osrerank.errors import ConfigError, ModelLoadError, OsrerankError
from osrerank.scoring.card import DUO, POINTWISE, Kind, ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.model_files import CARD_FILE, GRAPH_PATTERNS, WEIGHT_PATTERNS, weight_files
from osrerank.scoring.names import AUTO, BACKEND_NAMES, DTYPES, HTTP, LOCAL_BACKENDS, WORKERS
from osrerank.settings import Settings
from osrerank.types import Encoder, Scorer, is_encoder

if TYPE_CHECKING:
    from osrerank.scoring.backends.base import Backend
    from osrerank.scoring.bi_encoder import BiEncoder
    from osrerank.scoring.checkpoints.convert import ConvertedModel
    from osrerank.scoring.cross_encoder import CrossEncoder
    from osrerank.scoring.encoder_scorer import EncoderScorer

Model = Scorer | Encoder
ScorerT = TypeVar("ScorerT", bound=Scorer)

NO_DUO_MODEL = (
    "no duo model is configured, and there is no default: export the authors' duobert-large-msmarco with "
    "osrerank export FOLDER duobert --kind duo, or train a model with osrerank train duo"
)
NVIDIA_DRIVER_FILE = Path("/dev/nvidiactl")
"""A device file that exists if NVIDIA's driver is loaded."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A backend: a program that computes a model's network, or the workers or the server that run the model.

    Attributes:
        name: the name for ``--backend``.
        module: the module that defines the backend's function ``load``. It is imported on first use.
        kinds: the kinds of models that it supports.
        weight_patterns: the file patterns of the weights that it reads, for `osrerank.scoring.locate.locate`.
        dtypes: the values of ``--dtype`` that it accepts.
    """

    name: str
    module: str
    kinds: Sequence[Kind] = (*POINTWISE, *DUO)
    weight_patterns: Sequence[Sequence[str]] = ()
    dtypes: Sequence[str] = (AUTO,)

    def load(self, *arguments: Any, **options: Any) -> Any:
        """Import the module, and call its ``load``.

        For a local backend, the arguments are a directory, a card, ``threads`` and ``dtype``, and the result is a
        `Backend`. For another, they are the settings and a model's name, and the result is a scorer or an encoder.
        """
        return importlib.import_module(self.module).load(*arguments, **options)


BACKENDS = {
    entry.name: entry
    for entry in (
        BackendEntry("onnx", "osrerank.scoring.backends.onnx", weight_patterns=GRAPH_PATTERNS),
        BackendEntry("torch", "osrerank.scoring.backends.torch", weight_patterns=WEIGHT_PATTERNS, dtypes=DTYPES),
        BackendEntry(WORKERS, "osrerank.scoring.remote.load"),
        BackendEntry(HTTP, "osrerank.scoring.backends.http.load", kinds=POINTWISE),
    )
}


def load(settings: Settings, kinds: Sequence[Kind] = (), *, model: str | None = None, in_worker: bool = False) -> Model:
    """Return the model that the settings describe.

    Args:
        settings: the settings, with the model, the backend and the backend's options.
        kinds: the accepted kinds of models, such as ``("duo",)``. If empty, all kinds are accepted.
        model: the model to use instead of ``settings.model``. "" raises the error that no duo model is configured.
        in_worker: whether this process is a worker. If so, the backend ``workers`` means that it computes by itself.

    For the errors, see `load_model`.
    """
    name = settings.model if model is None else model
    entry = BACKENDS.get(settings.backend)  # None for ``auto``
    if entry is not None and kinds and not set(kinds).intersection(entry.kinds):
        # every backend supports all kinds but duo
        fix = "use a pipeline without duo, or another backend"
        reason = f"the backend {entry.name} cannot compare pairs of documents; {fix}"
        raise ModelLoadError(reason, model=name)
    if not name:
        raise ModelLoadError(NO_DUO_MODEL)
    is_worker_itself = in_worker and settings.backend == WORKERS
    if is_local(settings.backend) or is_worker_itself:
        return load_local(settings, kinds, model=name)
    remote_model: Model = BACKENDS[settings.backend].load(settings, name)
    return remote_model


def load_local(
    settings: Settings, kinds: Sequence[Kind] = (), *, model: str | None = None
) -> "CrossEncoder | BiEncoder":
    """Load the settings' model into this process. If the settings choose a remote backend, ``auto`` is used instead.

    For the arguments, see `load`. For the errors, see `load_model`.
    """
    return load_model(
        settings.model if model is None else model,
        backend=settings.backend if is_local(settings.backend) else AUTO,
        threads=settings.threads,
        dtype=settings.dtype,
        kinds=kinds,
    )


def load_model(
    model: str, *, backend: str = AUTO, threads: int = 0, dtype: str = AUTO, kinds: Sequence[Kind] = ()
) -> "CrossEncoder | BiEncoder":
    """Load a model into this process.

    Args:
        model: a directory in Hugging Face layout, the name of a shipped model (``osrerank/e5-small``), or a hub id,
            with an optional ``@revision``.
        backend: ``onnx``, ``torch``, or ``auto``. ``auto`` chooses ONNX if the model has a graph, and torch otherwise.
            Only ``torch`` uses a GPU; ``auto`` logs a warning if it leaves one unused.
        threads: number of CPU threads. 0 uses all cores that are available to this process.
        dtype: the dtype in which torch computes: ``fp32``, ``bf16``, ``fp16``, or ``auto`` for 16 bits on a GPU and
            fp32 on the CPU. Any other value than ``auto`` needs torch, because an ONNX graph has fixed dtypes.
        kinds: the accepted kinds of models. If empty, all kinds are accepted.

    Returns:
        An encoder if the model is a bi-encoder or uses late interaction, else a scorer. A cross-encoder scores single
        documents, given as ``(i,)`` with the document's index; a duo model scores pairs, given as ``(i, j)``.

    Raises:
        ConfigError: there is no such backend or dtype, or the backend cannot compute in that dtype.
        ModelLoadError: the model was not found, cannot be loaded, or is of a kind that is not in ``kinds``.
        MissingDependencyError: the backend needs an extra that is not installed.
    """
    from osrerank.scoring.checkpoints.convert import convert_if_needed  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.locate import locate  # noqa: PLC0415 - imports tokenizers

    backend = _backend_for_dtype(backend, dtype)
    converted = convert_if_needed(locate(model, weight_patterns=list_weight_patterns(backend)))
    directory = converted.directory
    if not Path(model).expanduser().exists():  # a shipped model or a hub id
        card_name = model
    elif converted.sha256:  # the copy's folder is named by this digest, so use the original folder's name
        card_name = Path(model).name
    else:
        card_name = ""  # read_card uses the name in the card, or that of the folder
    card = read_card(directory, name=card_name)
    if kinds and card.kind not in kinds:
        reason = f"{directory} is a {card.kind} model; choose a {' or '.join(kinds)} model"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    loaded_backend = load_backend(directory, card, backend=backend, threads=threads, dtype=dtype)
    loaded_model = build_model(directory, card, loaded_backend)
    if is_encoder(loaded_model):
        load_query_model(loaded_model, directory, backend=backend, threads=threads, dtype=dtype)
    _self_check_on_first_load(loaded_model, converted)
    return loaded_model


def _self_check_on_first_load(model: "CrossEncoder | BiEncoder", converted: "ConvertedModel") -> None:
    """Check that a model from another program ranks well. If it does, this is recorded, and not checked again.

    Only converted cross-encoders and duo models are checked, and bi-encoders whose ONNX graph another program exported.

    Raises:
        ModelLoadError: the model does not pass. The message has the likely cause.
    """
    from osrerank.scoring.checkpoints.convert import ExternalGraph  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.checkpoints.self_check import require_self_check  # noqa: PLC0415 - imports tokenizers

    directory = converted.directory
    checked_model: ConvertedModel | ExternalGraph = converted
    if is_encoder(model):
        has_osrerank_graph = (directory / CARD_FILE).exists()  # osrerank exports a card with its graphs
        if model.backend.name != "onnx" or has_osrerank_graph:
            return
        checked_model = ExternalGraph(hashlib.sha256(model.identity.encode()).hexdigest())
    if not checked_model.needs_self_check:
        return
    try:
        self_check = require_self_check(model, directory, model.card, sha256=checked_model.sha256)
        checked_model.record_pass(str(self_check))
    except OsrerankError:
        model.close()
        raise


def load_query_model(
    model: "BiEncoder", directory: Path, *, backend: str = AUTO, threads: int = 0, dtype: str = AUTO
) -> None:
    """Load a bi-encoder's separate query model, if its card specifies one. For the options, see `load_model`.

    Raises:
        ModelLoadError: the query model cannot be loaded, or the vectors of both models cannot be compared.
        MissingDependencyError: the backend is not installed.
    """
    if not model.card.query_model:
        return
    folder = directory / model.card.query_model
    if not (folder / CARD_FILE).exists():
        reason = f"{folder / CARD_FILE}, the card of the query model, is missing; copy the whole folder"
        raise ModelLoadError(reason, model=model.model, path=str(folder))
    query_model = load_model(str(folder), backend=backend, threads=threads, dtype=dtype, kinds=("bi-encoder",))
    model.encode_queries_with(cast("BiEncoder", query_model))


def load_scorer(
    model: str,
    *,
    backend: str = AUTO,
    threads: int = 0,
    dtype: str = AUTO,
    kinds: Sequence[Kind] = (),
    settings: Settings | None = None,
) -> "CrossEncoder | EncoderScorer":
    """Load a model with `load_model`, and return it as a scorer with `as_scorer`."""
    return as_scorer(load_model(model, backend=backend, threads=threads, dtype=dtype, kinds=kinds), settings)


def as_scorer(model: ScorerT | Encoder, settings: Settings | None = None) -> "ScorerT | EncoderScorer":
    """Return the model as a scorer. An encoder is wrapped in an `EncoderScorer`.

    The settings say where the encoder's vectors are stored. Without settings, vectors are neither rounded nor stored.
    """
    if not is_encoder(model):
        return model
    from osrerank.scoring.encoder_scorer import EncoderScorer  # noqa: PLC0415 - only encoders need it
    from osrerank.vectors.documents import DocumentVectors  # noqa: PLC0415 - only encoders need it
    from osrerank.vectors.storage import VectorStorage  # noqa: PLC0415 - only encoders need it

    return EncoderScorer(DocumentVectors(model, None if settings is None else VectorStorage.from_settings(settings)))


def build_model(directory: Path, card: ModelCard, backend: "Backend") -> "CrossEncoder | BiEncoder":
    """Return a model of the card's kind, made of the directory's tokenizer and a backend with the loaded network.

    Raises:
        ModelLoadError: the tokenizer cannot be read.
    """
    from osrerank.scoring.bi_encoder import BiEncoder  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.cross_encoder import CrossEncoder  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.duo import Duo  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.inputs import InputBuilder  # noqa: PLC0415 - imports tokenizers
    from osrerank.scoring.late_interaction import LateInteraction  # noqa: PLC0415 - imports tokenizers

    builder = InputBuilder.load(directory, card)
    classes: dict[Kind, type[CrossEncoder | BiEncoder]] = {
        "bi-encoder": BiEncoder,
        "late-interaction": LateInteraction,
        "cross-encoder": CrossEncoder,
        "duo": Duo,
    }
    return classes[card.kind](directory, card, builder, backend)


def load_backend(
    directory: Path, card: ModelCard, *, backend: str = AUTO, threads: int = 0, dtype: str = AUTO
) -> "Backend":
    """Load a model's network without its tokenizer. For the arguments and errors, see `load_model`."""
    check_backend(backend, local=True)
    name = _choose_backend(directory, card) if backend == AUTO else backend
    loaded_backend: Backend = BACKENDS[name].load(directory, card, threads=threads, dtype=dtype)
    return loaded_backend


def check_backend(name: str, *, local: bool = False) -> str:
    """Check that a backend exists, and return its name. With ``local``, it must also compute in this process.

    Raises:
        ConfigError: there is no such backend. The message lists the backends, and suggests the most similar name.
    """
    return _check_name("backend", name, LOCAL_BACKENDS if local else BACKEND_NAMES)


def check_settings(settings: Settings) -> None:
    """Raise `ConfigError` unless the backend and the dtype exist, and the backend ``http`` has a server."""
    check_backend(settings.backend)
    _check_name("dtype", settings.dtype, DTYPES)
    if settings.backend == HTTP:
        from osrerank.scoring.backends.http.load import check  # noqa: PLC0415 - only one backend needs it

        check(settings)


def is_local(backend: str) -> bool:
    """Return whether a backend computes in this process. Raises `ConfigError` if there is no such backend."""
    return check_backend(backend) in LOCAL_BACKENDS


def list_weight_patterns(backend: str) -> Sequence[Sequence[str]]:
    """Return the file patterns of a backend's weights, for `locate`. For ``auto``, return those of all backends."""
    if backend != AUTO:
        return BACKENDS[backend].weight_patterns
    return [patterns for entry in BACKENDS.values() for patterns in entry.weight_patterns]


def _check_name(setting: str, name: str, names: Sequence[str]) -> str:
    if name in names:
        return name
    similar_names = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {similar_names[0]!r}?" if similar_names else ""
    reason = f"{setting} is {name!r}; it must be one of {', '.join(names)}{hint}"
    raise ConfigError(reason, setting=setting, source=f"--{setting} or OSRERANK_{setting.upper()}")


def _backend_for_dtype(backend: str, dtype: str) -> str:
    """Return the backend. If it is ``auto`` and the dtype is not, return a backend that can compute in the dtype.

    Raises:
        ConfigError: there is no such backend or dtype, or the backend cannot compute in that dtype.
    """
    check_backend(backend, local=True)
    _check_name("dtype", dtype, DTYPES)
    suitable_backends = [entry.name for entry in BACKENDS.values() if dtype in entry.dtypes]
    if backend == AUTO:
        return AUTO if dtype == AUTO else suitable_backends[0]
    if backend not in suitable_backends:
        fix = f"leave dtype out, or use --backend {suitable_backends[0]}"
        reason = f"backend {backend} does not compute in {dtype}; {fix}"
        raise ConfigError(reason, setting="dtype", source="argument")
    return backend


def _choose_backend(directory: Path, card: ModelCard) -> str:
    """Return the backend that ``auto`` stands for: ONNX if the model has a graph, otherwise torch."""
    if card.onnx:
        # an encoder computes each vector only once, so it hardly needs the GPU
        if NVIDIA_DRIVER_FILE.exists() and not card.is_encoder:
            logger.warning(
                "[gpu-unused] %s runs on the CPU, but this machine has a GPU: use the GPU with --backend torch",
                card.name,
            )
        return "onnx"
    if find_spec("torch") is None or not weight_files(directory):
        reason = f"{directory} contains no ONNX graph, and torch or the model's safetensors are missing"
        fix = "run osrerank export on it, or pip install 'osrerank[torch]' and add the safetensors"
        raise ModelLoadError(f"{reason}; {fix}", model=card.name, path=str(directory))
    return "torch"
