"""Distil a teacher into a smaller student, which learns what the teacher computes.

Chen, He, Hui, Sun, Sun: Simplified TinyBERT: Knowledge distillation for document retrieval (arXiv 2009.07531): in one
step, L = L_att + L_hid + L_soft + L_hard with unit weights, after Jiao et al.: TinyBERT (arXiv 1909.10351, eq. 7-11).
The method ``logits`` learns only the logits: Hinton, Vinyals, Dean: Distilling the knowledge in a neural network
(arXiv 1503.02531).
"""

import torch
from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.training import losses
from osrerank.training.examples.batches import Lot
from osrerank.training.objective import Objective, Parts, output_loss, to_device
from osrerank.training.probe import NetworkProbe, forward
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import Trainee
from osrerank.training.weights.student import layer_map

METHODS = ("simplified-tinybert", "logits")


class DistillationObjective(Objective):
    """A student's distance from its teacher, and from the labels if the recipe sets ``hard``.

    The parts of the loss are ``attention``, ``hidden``, ``soft`` and ``hard``. The method ``logits`` has only the last
    two, and a recipe can leave out either of the first two. ``soft`` is the cross-entropy between teacher and student
    for each sequence, or their divergence for each list if the loss is listwise. All hidden states share one projection
    W, which starts as the identity if the widths are equal. It is trained with the student, but is not part of it.

    Args:
        student: the model to train.
        teacher: the model to learn from; it is not changed, and computes without dropout.
        recipe: the recipe; its method, parts, loss and temperature are used.
        watched: for each of the student's M layers, the layer of the teacher, from 0, that it learns from; None for the
            last layer of each block of N / M.

    Raises:
        ConfigError: the method is unknown, or teacher and student cannot be compared layer by layer.
    """

    def __init__(
        self, student: Trainee, teacher: Trainee, recipe: Recipe, watched: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(student.network)
        if recipe.method not in METHODS:
            raise ConfigError(f"recipe: method is {recipe.method!r}; it must be one of {', '.join(METHODS)}")
        # The list keeps the teacher out of this module's parameters.
        self._frozen = [teacher.network.eval().requires_grad_(requires_grad=False)]
        self._heads = student.card.head, teacher.card.head
        self._recipe = recipe
        self.watches = recipe.method == "simplified-tinybert"
        if self.watches:
            self._compare(student, teacher, watched)

    @property
    def teacher(self) -> nn.Module:
        """The teacher's network."""
        return self._frozen[0]

    def forward(self, lot: Lot) -> Parts:
        device = next(self.network.parameters()).device
        teacher_inputs = to_device(device, lot.teacher or lot.inputs)
        inputs = to_device(device, lot.inputs)
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)
        if not self.watches:
            with torch.no_grad():
                teacher_logits = self.teacher(**teacher_inputs).float()
            return output_loss(self.network(**inputs).float(), teacher_logits, lot, self._heads, self._recipe)
        teacher_logits = forward(self.teacher, self._teacher_probe, teacher_inputs, learn=False).float()
        student_logits = forward(self.network, self._probe, inputs, learn=torch.is_grad_enabled()).float()
        mask = inputs["attention_mask"].float()
        compared = {"attention": self._attention, "hidden": self._hidden}
        distances = {name: distance(mask) for name, distance in compared.items() if getattr(self._recipe, name)}
        return {**distances, **output_loss(student_logits, teacher_logits, lot, self._heads, self._recipe)}

    def _compare(self, student: Trainee, teacher: Trainee, watched: tuple[int, ...] | None) -> None:
        self._probe, self._teacher_probe = NetworkProbe(student.network), NetworkProbe(teacher.network)
        if self._probe.heads != self._teacher_probe.heads:
            reason = "teacher and student need the same number of attention heads; or use method=logits"
            raise ConfigError(reason, setting="recipe.method")
        self._map = watched or layer_map(self._teacher_probe.layers, self._probe.layers)
        if len(self._map) != self._probe.layers:
            reason = f"the student has {self._probe.layers} layers; {len(self._map)} of the teacher's were named"
            raise ConfigError(reason, setting="layers")
        student_width, teacher_width = (int(model.config["hidden_size"]) for model in (student, teacher))
        self.projection = nn.Linear(student_width, teacher_width)
        if student_width == teacher_width:
            nn.init.eye_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def _attention(self, mask: Tensor) -> Tensor:
        pairs = zip(self._probe.attention, (self._teacher_probe.attention[layer] for layer in self._map), strict=True)
        return torch.stack([losses.attention_distance(a.float(), b.float(), mask) for a, b in pairs]).sum()

    def _hidden(self, mask: Tensor) -> Tensor:
        layers = [0, *(layer + 1 for layer in self._map)]
        teacher_states = [self._teacher_probe.states[layer] for layer in layers]
        pairs = zip(self._probe.states, teacher_states, strict=True)
        return torch.stack(
            [losses.hidden_distance(self.projection(a).float(), b.float(), mask) for a, b in pairs]
        ).sum()
