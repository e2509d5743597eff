"""A student's output matrices by least squares on what its teacher computes: no gradient, minutes instead of hours.

Layer by layer, from the first: the matrix behind the attention is fitted to give the teacher's sum at that place from
the states that the student really has there; then the feed-forward units are chosen that can be spared least, by
Optimal Brain Surgeon (Hassibi and Stork 1993) on whole units as in ZipLM (Kurtic, Frantar, Alistarh 2023, arXiv
2302.04089), and their output matrix is fitted to the sum of the teacher's layer that this one stands in for. The fits
correct what earlier layers lost. Kwon et al. 2022 (arXiv 2204.09656) fit masks the same way after pruning.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from osrerank.errors import ConfigError
from osrerank.scoring.inputs import Batch
from osrerank.scoring.networks.cross_bias import CrossBiasEncoder, shared
from osrerank.training.objective import on
from osrerank.training.weights.models import Trainee

QUERY_WEIGHT = 3.0
"""Of a query's token beside a document's: few tokens, and half of the score."""
NEARNESS = {"attended": 1e-2, "narrow": 1e-3}
"""Of the mean diagonal of the Gram matrix: how strongly a fitted matrix is drawn to the teacher's own."""
SHARE_AT_ONCE = 64
"""One in so many of the units that are left goes at once."""


@dataclass(slots=True)
class Sums:
    """The sums that a weighted least-squares fit needs, in float64.

    Attributes:
        gram: inputs' products with inputs ``(k, k)``.
        products: inputs' products with what is wanted ``(k, h)``.
    """

    gram: Tensor
    products: Tensor

    @classmethod
    def empty(cls, inputs: int, outputs: int) -> "Sums":
        """Return sums of nothing, for so many inputs and a constant."""
        gram = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        return cls(gram, torch.zeros(inputs + 1, outputs, dtype=torch.float64))

    def add(self, inputs: Tensor, wanted: Tensor, weights: Tensor) -> None:
        """Add observations: inputs ``(m, k)``, what is wanted ``(m, h)``, their weights ``(m,)``."""
        root = weights.sqrt().unsqueeze(1)
        rows = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1) * root
        self.gram += (rows.T @ rows).double().cpu()
        self.products += (rows.T @ (wanted * root)).double().cpu()

    def drawn_to(self, matrix: Tensor, nearness: float) -> "Sums":
        """Return the sums of the same fit with a ridge around a matrix ``(k, h)`` instead of around 0."""
        strength = nearness * self.gram.diagonal().mean()
        ridge = strength * torch.eye(len(self.gram), dtype=torch.float64)
        return Sums(self.gram + ridge, self.products + strength * matrix.double().cpu())

    def solved(self, rows: Tensor | None = None) -> Tensor:
        """Return the fitted matrix ``(k, h)``, of some of the inputs where rows are given."""
        gram, products = (self.gram, self.products) if rows is None else (self.gram[rows][:, rows], self.products[rows])
        fitted: Tensor = torch.linalg.solve(gram, products)
        return fitted


