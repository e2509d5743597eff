"""Make a student from some of its teacher's layers, and choose the teacher's states that each layer learns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder
from osrerank.scoring.backends.networks.classifier import Classifier
from osrerank.training.weights.bi_encoder import BiEncoderNetwork
from osrerank.training.weights.models import Trainee, architecture_of, build_network, put_weights, weights_of


def select_layers(trainee: Trainee, kept_layers: tuple[int, ...], name: str) -> Trainee:
    """Return a copy of the teacher with some of its layers, for a student to start from.

    Args:
        trainee: the teacher.
        kept_layers: the teacher's layers to keep, from 0, in order; messages count them from 1.
        name: the student's name.

    Raises:
        ConfigError: the teacher has no such layer.
    """
    count = int(trainee.config["num_hidden_layers"])
    _check_layers(count, kept_layers)
    config = {**trainee.config, "num_hidden_layers": len(kept_layers)}
    weights = dict(_renumbered(weights_of(trainee.network), kept_layers))
    card = replace(trainee.card, name=name, onnx={})
    if card.is_bi_encoder:
        network: nn.Module = BiEncoderNetwork(PaddedBiEncoder(config, card.pooling).load_bert(weights))
    else:
        network = Classifier(build_network(architecture_of(card), config))
        put_weights(network.network, weights, trainee.source)
    return replace(trainee, network=network, card=card, config=config)


def _check_layers(count: int, kept_layers: Sequence[int]) -> None:
    if not kept_layers or any(not 0 <= layer < count for layer in kept_layers):
        listed = ", ".join(str(layer + 1) for layer in kept_layers) or "none"
        raise ConfigError(f"layers are numbered 1 to {count}; the request names {listed}", setting="layers")


def layer_map(teacher: int, student: int) -> tuple[int, ...]:
    """Return, for each of the student's M layers, the last layer, from 0, of a block of N / M of the teacher's.

    Raises:
        ConfigError: the number of the student's layers does not divide the teacher's.
    """
    if not student or teacher % student:
        raise ConfigError(f"{student} layers do not divide the teacher's {teacher}", setting="layers")
    ratio = teacher // student
    return tuple(range(ratio - 1, teacher, ratio))


def stand_ins(teacher: int, kept_layers: Sequence[int]) -> tuple[int, ...]:
    """Return, for each kept layer, the teacher's layer whose states it learns: the last one before the next kept layer.

    So a kept layer does the work of the dropped layers after it, and the next one gets the same input as in the
    teacher. Layers count from 0.

    Raises:
        ConfigError: the teacher has no such layer.
    """
    _check_layers(teacher, kept_layers)
    return (*(following - 1 for following in kept_layers[1:]), teacher - 1)


def _renumbered(weights: Mapping[str, Tensor], kept_layers: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    """Return the weights of the kept layers, renumbered from 0, and the weights that belong to no layer."""
    pairs = []
    for name, tensor in weights.items():
        before, marker, numbered = name.partition("encoder.layer.")
        if not marker:
            pairs.append((name, tensor))
            continue
        number, _, suffix = numbered.partition(".")
        if int(number) in kept_layers:
            pairs.append((f"{before}{marker}{kept_layers.index(int(number))}.{suffix}", tensor))
    return pairs
