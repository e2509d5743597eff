"""Create a student, a smaller model, from some of its teacher's layers, and choose the layers that it imitates.

Layers are numbered from 0, except in messages, which number them from 1 as users do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from osrerank.errors import ConfigError
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder
from osrerank.scoring.backends.networks.classifier import Classifier
from osrerank.training.weights.bi_encoder import BiEncoderNetwork
from osrerank.training.weights.models import Trainee, build_network, choose_network_class, collect_weights, load_weights


def select_layers(teacher: Trainee, kept_layers: tuple[int, ...], name: str) -> Trainee:
    """Return a student that starts as a copy of some of the teacher's layers.

    Raises:
        ConfigError: the teacher has no such layer.
    """
    _check_layers(int(teacher.config["num_hidden_layers"]), kept_layers)
    config = {**teacher.config, "num_hidden_layers": len(kept_layers)}
    weights = _renumber_layers(collect_weights(teacher.network), kept_layers)
    card = replace(teacher.card, name=name, onnx={})
    if card.is_bi_encoder:
        network: Classifier | BiEncoderNetwork = BiEncoderNetwork(
            PaddedBiEncoder(config, card.pooling).load_bert(weights)
        )
    else:
        network = Classifier(build_network(choose_network_class(card), config))
        load_weights(network.network, weights, teacher.source)
    return replace(teacher, network=network, card=card, config=config)


def _check_layers(count: int, kept_layers: Sequence[int]) -> None:
    if not kept_layers or any(not 0 <= layer < count for layer in kept_layers):
        names = ", ".join(str(layer + 1) for layer in kept_layers) or "none"
        raise ConfigError(f"the teacher's layers are numbered 1 to {count}, but layers lists {names}", setting="layers")


def find_block_ends(teacher_layers: int, student_layers: int) -> tuple[int, ...]:
    """Divide the teacher's layers into as many blocks as the student has layers, and return each block's last layer.

    Of 12 teacher layers, a student with 4 layers gets 2, 5, 8 and 11.

    Raises:
        ConfigError: the number of the student's layers does not divide the teacher's.
    """
    if not student_layers or teacher_layers % student_layers:
        raise ConfigError(
            f"the teacher's {teacher_layers} layers cannot be divided evenly among the student's {student_layers}; "
            "list the teacher's layers to learn from, such as 1,2,5,6",
            setting="layers",
        )
    block_size = teacher_layers // student_layers
    return tuple(range(block_size - 1, teacher_layers, block_size))


def find_target_layers(teacher_layers: int, kept_layers: Sequence[int]) -> tuple[int, ...]:
    """Return, for each kept layer, the teacher layer that it imitates: the last one before the next kept layer.

    If layers 0, 4 and 8 of 12 are kept, they imitate 3, 7 and 11. A kept layer thus learns to replace the dropped
    layers after it, and the next kept layer gets the same input as in the teacher.

    Raises:
        ConfigError: the teacher has no such layer.
    """
    _check_layers(teacher_layers, kept_layers)
    return (*(following - 1 for following in kept_layers[1:]), teacher_layers - 1)


def _renumber_layers(weights: Mapping[str, Tensor], kept_layers: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the weights without those of dropped layers, and number the kept layers from 0.

    If layers 2 and 5 are kept, ``encoder.layer.5.output.dense.bias`` becomes ``encoder.layer.1.output.dense.bias``.
    """
    renumbered = {}
    for name, tensor in weights.items():
        prefix, marker, layer_name = name.partition("encoder.layer.")
        if not marker:
            renumbered[name] = tensor
            continue
        number, _, suffix = layer_name.partition(".")
        if int(number) in kept_layers:
            renumbered[f"{prefix}{marker}{kept_layers.index(int(number))}.{suffix}"] = tensor
    return renumbered