def spared_least(sums: Sums, count: int) -> Tensor:
    """Return the inputs, in order, with which the fit loses least: all but the constant, which always stays.

    In each turn those go whose loss, the squared norm of their row over their element of the inverse Gram matrix, is
    least; the others' rows take over what they can.

    Args:
        sums: of the fit; its Gram matrix must be regular.
        count: how many stay.
    """
    inverse = torch.linalg.inv(sums.gram)
    matrix = inverse @ sums.products
    alive = torch.arange(len(inverse) - 1)
    while len(alive) > count:
        loss = matrix[alive].square().sum(dim=1) / inverse.diagonal()[alive]
        gone = min(len(alive) - count, max(1, len(alive) // SHARE_AT_ONCE))
        order = loss.argsort()
        out = alive[order[:gone]]
        columns = inverse[:, out]
        taken = torch.linalg.solve(inverse[out][:, out], torch.cat([inverse[out], matrix[out]], dim=1))
        inverse = inverse - columns @ taken[:, : len(inverse)]
        matrix = matrix - columns @ taken[:, len(inverse) :]
        alive = alive[order[gone:].sort().values]
    return alive


@dataclass(slots=True)
class _Place:
    """A batch on its way through teacher and student, which has fewer rows than tokens where it pools them.

    Attributes:
        teacher: the teacher's states ``(n, tokens, hidden)``.
        teacher_bias: on its attention logits.
        student: the student's states ``(n, rows, hidden)``.
        student_bias: on its attention logits.
        shares: of each of the teacher's tokens in each row, as `Pooled` has them.
        weights: of each row ``(n, rows)``, 0 on padding.
        attended: what the student's attention gives, before its matrix; after the fit its states behind it.
        wanted_attended: the teacher's sum behind the attention of the layer that is kept, in the student's rows.
        wanted: the teacher's sum at the end of the layer that is stood in for, in the student's rows.
    """

    teacher: Tensor
    teacher_bias: Tensor
    student: Tensor
    student_bias: Tensor
    shares: Tensor | None
    weights: Tensor
    attended: Tensor = field(init=False)
    wanted_attended: Tensor = field(init=False)
    wanted: Tensor = field(init=False)


@torch.no_grad()
def refit(
    teacher: Trainee, student: Trainee, kept: Sequence[int], watched: Sequence[int], batches: Iterable[Batch]
) -> list[float]:
    """Fit a student that was made of its teacher's layers; return what of each layer's sums is left unexplained.

    That is the weighted share of the wanted sums' variance in the last layer's place, one number from 0 for each layer.
    All sequences are kept in memory: five states of fp32, 8 KB a token with 384 hidden units, the biases and shares.

    Args:
        teacher: of the layout ``cross-bias``.
        student: of `select_layers`; its matrices are replaced.
        kept: the teacher's layer, from 0, that each of the student's was.
        watched: the teacher's layer, from 0, whose states each of the student's layers is to give; not before the kept
            one.
        batches: padded sequences, as the student reads them; some ten thousand tokens for each hundred units.

    Raises:
        ConfigError: the layout is another one.
    """
    theirs, ours = teacher.network, student.network
    if not (isinstance(theirs, CrossBiasEncoder) and isinstance(ours, CrossBiasEncoder)):
        raise ConfigError("a refit is for models of the layout cross-bias", setting="refit")
    own: list[Any] = list(ours.layers)
    known: list[Any] = list(theirs.layers)
    places = list(_begun(theirs, ours, batches))
    left = []
    next_layer = 0
    for layer, keep, watch in zip(own, kept, watched, strict=True):
        for number in range(next_layer, watch + 1):
            _advance(known[number], places, is_kept=number == keep, is_watched=number == watch)
        next_layer = watch + 1
        layer.norm.load_state_dict(known[watch].norm.state_dict())
        _fit_attention(layer, places)
        left.append(_fit_units(layer, known[keep], places))
    return left


def _begun(theirs: CrossBiasEncoder, ours: CrossBiasEncoder, batches: Iterable[Batch]) -> Iterator[_Place]:
    """Yield the batches at the first layer; teacher and student share the embeddings."""
    device = next(theirs.parameters()).device
    for batch in batches:
        inputs = on(device, batch)
        mask, segments = inputs["attention_mask"], inputs["token_type_ids"]
        known = theirs.pool(theirs.embed(inputs["input_ids"], segments), segments, mask)
        made = ours.pool(known.states, segments, mask) if known.shares is None else known._replace(shares=None)
        weights = made.attention_mask.float() * torch.where(made.token_type_ids == 0, QUERY_WEIGHT, 1.0)
        bias = theirs.attention_bias(known.token_type_ids, known.attention_mask == 1)
        own = bias if made.shares is None else ours.attention_bias(made.token_type_ids, made.attention_mask == 1)
        yield _Place(known.states, bias, made.states, own, made.shares, weights)


def _advance(layer: Any, places: Iterable[_Place], *, is_kept: bool, is_watched: bool) -> None:
    """Take the teacher one layer further and keep its sums."""
    for place in places:
        summed = place.teacher + layer.attended(layer.context(place.teacher, place.teacher_bias))
        if is_kept:
            place.wanted_attended = shared(place.shares, summed)
        fed = layer.fed_forward(layer.attended_norm(summed))
        if is_watched:
            place.wanted = shared(place.shares, fed)
        place.teacher = layer.norm(fed)


def _fit_attention(layer: Any, places: Sequence[_Place]) -> None:
    """Fit the matrix behind a layer's attention, and take the student's states past it."""
    sums = Sums.empty(layer.attended.in_features, layer.attended.out_features)
    for place in places:
        place.attended = layer.context(place.student, place.student_bias)
        rows, weights = _counted(place, place.wanted_attended)
        sums.add(place.attended[rows], (place.wanted_attended - place.student)[rows], weights)
    _put(layer.attended, sums.drawn_to(_matrix(layer.attended), NEARNESS["attended"]).solved())
    for place in places:
        place.attended = layer.attended_norm(place.student + layer.attended(place.attended))


def _fit_units(layer: Any, known: Any, places: Sequence[_Place]) -> float:
    """Choose a layer's units and fit their output; return the share of the wanted sums that is left unexplained."""
    sums = Sums.empty(known.widen.out_features, known.narrow.out_features)
    for place in places:
        rows, weights = _counted(place, place.wanted)
        states = place.attended[rows]
        sums.add(functional.gelu(known.widen(states)), place.wanted[rows] - states, weights)
    near = sums.drawn_to(_matrix(known.narrow), NEARNESS["narrow"])
    chosen = spared_least(near, layer.widen.out_features)
    constant = torch.tensor([known.widen.out_features])
    fitted = near.solved(torch.cat([chosen, constant]))
    units = chosen.to(known.widen.weight.device)
    layer.widen.weight.copy_(known.widen.weight[units])
    layer.widen.bias.copy_(known.widen.bias[units])
    _put(layer.narrow, fitted)
    missed = variance = 0.0
    for place in places:
        rows, weights = _counted(place, place.wanted)
        found = layer.fed_forward(place.attended)
        wanted = place.wanted[rows]
        missed += float(((found[rows] - wanted).square().sum(dim=1) * weights).sum())
        variance += float(((wanted - wanted.mean(dim=1, keepdim=True)).square().sum(dim=1) * weights).sum())
        place.student = layer.norm(found)
    return missed / variance


def _counted(place: _Place, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens count ``(n, tokens)``, and their weights ``(m,)``: as if each sum were of variance 1."""
    rows = place.weights > 0
    return rows, (place.weights / wanted.var(dim=2))[rows]


def _matrix(linear: Any) -> Tensor:
    """Return weight and bias as one matrix ``(inputs + 1, outputs)``."""
    return torch.cat([linear.weight.T, linear.bias.unsqueeze(0)])


def _put(linear: Any, matrix: Tensor) -> None:
    """Write such a matrix back."""
    linear.weight.copy_(matrix[:-1].T)
    linear.bias.copy_(matrix[-1])
