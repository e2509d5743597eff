"""The loss of a student that learns from a teacher: from its logits, attention and hidden states.

The method ``simplified-tinybert`` is that of Chen, He, Hui, Sun, Sun: Simplified TinyBERT: Knowledge distillation for
document retrieval (arXiv 2009.07531), after Jiao et al.: TinyBERT (arXiv 1909.10351, eq. 7-11). In one step,
L = L_att + L_hid + L_soft + L_hard with unit weights. The method ``logits`` learns only from the logits, as in Hinton,
Vinyals, Dean: Distilling the knowledge in a neural network (arXiv 1503.02531).
"""

import torch
from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.training import losses
from osrerank.training.examples.batches import MicroBatch
from osrerank.training.objective import LossParts, Objective, move_to_device, output_loss
from osrerank.training.probe import NetworkProbe
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import Trainee
from osrerank.training.weights.student import find_block_ends


class DistillationObjective(Objective):
    """The loss of a student against its teacher, and against the labels if the recipe sets ``hard``.

    The loss is a sum of up to four parts:

    - ``attention``: the distance of the attention logits, for the method ``simplified-tinybert``
    - ``hidden``: the distance of the hidden states, for the same method
    - ``soft``: the cross-entropy between teacher and student on each sequence or, with a listwise loss, their
      divergence on each list
    - ``hard``: the loss against the labels

    One linear projection maps all hidden states of the student to the teacher's width. It is trained, but does not
    become part of the student.

    Args:
        student: the model to train.
        teacher: the model to learn from. It is not changed, and computes without dropout.
        recipe: the recipe. Its ``method``, ``attention``, ``hidden``, ``hard``, ``loss`` and ``temperature`` are used.
        target_layers: for each student layer, the index of the teacher layer that it imitates, counted from 0. If None,
            the last layers of equal blocks of the teacher, such as 2 and 5 for 2 student and 6 teacher layers.

    Raises:
        ConfigError: teacher and student cannot be compared layer by layer.
    """

    def __init__(
        self, student: Trainee, teacher: Trainee, recipe: Recipe, target_layers: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(student.network)
        # torch does not look into lists for modules, so the teacher's weights are not among this module's parameters.
        self._teacher = [teacher.network.eval().requires_grad_(requires_grad=False)]
        self._student_head, self._teacher_head = student.card.head, teacher.card.head
        self._recipe = recipe
        self._compares_layers = recipe.method == "simplified-tinybert"
        if self._compares_layers:
            self._prepare_comparison(student, teacher, target_layers)

    @property
    def teacher(self) -> nn.Module:
        """The teacher's network."""
        return self._teacher[0]

    def forward(self, micro_batch: MicroBatch) -> LossParts:
        device = next(self.network.parameters()).device
        teacher_inputs = move_to_device(device, micro_batch.teacher_inputs or micro_batch.inputs)
        inputs = move_to_device(device, micro_batch.inputs)
        if not self._compares_layers:
            with torch.no_grad():
                teacher_logits = self.teacher(**teacher_inputs).float()
            return self._output_loss(self.network(**inputs).float(), teacher_logits, micro_batch)
        with torch.no_grad():
            teacher_logits = self._teacher_probe.run(teacher_inputs).float()
        student_logits = self._probe.run(inputs).float()
        mask = inputs["attention_mask"].float()
        parts: dict[str, Tensor] = {}
        if self._recipe.attention:
            parts["attention"] = self._attention_distance(mask)
        if self._recipe.hidden:
            parts["hidden"] = self._hidden_distance(mask)
        return {**parts, **self._output_loss(student_logits, teacher_logits, micro_batch)}

    def _output_loss(self, student_logits: Tensor, teacher_logits: Tensor, micro_batch: MicroBatch) -> LossParts:
        return output_loss(
            student_logits,
            teacher_logits,
            micro_batch,
            self._recipe,
            student_head=self._student_head,
            teacher_head=self._teacher_head,
        )

    def _prepare_comparison(self, student: Trainee, teacher: Trainee, target_layers: tuple[int, ...] | None) -> None:
        self._probe = NetworkProbe(student.network)
        self._teacher_probe = NetworkProbe(teacher.network)
        if self._probe.heads != self._teacher_probe.heads:
            reason = "teacher and student differ in the number of attention heads; set method=logits"
            raise ConfigError(reason, setting="recipe.method")
        self._target_layers = target_layers or find_block_ends(self._teacher_probe.layers, self._probe.layers)
        if len(self._target_layers) != self._probe.layers:
            counts = f"{self._probe.layers} layers, but {len(self._target_layers)} teacher layers are listed"
            raise ConfigError(f"the student has {counts}; list a teacher layer for each", setting="layers")
        student_width = int(student.config["hidden_size"])
        teacher_width = int(teacher.config["hidden_size"])
        self.projection = nn.Linear(student_width, teacher_width)
        if student_width == teacher_width:
            nn.init.eye_(self.projection.weight)  # states of equal width are first compared as they are
        nn.init.zeros_(self.projection.bias)

    def _attention_distance(self, mask: Tensor) -> Tensor:
        """Return the distance between the attention of a student layer and its target layer, summed over the layers."""
        teacher_attention = [self._teacher_probe.attention[layer] for layer in self._target_layers]
        distances = [
            losses.attention_distance(student.float(), teacher.float(), mask)
            for student, teacher in zip(self._probe.attention, teacher_attention, strict=True)
        ]
        return torch.stack(distances).sum()

    def _hidden_distance(self, mask: Tensor) -> Tensor:
        """Return the distance between a student layer's states and its target layer's, summed over the layers.

        The distance between the embeddings is added.
        """
        # states[0] are the embeddings, so states[i + 1] are the output of layer i.
        indices = (0, *(layer + 1 for layer in self._target_layers))
        teacher_states = [self._teacher_probe.states[index] for index in indices]
        distances = [
            losses.hidden_distance(self.projection(student).float(), teacher.float(), mask)
            for student, teacher in zip(self._probe.states, teacher_states, strict=True)
        ]
        return torch.stack(distances).sum()
