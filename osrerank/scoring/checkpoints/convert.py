"""Convert a checkpoint in another format to a directory with ``config.json``, ``tokenizer.json`` and safetensors.

The user's cache folder keeps the converted directory, by the SHA-256 of the checkpoint's files, so that each checkpoint
is converted once.
"""

import contextlib
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
from osrerank.scoring.checkpoints.pickled import INDEX, pickled_files, read_pickled
from osrerank.scoring.checkpoints.vocabulary import SETTINGS_FILE, SPECIALS_FILE, VOCABULARY_FILE, build_tokenizer
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    digest,
    weight_files,
)
from osrerank.settings import user_folder

Head = Literal["", "logit1", "logits2", "next-sentence", "encoder"]
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
"""``model_type`` -> prefix of transformers' classes."""
CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")
NEXT_SENTENCE = "cls.seq_relationship.weight"
SOURCE_FILE, PASSED_FILE = "source.json", "self-check.json"
NOTICES = ("LICENSE", "NOTICE")
CACHE_VERSION = "2"
"""Version of the cached directories, part of their path; since version 2 they include tokenizer_config.json."""

logger = logging.getLogger(__name__)


class Converted(NamedTuple):
    """A directory that can be loaded.

    Attributes:
        directory: the checkpoint's own directory, or the converted one.
        sha256: SHA-256 of the checkpoint's files; empty if no conversion was needed.
    """

    directory: Path
    sha256: str = ""

    @property
    def is_checked(self) -> bool:
        """Whether the model needs no self-check, because it was not converted or has passed one (`record_pass`)."""
        return not self.sha256 or (self.directory / PASSED_FILE).exists()

    def record_pass(self, check: str) -> None:
        """Record in the directory that the model has passed its self-check."""
        _write_json(self.directory / PASSED_FILE, {"passed": check})


class CheckedGraph(NamedTuple):
    """The record of the self-check of a graph that another program exported.

    Attributes:
        sha256: SHA-256 of everything that the graph's scores depend on.
    """

    sha256: str

    @property
    def is_checked(self) -> bool:
        """Whether the record says that the graph has passed its self-check."""
        with contextlib.suppress(RuntimeError):  # this user has no home folder
            return self._file.exists()
        return False

    def record_pass(self, check: str) -> None:
        """Record that the graph has passed its self-check; if the record cannot be written, each load checks again."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _write_json(self._file, {"passed": check})
        except (OSError, RuntimeError) as error:
            logger.info("the self-check cannot be recorded, so each load of the model repeats it: %s", error)

    @property
    def _file(self) -> Path:
        return cache_folder() / f"graph-{self.sha256}" / PASSED_FILE


def convert_if_needed(source: Path, head: Head = "") -> Converted:
    """Return a model's directory, or a converted copy if it cannot be loaded as it is.

    Pickled weights, TensorFlow weights, and a vocab.txt without a tokenizer.json are converted.

    Args:
        source: the model's directory, or the file of pickled weights in it.
        head: form of the model's head, if its files do not say it. The model is then always converted, because the
            head is written into its config.

    Raises:
        ModelLoadError: the checkpoint cannot be read.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    if not head and not needs_conversion(source):
        return Converted(source)
    files = _files(source)
    sha256 = digest(_folder(source), [file.name for file in files])
    try:
        target = cache_folder() / "-".join(filter(None, (sha256, head)))
    except RuntimeError:
        raise _no_target(source, "this user has no home folder") from None
    if target.exists():
        return Converted(target, sha256)
    require("safetensors.torch", extra="torch")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-")
    except OSError as error:
        raise _no_target(source, f"{target.parent}: {error.strerror}") from error
    with folder as parent:
        unfinished = Path(parent) / "model"
        unfinished.mkdir()
        _write(source, unfinished, head, sha256)
        try:
            unfinished.rename(target)
        except OSError:  # another process was faster
            if not target.exists():
                raise
    logger.info("%s was converted to %s, which later loads use", source, target)
    return Converted(target, sha256)


def needs_conversion(directory: Path) -> bool:
    """Return whether a checkpoint has a format that must be converted; a file of pickled weights always has one."""
    if directory.is_file():
        return True
    if (directory / CARD_FILE).exists() or any(directory.rglob("*.onnx")):
        return False
    if tensorflow.is_tensorflow(directory):
        return True
    has_weights = bool(weight_files(directory))
    has_tokenizer, has_vocabulary = ((directory / name).exists() for name in (TOKENIZER_FILE, VOCABULARY_FILE))
    if has_weights:
        return has_vocabulary and not has_tokenizer
    return bool(pickled_files(directory)) and (has_tokenizer or has_vocabulary)


def cache_folder() -> Path:
    """Return the folder of the converted checkpoints."""
    return user_folder("XDG_CACHE_HOME", ".cache").expanduser() / "models" / CACHE_VERSION


