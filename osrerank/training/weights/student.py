"""Students made of their teacher: some of its layers, and what each of them learns to do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.scoring.card import CrossBias, with_pool_factors
from osrerank.scoring.networks.classifier import Classifier
from osrerank.scoring.networks.cross_bias import from_bert
from osrerank.training.weights.models import Trainee, architecture_of, build_network, put_weights, weights_of


def select_layers(
    trainee: Trainee,
    kept: tuple[int, ...],
    name: str,
    *,
    inner: int = 0,
    pool_factor: float | None = None,
    query_pool_factor: float | None = None,
) -> Trainee:
    """Return a copy with some of the layers: the way a student starts from its teacher.

    Args:
        trainee: the teacher.
        kept: its layers, from 0, in order; messages count them from 1.
        name: the student's.
        inner: width between the two feed-forward products, of which the strongest units stay; 0 for all.
        pool_factor: a document's pieces for each of its states, see `CrossBias`; None for the teacher's.
        query_pool_factor: the same of a query.

    Raises:
        ConfigError: there is no such layer, there are not so many units, or texts cannot be pooled so.
    """
    count = int(trainee.config["num_hidden_layers"])
    _check_layers(count, kept)
    config = {**trainee.config, "num_hidden_layers": len(kept)}
    weights = dict(_renumbered(weights_of(trainee.network), kept))
    if inner:
        if not 0 < inner <= int(config["intermediate_size"]):
            reason = f"inner is {inner}; the teacher has {config['intermediate_size']} units in a layer"
            raise ConfigError(reason, setting="inner")
        config["intermediate_size"] = inner
        weights = _narrowed(weights, inner)
    own = replace(trainee.card, name=name, onnx={})
    card = with_pool_factors(own, query=query_pool_factor, document=pool_factor)
    if card.layout == "cross-bias":
        network: nn.Module = from_bert(weights, config, CrossBias(**card.biases), kind=card.kind)
    else:
        network = Classifier(build_network(architecture_of(card), config))
        put_weights(network.network, weights, trainee.source)
    return replace(trainee, network=network, card=card, config=config)


def _check_layers(count: int, kept: Sequence[int]) -> None:
    if not kept or any(not 0 <= layer < count for layer in kept):
        asked = ", ".join(str(layer + 1) for layer in kept) or "none"
        raise ConfigError(f"layers are numbered 1 to {count}; asked for {asked}", setting="layers")


def layer_map(teacher: int, student: int) -> tuple[int, ...]:
    """Return the teacher's layer, from 0, for each of the student's: the last of its block of N / M.

    Raises:
        ConfigError: the student's count does not divide the teacher's.
    """
    if not student or teacher % student:
        raise ConfigError(f"{student} layers do not divide the teacher's {teacher}", setting="layers")
    ratio = teacher // student
    return tuple(range(ratio - 1, teacher, ratio))


def stand_ins(teacher: int, kept: Sequence[int]) -> tuple[int, ...]:
    """Return the teacher's layer, from 0, whose states each kept layer is to give: the last before the next one kept.

    So a kept layer does the work of the dropped ones behind it, and the next one sees what it saw in the teacher.

    Raises:
        ConfigError: there is no such layer.
    """
    _check_layers(teacher, kept)
    return (*(following - 1 for following in kept[1:]), teacher - 1)


def _renumbered(weights: Mapping[str, Tensor], kept: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    """Return the weights of the kept layers, numbered from 0, and all that belong to no layer."""
    pairs = []
    for name, tensor in weights.items():
        before, marker, behind = name.partition("encoder.layer.")
        if not marker:
            pairs.append((name, tensor))
            continue
        number, _, rest = behind.partition(".")
        if int(number) in kept:
            pairs.append((f"{before}{marker}{kept.index(int(number))}.{rest}", tensor))
    return pairs


def _narrowed(weights: Mapping[str, Tensor], inner: int) -> dict[str, Tensor]:
    """Return the weights with the strongest feed-forward units: those with the largest product of their two norms."""
    narrowed = dict(weights)
    for name, widen in weights.items():
        if not name.endswith("intermediate.dense.weight"):
            continue
        narrow = name.replace("intermediate.dense", "output.dense")
        strength = widen.norm(dim=1) * weights[narrow].norm(dim=0)
        chosen = strength.topk(inner).indices.sort().values
        bias = name.replace("weight", "bias")
        narrowed[name], narrowed[bias] = widen[chosen], weights[bias][chosen]
        narrowed[narrow] = weights[narrow][:, chosen].contiguous()
    return narrowed
