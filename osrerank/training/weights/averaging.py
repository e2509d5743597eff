"""Average the weights of models of the same shape, such as a fine-tuned model and its pre-trained checkpoint.

The mean of a checkpoint's weights before and after fine-tuning keeps most of what fine-tuning taught, and more of the
checkpoint's robustness (Wortsman et al.: Robust fine-tuning of zero-shot models, arXiv 2109.01903). Several
fine-tunings of one checkpoint can also be averaged (Wortsman et al.: Model soups, arXiv 2203.05482).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from osrerank.errors import ConfigError
from osrerank.export.export_model import new_directory, refuse_existing
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import model_name
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import write_average_readme
from osrerank.training.weights.models import Trainee, are_equivalent, load_trainee, read_classifier_head


def average(models: Sequence[Path], shares: Sequence[float], output: Path) -> Path:
    """Write the weighted mean of the models' weights, with the first model's tokenizer and card.

    Args:
        models: the models' directories. The first is a reranker. Another can be the encoder that it was trained from.
        shares: the factor of each model in the mean, at least 0. They are divided by their sum, so [1, 3] means 25% of
            the first model and 75% of the second.
        output: the model directory to create. Its name becomes the model's name.

    Raises:
        ConfigError: the output exists, a share is negative, all shares are 0, or the models differ in heads or in the
            shapes of their weights.
        ModelLoadError: a model cannot be read.
    """
    refuse_existing(output)
    if len(models) != len(shares) or not models or min(shares) < 0 or sum(shares) <= 0:
        fix = "pass a share of at least 0 for each model, and one above 0"
        raise ConfigError(f"{len(models)} models have the shares {list(shares)}; {fix}", setting="shares")
    first_card = read_card(models[0])
    for model in models[1:]:
        head = read_classifier_head(model)
        has_other_head = head is not None and not are_equivalent(head, first_card.head)
        if has_other_head and not first_card.is_encoder:
            heads = f"{model} has the head {head}, but {models[0]} has {first_card.head}"
            raise ConfigError(f"{heads}; average models with the same head", setting="models")
    fractions = [share / sum(shares) for share in shares]
    mean = _load_like(models[0], first_card)  # the loops below turn its weights into the mean
    parameters = dict(mean.network.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.mul_(fractions[0])
        for model, fraction in zip(models[1:], fractions[1:], strict=True):
            other_parameters = dict(_load_like(model, first_card).network.named_parameters())
            for name, parameter in parameters.items():
                if name not in other_parameters or other_parameters[name].shape != parameter.shape:
                    raise ConfigError(
                        f"{name} of {models[0]} is missing in {model} or has another shape; average alike models",
                        setting="models",
                    )
                parameter.add_(other_parameters[name], alpha=fraction)
    average_of = [
        {"model": model_name(model), "share": round(fraction, 4)}
        for model, fraction in zip(models, fractions, strict=True)
    ]
    # The first model's measures do not hold for the mean.
    provenance = {name: value for name, value in first_card.provenance.items() if name != "measures"}
    with new_directory(output) as directory:
        card = replace(mean.card, name=output.name, provenance={**provenance, "average_of": average_of})
        replace(mean, card=card).save(directory)
        write_average_readme(directory, card)
    return output


def _load_like(model: Path, card: ModelCard) -> Trainee:
    """Load a model with the head, the kind and the lengths of another model's card."""
    fields = {name: getattr(card, name) for name in ("kind", "max_tokens", "max_query_tokens", "length_rule")}
    head = "" if card.is_bi_encoder else card.head
    recipe = Recipe.from_options({**fields, "head": head}, default="modern")
    return load_trainee(model, recipe, kind=card.kind, name=card.name)
