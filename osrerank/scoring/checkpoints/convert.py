"""From a checkpoint in another form to a directory with ``config.json``, ``tokenizer.json`` and safetensors.

What was converted is kept in the user's cache folder by the SHA-256 of its files, so that it happens once.
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
from osrerank.scoring.checkpoints.vocabulary import SETTINGS_FILE, SPECIALS_FILE, VOCABULARY_FILE, tokenizer_of
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
"""Prefixes of transformers' classes by ``model_type``."""
CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")
NEXT_SENTENCE = "cls.seq_relationship.weight"
SOURCE_FILE, PASSED_FILE = "source.json", "self-check.json"
NOTICES = ("LICENSE", "NOTICE")
FORM = "2"
"""Version of the cached conversions, part of their path; since version 2 they include tokenizer_config.json."""

logger = logging.getLogger(__name__)


class Converted(NamedTuple):
    """A directory that can be loaded.

    Attributes:
        directory: the checkpoint's own, or the converted one.
        sha256: of the checkpoint's files; empty where nothing had to be converted.
    """

    directory: Path
    sha256: str = ""

    @property
    def is_checked(self) -> bool:
        """Whether nothing was converted, or what was has passed its self-check (`passed`)."""
        return not self.sha256 or (self.directory / PASSED_FILE).exists()

    def passed(self, check: str) -> None:
        """Remember that the model has passed its self-check."""
        _write_json(self.directory / PASSED_FILE, {"passed": check})


class CheckedGraph(NamedTuple):
    """Where the self-check of another program's graph is remembered.

    Attributes:
        sha256: of all that the graph's scores depend on.
    """

    sha256: str

    @property
    def is_checked(self) -> bool:
        """Whether a passed self-check of the graph is on record."""
        with contextlib.suppress(RuntimeError):  # this user has no home
            return self._file.exists()
        return False

    def passed(self, check: str) -> None:
        """Remember that the graph has passed its self-check; without a folder for that, it is checked at each load."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _write_json(self._file, {"passed": check})
        except (OSError, RuntimeError) as error:
            logger.info("the self-check is not remembered, and repeated when the model is loaded again: %s", error)

    @property
    def _file(self) -> Path:
        return cache_folder() / f"graph-{self.sha256}" / PASSED_FILE


def usable(source: Path, head: Head = "") -> Converted:
    """Return a model's directory, or a converted copy if it cannot be loaded as it is.

    Weights of pickles and TensorFlow are converted, and so is a vocab.txt without a tokenizer.json. With a head, the
    model is always converted.

    Args:
        source: the model's directory, or the file of pickled weights in it.
        head: what its head is, where its files do not say; a given one is written into the converted config.

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
        raise _unwritable(source, "this user has no home") from None
    if target.exists():
        return Converted(target, sha256)
    require("safetensors.torch", extra="torch")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-")
    except OSError as error:
        raise _unwritable(source, f"{target.parent}: {error.strerror}") from error
    with folder as parent:
        made = Path(parent) / "model"
        made.mkdir()
        _write(source, made, head, sha256)
        try:
            made.rename(target)
        except OSError:  # another process was faster
            if not target.exists():
                raise
    logger.info("%s was converted once, to %s", source, target)
    return Converted(target, sha256)


def needs_conversion(directory: Path) -> bool:
    """Return whether a checkpoint has a form that is not read as it is; a file of pickled weights has."""
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
    """Return where converted checkpoints are kept."""
    return user_folder("XDG_CACHE_HOME", ".cache").expanduser() / "models" / FORM


def _unwritable(source: Path, why: str) -> ModelLoadError:
    """Return the error of a checkpoint that has nowhere to be converted to."""
    fix = "name a folder that can be written with XDG_CACHE_HOME"
    return ModelLoadError(
        f"{source} must be converted once, and there is no room for it ({why}): {fix}", path=str(source)
    )


