"""Convert a checkpoint in another format to a directory with ``config.json``, ``tokenizer.json`` and safetensors.

Each checkpoint is converted once. The converted directory is saved in the user's cache folder, under the SHA-256 of the
checkpoint's files.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints import tensorflow
from osrerank.scoring.checkpoints.pickled import INDEX_FILE, pickled_files, read_pickled
from osrerank.scoring.checkpoints.vocabulary import SETTINGS_FILE, SPECIAL_TOKENS_FILE, VOCABULARY_FILE, build_tokenizer
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    copy_existing,
    hash_files,
    weight_files,
)
from osrerank.settings import user_folder

HeadForm = Literal["", "logit1", "logits2", "next-sentence", "encoder"]
"""Form of a model's head. "" means that the model's files specify it."""
FAMILIES = {
    "bert": "Bert",
    "electra": "Electra",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
}
"""``model_type`` -> prefix of transformers' classes, such as ``BertForSequenceClassification``."""
CLASSIFIER_WEIGHTS = ("classifier.weight", "classifier.out_proj.weight")
"""Names that a classifier's last matrix ``(labels, hidden)`` can have."""
NEXT_SENTENCE_WEIGHT = "cls.seq_relationship.weight"
SOURCE_FILE = "source.json"
"""File in a converted directory that records the source, its hash and the head."""
SELF_CHECK_FILE = "self-check.json"
"""File that records that a model passed its self-check."""
UNRECORDED = "the self-check cannot be recorded, so each load of the model repeats it: %s"
NOTICES = ("LICENSE", "NOTICE")
"""Files that are copied with a model, if they exist."""
CACHE_VERSION = "2"
"""Version of the converted directories' format, also a folder in their path. Version 2 added tokenizer_config.json."""

logger = logging.getLogger(__name__)


class ConvertedModel(NamedTuple):
    """A model directory that can be loaded.

    Attributes:
        directory: the converted directory, or the checkpoint's directory if it needed no conversion.
        sha256: SHA-256 of the checkpoint's files. "" if the checkpoint needed no conversion.
    """

    directory: Path
    sha256: str = ""

    @property
    def needs_self_check(self) -> bool:
        """Whether the model was converted and has not passed its self-check yet."""
        return bool(self.sha256) and not (self.directory / SELF_CHECK_FILE).exists()

    def record_pass(self, outcome: str) -> None:
        """Record in the directory that the model has passed its self-check."""
        _record_pass(self.directory / SELF_CHECK_FILE, outcome)


class ExternalGraph(NamedTuple):
    """A graph that another program exported. Its self-check is recorded in the cache folder.

    Attributes:
        sha256: SHA-256 of everything that the graph's scores depend on.
    """

    sha256: str

    @property
    def needs_self_check(self) -> bool:
        """Whether the graph has not passed its self-check yet."""
        try:
            return not self._file.exists()
        except RuntimeError:  # this user has no home folder
            return True

    def record_pass(self, outcome: str) -> None:
        """Record in the cache folder that the graph has passed its self-check."""
        try:
            file = self._file
        except RuntimeError as error:  # this user has no home folder
            logger.info(UNRECORDED, error)
        else:
            _record_pass(file, outcome)

    @property
    def _file(self) -> Path:
        return cache_folder() / f"graph-{self.sha256}" / SELF_CHECK_FILE


