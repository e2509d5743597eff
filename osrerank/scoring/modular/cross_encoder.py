"""A cross-encoder's directory as sentence-transformers 5.4 and later save it.

Its modules are a Transformer, whose files are the directory's own, and after it Pooling, Dense, LayerNorm, Normalize
and Dropout; or a Transformer alone, which is then a transformers classifier.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import (
    CLASSIFIERS,
    KINDS,
    MODEL_FILE,
    MODULES_FILE,
    TOKENIZER_SETTINGS_FILE,
    TRANSFORMER_FILE,
    VECTOR,
    Content,
    Modules,
    limits_of,
    listed,
    model_type,
    refused,
    transformer_task,
)
from osrerank.scoring.modular.head import Head, HeadStep, Mode

NAME = "CrossEncoder"
"""The ``model_type`` in `MODEL_FILE`."""
OUTPUT_ACTIVATIONS = ("Identity", "Sigmoid")
"""Of the whole model: the logit is the same before either, and a probability is its logistic function."""
SCORES = "scores"
"""What the last module writes: the logits."""


@dataclass(frozen=True, slots=True)
class CrossEncoderDescription:
    """What a cross-encoder's files say.

    Attributes:
        head: what follows the encoder; None where the model is a transformers classifier.
        labels: outputs of the head; 0 for a classifier, whose config has them.
        max_tokens: most tokens of a sequence; None where the files set no limit of their own.
        query_prefix: stands before every query.
        descriptions: the JSON files that it was read from, and its modules' weights, relative to the directory.
        weights: the modules' safetensors, relative to the directory.
    """

    head: Head | None
    labels: int
    max_tokens: int | None
    query_prefix: str
    descriptions: tuple[str, ...]
    weights: tuple[str, ...]


def read_cross_encoder(directory: Path) -> CrossEncoderDescription | None:
    """Return what a directory's files say of a cross-encoder; None where sentence-transformers did not save one.

    Args:
        directory: the model's.

    Raises:
        ModelLoadError: a file cannot be read, or asks for what is not known; the message names the field.
    """
    if model_type(directory) != NAME:
        return None
    model: Content = read_json(directory / MODEL_FILE)
    _check_output(directory / MODEL_FILE, model)
    modules = listed(directory / MODULES_FILE, KINDS)
    if modules[0][1]:
        raise refused(directory / MODULES_FILE, f"module 0 has the path {modules[0][1]!r}; a Transformer's is empty")
    task = transformer_task(directory)
    if (task == CLASSIFIERS) != (len(modules) == 1):
        reason = f"transformer_task is {task!r}, and {MODULES_FILE} has {len(modules)} modules"
        fix = "a classifier stands alone, and an encoder does not"
        raise refused(directory / TRANSFORMER_FILE, f"{reason}; {fix}")
    parts = Modules(directory)
    head, labels = (None, 0) if task == CLASSIFIERS else _head(directory, parts, modules[1:])
    prefix = _query_prefix(directory / MODEL_FILE, model)
    if head and prefix and not parts.includes_prompt(modules[1][1]):
        reason = "include_prompt is false, and the model has a default prompt; only pooling of all tokens is supported"
        raise refused(directory / modules[1][1] / "config.json", reason)
    names = (MODULES_FILE, MODEL_FILE, TRANSFORMER_FILE, TOKENIZER_SETTINGS_FILE)
    files = (*(name for name in names if (directory / name).exists()), *parts.descriptions)
    return CrossEncoderDescription(head, labels, limits_of(directory).sequence, prefix, files, parts.weights)


def _head(directory: Path, parts: Modules, modules: Sequence[tuple[str, str]]) -> tuple[Head, int]:
    """Return the head and how many outputs it has."""
    file, last = directory / MODULES_FILE, len(modules) - 1
    pooling: tuple[Mode, ...] = ()
    steps: list[HeadStep] = []
    labels = 0
    for index, (kind, folder) in enumerate(modules):
        if (kind == "Pooling") != (index == 0):
            reason = f"module {index + 1} is a {kind}; behind the Transformer stands one Pooling, then Dense"
            raise refused(file, f"{reason}, LayerNorm, Normalize and Dropout")
        if kind == "Pooling":
            pooling = parts.pooling(folder)
        elif kind == "Dense":
            step, labels = parts.dense(folder, writes=SCORES if index == last else VECTOR)
            steps.append(step)
        elif kind == "LayerNorm":
            steps.append(parts.norm(folder))
        elif kind == "Normalize":
            steps.append(parts.unit(folder))
        if index == last and kind != "Dense":
            raise refused(file, f"the last module is a {kind}; a Dense must give the scores")
    return Head(tuple(steps), pooling), labels


def _check_output(file: Path, model: Content) -> None:
    named = str(model.get("activation_fn") or "torch.nn.modules.linear.Identity")
    if not named.startswith("torch.") or named.rpartition(".")[2] not in OUTPUT_ACTIVATIONS:
        known = " or ".join(OUTPUT_ACTIVATIONS)
        raise refused(file, f"activation_fn is {named!r}; it must be torch's {known}, so that scores are logits")


def _query_prefix(file: Path, model: Content) -> str:
    """Return the default prompt, which stands before the first text of a pair."""
    name, prompts = model.get("default_prompt_name"), model.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise refused(file, f"default_prompt_name is {name!r}, but prompts has no prompt of that name")
    return str(prompts[name] or "")