def _write(source: Path, target: Path, head: Head, sha256: str) -> None:
    safetensors: Any = require("safetensors.torch", extra="torch")
    weights, config = _read(source)
    described = _described(source, config, weights, head)
    config, source = {**config, **described}, _folder(source)
    if (source / TOKENIZER_FILE).exists():
        shutil.copyfile(source / TOKENIZER_FILE, target / TOKENIZER_FILE)
    else:
        tokenizer_of(source).save(str(target / TOKENIZER_FILE))
    contiguous = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    safetensors.save_file(contiguous, target / WEIGHTS_FILE, metadata={"format": "pt"})
    _write_json(target / CONFIG_FILE, config)
    _write_json(target / SOURCE_FILE, {"source": source.name, "sha256": sha256, "head": head})
    for name in (name for name in (*NOTICES, SETTINGS_FILE) if (source / name).exists()):
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


def _described(source: Path, config: Mapping[str, Any], weights: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """Return the config's entries for a model's class, family and labels; its weights tell what the config leaves open.

    Raises:
        ModelLoadError: the family is not known, or the wanted head is not there.
    """
    if config.get("architectures") and not head:
        return {}
    kind = str(config.get("model_type") or ("bert" if any(name.startswith("bert.") for name in weights) else ""))
    family = FAMILIES.get(kind)
    if family is None:
        file = _folder(source) / CONFIG_FILE
        reason = f"{file} names neither architectures nor a model_type of {', '.join(FAMILIES)}"
        raise ModelLoadError(f"{reason}; add what the model was saved as", path=str(file))
    found = next((name for name in CLASSIFIERS if name in weights), "")
    labels = len(weights[found]) if found else 0
    kinds = {"": _architecture(family, weights, labels), "next-sentence": "ForNextSentencePrediction"}
    suffix = kinds.get(head, "Model" if head == "encoder" else "ForSequenceClassification")
    lacks = {"logit1": labels != 1, "logits2": labels != 2, "next-sentence": NEXT_SENTENCE not in weights}
    if lacks.get(head, False):
        has = f"a classifier with {labels} labels" if labels else "no classifier"
        also = " and a next-sentence head" if NEXT_SENTENCE in weights else ""
        raise ModelLoadError(f"{source} has no head {head}: its weights have {has}{also}", path=str(source))
    described: dict[str, Any] = {"architectures": [f"{family}{suffix}"], "model_type": kind}
    if suffix == "ForSequenceClassification":
        described["id2label"] = {str(label): f"LABEL_{label}" for label in range(labels)}
        described["label2id"] = {name: int(label) for label, name in described["id2label"].items()}
    return described


def _architecture(family: str, weights: Mapping[str, Any], labels: int) -> str:
    """Return what a model with such weights is, without its family's name."""
    predicts = any(name.startswith("cls.predictions.") for name in weights)
    if labels:
        return "ForSequenceClassification"
    if family == "Bert" and NEXT_SENTENCE in weights:
        return "ForPreTraining" if predicts else "ForNextSentencePrediction"
    return "ForMaskedLM" if predicts else "Model"


def _folder(source: Path) -> Path:
    return source.parent if source.is_file() else source


def _files(source: Path) -> list[Path]:
    """Return all files that a conversion depends on."""
    directory = _folder(source)
    names = [CONFIG_FILE, tensorflow.CONFIG, TOKENIZER_FILE, VOCABULARY_FILE, SETTINGS_FILE, SPECIALS_FILE, INDEX]
    found = [directory / name for name in names if (directory / name).exists()]
    if tensorflow.is_tensorflow(source):
        prefix = tensorflow.checkpoint_of(directory)
        return [*found, *sorted(prefix.parent.glob(f"{prefix.name}.*"))]
    weights = [directory / name for name in weight_files(source)] or pickled_files(source)
    missing = next((file for file in weights if not file.exists()), None)
    if missing is not None:
        raise ModelLoadError(f"{missing} is missing; {INDEX} names it", path=str(missing))
    return [*found, *weights]


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
