"""Read a cross-encoder's directory as sentence-transformers 5.4 and later save it.

Its first module is a Transformer, whose files are in the directory itself. Pooling, Dense, LayerNorm, Normalize and
Dropout follow it. A Transformer that nothing follows is a transformers classifier.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import (
    CLASSIFIERS,
    LATER_MODULES,
    MODEL_FILE,
    MODULES_FILE,
    TOKENIZER_SETTINGS_FILE,
    TRANSFORMER_FILE,
    Content,
    ModuleReader,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_task,
)
from osrerank.scoring.modular.head import Head

MODEL_TYPE = "CrossEncoder"
"""The ``model_type`` in `MODEL_FILE`."""
OUTPUT_ACTIVATIONS = ("Identity", "Sigmoid")
"""Activations of the whole model. The logit is the same before both; its probability is the sigmoid."""
SCORES = "scores"
"""Output name of the last module, which computes the logits."""


@dataclass(frozen=True, slots=True)
class CrossEncoderDescription:
    """The description of a cross-encoder in its files.

    Attributes:
        head: pooling and steps after the encoder; None if the model is a transformers classifier.
        labels: number of the head's outputs; 0 for a classifier, whose config has it.
        max_tokens: maximum number of tokens in a sequence; None if the files set no limit.
        query_prefix: text that precedes every query.
        descriptions: JSON files that the description was read from, relative to the directory.
        weights: safetensors of the modules, relative to the directory.
    """

    head: Head | None
    labels: int
    max_tokens: int | None
    query_prefix: str
    descriptions: tuple[str, ...]
    weights: tuple[str, ...]


def read_cross_encoder(directory: Path) -> CrossEncoderDescription | None:
    """Return the description of a cross-encoder; None if sentence-transformers did not save one in the directory.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know.
    """
    if read_model_type(directory) != MODEL_TYPE:
        return None
    model: Content = read_json(directory / MODEL_FILE)
    _check_output(directory / MODEL_FILE, model)
    (_, transformer), *modules = list_modules(directory / MODULES_FILE, LATER_MODULES)
    if transformer:
        raise file_error(
            directory / MODULES_FILE, f"module 0 has the path {transformer!r}; a Transformer's must be empty"
        )
    task = read_transformer_task(directory)
    if (task == CLASSIFIERS) == bool(modules):
        reason = f"transformer_task is {task!r}, and {MODULES_FILE} has {len(modules) + 1} modules"
        fix = "a classifier must be the only module; an encoder must be followed by others"
        raise file_error(directory / TRANSFORMER_FILE, f"{reason}; {fix}")
    reader = ModuleReader(directory)
    head, labels = _read_head(directory, reader, modules) if modules else (None, 0)
    prefix = _query_prefix(directory / MODEL_FILE, model)
    if modules and prefix and not reader.includes_prompt(modules[0][1]):
        reason = "include_prompt is false, and the model has a default prompt; only pooling of all tokens is supported"
        raise file_error(directory / modules[0][1] / "config.json", reason)
    names = (MODULES_FILE, MODEL_FILE, TRANSFORMER_FILE, TOKENIZER_SETTINGS_FILE)
    files = (*(name for name in names if (directory / name).exists()), *reader.descriptions)
    return CrossEncoderDescription(head, labels, read_token_limits(directory).sequence, prefix, files, reader.weights)


def _read_head(directory: Path, reader: ModuleReader, modules: Sequence[tuple[str, str]]) -> tuple[Head, int]:
    """Return the head, and the number of its outputs."""
    pooling = reader.read_pooling(modules)
    if (last_kind := modules[-1][0]) != "Dense":
        raise file_error(
            directory / MODULES_FILE, f"the last module is a {last_kind}; it must be a Dense, which computes the scores"
        )
    steps, labels = reader.read_steps(modules[1:], last_output=SCORES)
    return Head(tuple(steps), pooling), labels


def _check_output(file: Path, model: Content) -> None:
    activation = str(model.get("activation_fn") or "torch.nn.modules.linear.Identity")
    if not activation.startswith("torch.") or activation.rpartition(".")[2] not in OUTPUT_ACTIVATIONS:
        known = " or ".join(OUTPUT_ACTIVATIONS)
        raise file_error(
            file, f"activation_fn is {activation!r}; it must be torch's {known}, so that scores are logits"
        )


def _query_prefix(file: Path, model: Content) -> str:
    """Return the default prompt, which precedes the first text of a pair."""
    name, prompts = model.get("default_prompt_name"), model.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise file_error(file, f"default_prompt_name is {name!r}, but prompts has no prompt of that name")
    return str(prompts[name] or "")
