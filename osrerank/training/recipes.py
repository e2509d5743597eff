"""Hold the hyperparameters of a training in a recipe, and offer presets, most of them from papers.

``docs/training.md`` lists the origin of each number, and the differences between papers and released code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from osrerank._removed import find_replacement
from osrerank.errors import ConfigError
from osrerank.scoring.card import Kind, LengthRule

DecayFrom = Literal["start", "warmup"]
Loss = Literal["pointwise", "listwise"]
Draw = Literal["balanced", "list", "top", "all"]
Precision = Literal["fp32", "bf16", "fp16", "mixed"]
ThirdRow = Literal["zeros", "frozen", "copy"]
Method = Literal["simplified-tinybert", "logits"]
TrainedHead = Literal["", "logits2", "logit1", "next-sentence"]
TrainedKind = Literal["", Kind]
Frozen = Literal["", "embeddings"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The hyperparameters of a training: everything except its data and the checkpoint that it starts from.

    The fields are ordered by topic: loss and data, model, optimisation, measuring, distillation, pre-training.

    Attributes:
        name: the preset's name.
        loss: "pointwise", the cross-entropy of single sequences, or "listwise", the softmax cross-entropy of lists.
        draw: which documents of an example to train on. "balanced" takes each relevant document with one negative,
            and "list" with several. "top" takes the first ``depth`` documents, and "all" takes all documents.
        negatives: with "list", the number of negatives to sample for each relevant document.
        depth: how many of the highest-ranked negatives to sample from or, with "top", how many documents to train on.
        mine_at: the fraction of the steps after which "list" trains on the negatives that the model itself scores
            highest. With 0.5, they are searched halfway. If 0, the model never chooses the negatives.
        head: the head of a cross-encoder or duo model: "logits2", "logit1" or "next-sentence". If empty, the
            checkpoint's head is kept, or "logits2" is created if it has none. A bi-encoder always keeps its head.
        kind: "cross-encoder" trains a cross-encoder from any checkpoint. If empty, the checkpoint's kind is kept.
        third_row: how the third row of a duo model's token type table starts if the checkpoint has two rows:
            "zeros" that are trained, "frozen" zeros as in the released duoBERT, or a "copy" of the second row.
        max_tokens: the maximum length of a sequence, in tokens.
        max_query_tokens: the maximum length of a query, in tokens.
        length_rule: the way to divide ``max_tokens`` between query and documents, as in the model card.
        batch: the number of sequences in a step.
        steps: the number of steps. If 0, ``epochs`` determines it.
        epochs: the number of passes over the data.
        rate: the maximum learning rate.
        warmup: the number of warm-up steps, such as 10000, or the fraction of all steps, such as 0.1.
        decay_from: whether the learning rate decays from the "start", as in BERT's code, or from the end of the
            "warmup" (`optimiser.learning_rate`).
        weight_decay, beta1, beta2, eps, bias_correction: the parameters of Adam.
        clip: the maximum norm of the gradient. If 0, there is no limit.
        dropout: the dropout probability. Bi-encoders are trained without dropout.
        freeze: "embeddings" excludes the embedding tables from training. If empty, all weights are trained.
        shuffle: the size of the shuffle buffer, in examples.
        seed: the seed of all random choices.
        precision: the precision of the matrix products. Weights are always fp32. "mixed" is bf16 on the CPU and on
            GPUs that support it, otherwise fp16. "fp16" needs CUDA. It scales the loss, so that small gradients are not
            lost, and skips a step whose gradients overflow.
        budget_tokens: the maximum number of tokens in a forward pass, including padding. A larger step takes several
            passes. If 0, the device determines it.
        measure: the measure on the development set that chooses the best weights.
        evaluate_every: the number of steps between evaluations on the whole development set. If 0, there are at most
            ten evaluations, on a part of the set if necessary, so that they take at most a tenth of the time.
        method: the method of distillation: "simplified-tinybert" compares teacher and student layer by layer, "logits"
            only their outputs.
        attention: whether "simplified-tinybert" compares attention logits.
        hidden: whether "simplified-tinybert" compares hidden states.
        soft: whether to learn from the scores in the examples (soft labels). Distillation uses the teacher's scores.
        hard: whether to learn from the relevance labels too, in a training that learns from soft labels.
        temperature: the temperature of soft labels.
        mask: the fraction of the word pieces that pre-training masks.
        pack: whether pre-training fills each sequence with several texts.
    """

    name: str = "modern"
    loss: Loss = "listwise"
    draw: Draw = "list"
    negatives: int = 7
    depth: int = 30
    mine_at: float = 0.5
    head: TrainedHead = ""
    kind: TrainedKind = ""
    third_row: ThirdRow = "zeros"
    max_tokens: int = 512
    max_query_tokens: int = 64
    length_rule: LengthRule = "paper"
    batch: int = 64
    steps: int = 0
    epochs: float = 2.0
    rate: float = 2e-5
    warmup: float = 0.1
    decay_from: DecayFrom = "warmup"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = True
    clip: float = 1.0
    dropout: float = 0.1
    freeze: Frozen = ""
    shuffle: int = 100_000
    seed: int = 1
    precision: Precision = "fp32"
    budget_tokens: int = 0
    measure: str = "nDCG@10"
    evaluate_every: int = 0
    method: Method = "simplified-tinybert"
    attention: bool = True
    hidden: bool = True
    soft: bool = False
    hard: bool = True
    temperature: float = 1.0
    mask: float = 0.15
    pack: bool = False

    def __post_init__(self) -> None:
        hints = get_type_hints(Recipe)
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        minima = {"batch": 1, "negatives": 1, "depth": 1, "shuffle": 1, "steps": 0, "clip": 0}
        for name, minimum in minima.items():
            if getattr(self, name) < minimum:
                raise _invalid_value_error(name, getattr(self, name), f"{minimum} or more")
        if self.steps == 0 and not self.epochs > 0:
            raise _invalid_value_error("epochs", self.epochs, "above 0 if steps is 0")
        for name in ("mine_at", "dropout", "mask", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise _invalid_value_error(name, getattr(self, name), "from 0 to below 1")

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None, default: str) -> "Recipe":
        """Return a preset with changes: ``{"name": "birch", "batch": 8}`` is the preset ``birch`` with another batch.

        ``default`` is the name of the preset if the options contain none.

        Raises:
            ConfigError: the preset or a field does not exist, or a value is not valid.
        """
        changes = dict(options or {})
        name = str(changes.pop("name", default))
        if name not in PRESETS:
            raise _invalid_value_error("name", name, f"one of {', '.join(PRESETS)}")
        field_names = sorted(field.name for field in fields(cls))
        for field_name in sorted(changes):
            if field_name not in field_names:
                fix = find_replacement(f"recipe.{field_name}") or f"its options are {', '.join(field_names)}"
                raise ConfigError(f"a recipe has no option {field_name!r}; {fix}", setting="recipe", source="argument")
        return replace(PRESETS[name], **changes)

    def warmup_steps(self, total: int) -> int:
        """Return the number of warm-up steps in a training of ``total`` steps."""
        return int(self.warmup * total) if self.warmup < 1 else int(self.warmup)


TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""The types of a recipe's options, as messages name them."""


def _check_type(name: str, value: Any, hint: Any) -> None:
    """Raise an error if a field's value does not have the type of its annotation. A float field can have an int."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            empty = ", or empty" if "" in choices else ""
            raise _invalid_value_error(name, value, f"one of {', '.join(filter(None, choices))}{empty}")
    elif type(value) is not hint and not (hint is float and type(value) is int):  # a bool is no int here
        raise _invalid_value_error(name, value, TYPE_NAMES[hint])


def _invalid_value_error(name: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(
        f"recipe: {name} is {value!r}; it must be {expected}", setting=f"recipe.{name}", source="argument"
    )


_BERT = Recipe(
    loss="pointwise",
    draw="balanced",
    depth=1000,
    mine_at=0.0,
    head="logits2",
    batch=128,
    steps=100_000,
    rate=3e-6,
    warmup=10_000,
    decay_from="start",
    bias_correction=False,
    measure="RR@10",
)
"""What the presets from papers have in common."""
_TINYBERT = replace(
    _BERT, name="simplified-tinybert", head="", max_tokens=256, batch=64, steps=0, epochs=2.0, rate=5e-5, warmup=0.1
)
PRESETS: Mapping[str, Recipe] = {
    "modern": Recipe(),
    "monobert": replace(_BERT, name="monobert"),
    "monobert-car": replace(
        _BERT,
        name="monobert-car",
        draw="top",
        depth=10,
        batch=32,
        steps=400_000,
        rate=1e-6,
        warmup=40_000,
        measure="AP@1000",
    ),
    "duobert": replace(_BERT, name="duobert"),
    "icip": replace(_BERT, name="icip", max_tokens=256, batch=32, steps=0, epochs=1.0, rate=1e-6, warmup=0.1),
    "birch": replace(
        _BERT,
        name="birch",
        draw="all",
        head="next-sentence",
        length_rule="released",
        batch=16,
        steps=0,
        epochs=5.0,
        rate=1e-5,
        warmup=0.1,
        weight_decay=0.1,
    ),
    "simplified-tinybert": _TINYBERT,
    "tinybert-listwise": replace(_TINYBERT, name="tinybert-listwise", loss="listwise", draw="list", depth=30),
    "logits": Recipe(name="logits", method="logits", rate=1e-4, mine_at=0.0),
    "target-corpus": replace(_BERT, name="target-corpus", draw="all", head="", rate=5e-5, pack=True),
    "masked": Recipe(
        name="masked", loss="pointwise", draw="all", mine_at=0.0, batch=32, epochs=3.0, rate=1e-4, max_tokens=128
    ),
}