def _record_pass(file: Path, outcome: str) -> None:
    """Write the file that records that a model passed its self-check. The folder may be read-only."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_json(file, {"passed": outcome})
    except OSError as error:
        logger.info(UNRECORDED, error)


def convert_if_needed(source: Path, head: HeadForm = "") -> ConvertedModel:
    """Return a model's directory, or a converted copy if it cannot be loaded directly.

    Pickled weights, TensorFlow weights, and a vocab.txt without a tokenizer.json are converted.

    Args:
        source: directory of the model, or the file of pickled weights in it.
        head: form of the model's head, if the files do not specify it. If it is given, the model is always converted,
            and the new ``config.json`` specifies the head.

    Raises:
        ModelLoadError: the checkpoint cannot be read.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    if not head and not needs_conversion(source):
        return ConvertedModel(source)
    files = _list_files(source)
    sha256 = hash_files(_model_folder(source), [file.name for file in files])
    try:
        target = cache_folder() / (f"{sha256}-{head}" if head else sha256)
    except RuntimeError:
        raise _cache_error(source, "this user has no home folder") from None
    if target.exists():
        return ConvertedModel(target, sha256)
    require("safetensors.torch", extra="torch")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary_directory = tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-")
    except OSError as error:
        raise _cache_error(source, f"{target.parent}: {error.strerror}") from error
    with temporary_directory as temporary_path:
        unfinished_directory = Path(temporary_path) / "model"
        unfinished_directory.mkdir()
        _write_model(source, unfinished_directory, head, sha256)
        try:
            unfinished_directory.rename(target)
        except OSError:  # another process may have converted it in the meantime
            if not target.exists():
                raise
    logger.info("%s was converted to %s; later loads use that copy", source, target)
    return ConvertedModel(target, sha256)


def needs_conversion(source: Path) -> bool:
    """Return whether a checkpoint must be converted. A file of pickled weights always must be."""
    if source.is_file():
        return True
    if (source / CARD_FILE).exists() or any(source.rglob("*.onnx")):
        return False
    if tensorflow.is_tensorflow(source):
        return True
    has_tokenizer = (source / TOKENIZER_FILE).exists()
    has_vocabulary = (source / VOCABULARY_FILE).exists()
    if weight_files(source):
        return has_vocabulary and not has_tokenizer
    return bool(pickled_files(source)) and (has_tokenizer or has_vocabulary)


def cache_folder() -> Path:
    """Return the folder of converted checkpoints."""
    return user_folder("XDG_CACHE_HOME", ".cache").expanduser() / "models" / CACHE_VERSION


def _cache_error(source: Path, reason: str) -> ModelLoadError:
    message = f"{source} must be converted, but the copy cannot be written ({reason})"
    return ModelLoadError(f"{message}; set XDG_CACHE_HOME to a writable folder", path=str(source))


