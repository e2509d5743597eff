"""Average the weights of models of the same shape: a trained model and its start, or several trainings of one start.

Wortsman et al.: Robust fine-tuning of zero-shot models (arXiv 2109.01903): a mean of a start's weights and its
fine-tuned ones keeps most of what fine-tuning taught, and more of what the start knew. Wortsman et al.: Model soups
(arXiv 2203.05482): the same holds for the mean of several trainings.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from osrerank.errors import ConfigError
from osrerank.export.export_model import new_directory, refuse_existing
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import name_of
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import write_average_readme
from osrerank.training.weights.models import Trainee, load_trainee


def average(models: Sequence[Path], shares: Sequence[float], output: Path) -> Path:
    """Write the weighted mean of the models' weights, with the first model's tokenizer and its card, renamed.

    Args:
        models: the models' directories; the first is a reranker, the others may be the bare encoder that it started
            from.
        shares: the weight of each model in the mean, at least 0; they are divided by their sum.
        output: the model directory to make.

    Raises:
        ConfigError: the output exists, a share is negative, all are 0, or the models' weights differ in form.
        ModelLoadError: a model cannot be read.
    """
    refuse_existing(output)
    if len(models) != len(shares) or not models or min(shares) < 0 or sum(shares) <= 0:
        raise ConfigError(f"there are {len(models)} models, and their shares are {list(shares)}", setting="shares")
    first = read_card(models[0])
    normalised = [share / sum(shares) for share in shares]
    mean = _load(models[0], first)
    parameters = dict(mean.network.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.mul_(normalised[0])
        for model, share in zip(models[1:], normalised[1:], strict=True):
            other_parameters = dict(_load(model, first).network.named_parameters())
            for name, parameter in parameters.items():
                if name not in other_parameters or other_parameters[name].shape != parameter.shape:
                    raise ConfigError(f"{model} has no {name} of the form that {models[0]} has", setting="models")
                parameter.add_(other_parameters[name], alpha=share)
    record = [
        {"model": name_of(model), "share": round(share, 4)} for model, share in zip(models, normalised, strict=True)
    ]
    inherited = {name: value for name, value in first.provenance.items() if name != "measures"}  # not this model's
    with new_directory(output) as directory:
        card = replace(mean.card, name=output.name, provenance={**inherited, "average_of": record})
        replace(mean, card=card).save(directory)
        write_average_readme(directory, card)
    return output


def _load(model: Path, card: ModelCard) -> Trainee:
    """Read a model with the kind, head and lengths of a card."""
    form = {name: getattr(card, name) for name in ("head", "max_tokens", "max_query_tokens", "length_rule")}
    recipe = Recipe.of({**form, "kind": card.kind, "head": "" if card.is_bi_encoder else card.head}, "modern")
    return load_trainee(model, recipe, kind=card.kind, name=card.name)