def _no_target(source: Path, reason: str) -> ModelLoadError:
    """Return the error for a checkpoint whose converted copy cannot be written."""
    fix = "set XDG_CACHE_HOME to a folder that can be written"
    return ModelLoadError(
        f"{source} must be converted, and the copy cannot be written ({reason}): {fix}", path=str(source)
    )


def _write(source: Path, target: Path, head: Head, sha256: str) -> None:
    """Write the converted model into an empty folder."""
    safetensors: Any = require("safetensors.torch", extra="torch")
    weights, config = _read(source)
    config = {**config, **_missing_entries(source, config, weights, head)}
    source = _folder(source)
    if (source / TOKENIZER_FILE).exists():
        shutil.copyfile(source / TOKENIZER_FILE, target / TOKENIZER_FILE)
    else:
        build_tokenizer(source).save(str(target / TOKENIZER_FILE))
    contiguous = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    safetensors.save_file(contiguous, target / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(target / CONFIG_FILE, config)
    _write_json(target / SOURCE_FILE, {"source": source.name, "sha256": sha256, "head": head})
    for name in (*NOTICES, SETTINGS_FILE):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def _read(directory: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a checkpoint's tensors and config."""
    if tensorflow.is_tensorflow(directory):
        torch: Any = require("torch", extra="torch")
        arrays, config = tensorflow.read_tensorflow(directory)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, config
    config = read_json(_folder(directory) / CONFIG_FILE)
    if weight_files(directory):
        safetensors: Any = require("safetensors.torch", extra="torch")
        files = [directory / file for file in weight_files(directory)]
        return {name: tensor for file in files for name, tensor in safetensors.load_file(file).items()}, config
    return read_pickled(directory), config


def _missing_entries(source: Path, config: Mapping[str, Any], weights: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """Return the entries for architecture, family and labels that a config lacks, from the head and the weights.

    Raises:
        ModelLoadError: the family is unknown, or the weights lack the head.
    """
    if config.get("architectures") and not head:
        return {}
    model_type = str(config.get("model_type") or ("bert" if any(name.startswith("bert.") for name in weights) else ""))
    family = FAMILIES.get(model_type)
    if family is None:
        file = _folder(source) / CONFIG_FILE
        reason = f"{file} has neither architectures nor a model_type that is one of {', '.join(FAMILIES)}"
        raise ModelLoadError(f"{reason}; add the architectures that the model was saved with", path=str(file))
    classifier = next((name for name in CLASSIFIERS if name in weights), None)
    labels = len(weights[classifier]) if classifier else 0
    lacks_head = {"logit1": labels != 1, "logits2": labels != 2, "next-sentence": NEXT_SENTENCE not in weights}
    if lacks_head.get(head, False):
        heads = f"a classifier with {labels} labels" if labels else "no classifier"
        if NEXT_SENTENCE in weights:
            heads += " and a next-sentence head"
        raise ModelLoadError(f"{source} has no head {head}: its weights have {heads}", path=str(source))
    class_suffix = _class_suffix(family, weights, labels, head)
    entries: dict[str, Any] = {"architectures": [f"{family}{class_suffix}"], "model_type": model_type}
    if class_suffix == "ForSequenceClassification":
        entries["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
        entries["label2id"] = {name: int(label) for label, name in entries["id2label"].items()}
    return entries


def _class_suffix(family: str, weights: Mapping[str, Any], labels: int, head: Head) -> str:
    """Return the suffix of the transformers class for a model's head, or else for its weights."""
    if head == "encoder":
        return "Model"
    if head == "next-sentence":
        return "ForNextSentencePrediction"
    if head or labels:
        return "ForSequenceClassification"
    has_masked_words = any(name.startswith("cls.predictions.") for name in weights)
    if family == "Bert" and NEXT_SENTENCE in weights:
        return "ForPreTraining" if has_masked_words else "ForNextSentencePrediction"
    return "ForMaskedLM" if has_masked_words else "Model"


def _folder(source: Path) -> Path:
    return source.parent if source.is_file() else source


def _files(source: Path) -> list[Path]:
    """Return all files that a conversion depends on."""
    directory = _folder(source)
    names = [CONFIG_FILE, tensorflow.CONFIG, TOKENIZER_FILE, VOCABULARY_FILE, SETTINGS_FILE, SPECIALS_FILE, INDEX]
    settings = [directory / name for name in names if (directory / name).exists()]
    if tensorflow.is_tensorflow(source):
        prefix = tensorflow.find_checkpoint(directory)
        return [*settings, *sorted(prefix.parent.glob(f"{prefix.name}.*"))]
    weights = [directory / name for name in weight_files(source)] or pickled_files(source)
    missing = next((file for file in weights if not file.exists()), None)
    if missing is not None:
        raise ModelLoadError(f"{missing} is missing; {INDEX} names it", path=str(missing))
    return [*settings, *weights]


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