def _write_model(source: Path, target: Path, head: HeadForm, sha256: str) -> None:
    safetensors: Any = require("safetensors.torch", extra="torch")
    weights, config = _read_checkpoint(source)
    config = {**config, **_infer_config_entries(source, config, weights, head)}
    folder = _model_folder(source)
    if (folder / TOKENIZER_FILE).exists():
        shutil.copyfile(folder / TOKENIZER_FILE, target / TOKENIZER_FILE)
    else:
        build_tokenizer(folder).save(str(target / TOKENIZER_FILE))
    contiguous_weights = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    safetensors.save_file(contiguous_weights, target / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(target / CONFIG_FILE, config)
    _write_json(target / SOURCE_FILE, {"source": folder.name, "sha256": sha256, "head": head})
    copy_existing(folder, target, (*NOTICES, SETTINGS_FILE))


def _read_checkpoint(source: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a checkpoint's weights under transformers' names, and the content of its config file."""
    if tensorflow.is_tensorflow(source):
        torch: Any = require("torch", extra="torch")
        arrays, config = tensorflow.read_tensorflow(source)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, config
    config = read_json(_model_folder(source) / CONFIG_FILE)
    files = weight_files(source)
    if not files:
        return read_pickled(source), config
    safetensors: Any = require("safetensors.torch", extra="torch")
    weights: dict[str, Any] = {}
    for file in files:
        weights |= safetensors.load_file(source / file)
    return weights, config


def _infer_config_entries(
    source: Path, config: Mapping[str, Any], weights: Mapping[str, Any], head: HeadForm
) -> dict[str, Any]:
    """Infer the entries that a config lacks from the head and the weights.

    For a BERT with a ``classifier.weight`` of one row, they are the architecture ``BertForSequenceClassification``, the
    ``model_type`` ``bert`` and the names of one label.

    Raises:
        ModelLoadError: the family is unknown, or the weights do not contain the head.
    """
    if config.get("architectures") and not head:
        return {}
    model_type = str(config.get("model_type") or "")
    if not model_type and any(name.startswith("bert.") for name in weights):
        model_type = "bert"
    family = FAMILIES.get(model_type)
    if family is None:
        file = _model_folder(source) / CONFIG_FILE
        reason = f"{file} has neither architectures nor a model_type that is one of {', '.join(FAMILIES)}"
        raise ModelLoadError(f"{reason}; add the architectures that the model was saved with", path=str(file))
    classifier = next((name for name in CLASSIFIER_WEIGHTS if name in weights), None)
    n_labels = len(weights[classifier]) if classifier else 0
    has_next_sentence = NEXT_SENTENCE_WEIGHT in weights
    heads_in_weights = {"logit1": n_labels == 1, "logits2": n_labels == 2, "next-sentence": has_next_sentence}
    if not heads_in_weights.get(head, True):  # "" and "encoder" need no head
        actual_heads = f"a classifier with {n_labels} labels" if n_labels else "no classifier"
        if has_next_sentence:
            actual_heads += " and a next-sentence head"
        reason = f"{source} has no head {head}: its weights have {actual_heads}; choose another head"
        raise ModelLoadError(reason, path=str(source))
    class_suffix = _find_class_suffix(family, weights, n_labels, head)
    entries: dict[str, Any] = {"architectures": [f"{family}{class_suffix}"], "model_type": model_type}
    if class_suffix == "ForSequenceClassification":
        entries["id2label"] = {str(label): f"LABEL_{label}" for label in range(n_labels)}
        entries["label2id"] = {name: int(label) for label, name in entries["id2label"].items()}
    return entries


def _find_class_suffix(family: str, weights: Mapping[str, Any], n_labels: int, head: HeadForm) -> str:
    """Return the end of the name of transformers' class, such as ``ForSequenceClassification``.

    If ``head`` is "", the head is inferred from the weights.
    """
    if head == "encoder":
        return "Model"
    if head == "next-sentence":
        return "ForNextSentencePrediction"
    if head or n_labels:  # "logit1", "logits2", or a classifier in the weights
        return "ForSequenceClassification"
    predicts_masked_words = any(name.startswith("cls.predictions.") for name in weights)
    if family == "Bert" and NEXT_SENTENCE_WEIGHT in weights:
        return "ForPreTraining" if predicts_masked_words else "ForNextSentencePrediction"
    return "ForMaskedLM" if predicts_masked_words else "Model"


def _model_folder(source: Path) -> Path:
    """Return the model's directory: ``source`` itself, or the directory of its file of pickled weights."""
    return source.parent if source.is_file() else source


def _list_files(source: Path) -> list[Path]:
    """Return all files that affect the converted model, whose hash identifies it in the cache."""
    directory = _model_folder(source)
    names = [
        CONFIG_FILE,
        tensorflow.CONFIG_FILE,
        TOKENIZER_FILE,
        VOCABULARY_FILE,
        SETTINGS_FILE,
        SPECIAL_TOKENS_FILE,
        INDEX_FILE,
    ]
    config_files = [directory / name for name in names if (directory / name).exists()]
    if tensorflow.is_tensorflow(source):
        prefix = tensorflow.find_checkpoint(directory)
        return [*config_files, *sorted(prefix.parent.glob(f"{prefix.name}.*"))]
    weights = [directory / name for name in weight_files(source)] or pickled_files(source)
    for file in weights:
        if not file.exists():
            reason = f"{file}, which {INDEX_FILE} lists, is missing; copy the model's whole directory"
            raise ModelLoadError(reason, path=str(file))
    return [*config_files, *weights]


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
