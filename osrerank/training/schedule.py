"""When a training is measured on its development set, so that measuring takes at most a tenth of the time.

Costs are estimated by the characters that the network reads, before the training begins: the same training is always
measured at the same steps, whatever the machine, and after a stop too. Measuring is taken to cost as much for each
character as training, which is too much: it has no backward pass. But training prepares its texts in the background.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from osrerank.scoring.card import Kind
from osrerank.training.development import Development

SHARE = 0.1
"""Most of the time that measuring takes, unless a recipe says ``evaluate_every``."""
MEASUREMENTS, LEAST_MEASUREMENTS = 10, 2
LEAST_QUERIES = 10
"""Fewer do not tell better weights from worse."""
TENTH = "measuring may take a tenth of the time"
FIX = "evaluate_every=STEPS in the recipe measures all of them, every so many steps"
TOKEN_CHARACTERS = 5
"""Of an English word piece, with the space behind it; what a model cuts off costs nothing."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a training is measured.

    Attributes:
        development: what it is measured on; None for not at all.
        measurements: how often, at most.
        before: whether the start is measured too.
        says: what was decided, and what to give for something else; empty where the recipe decides.
    """

    development: Development | None
    measurements: int
    before: bool
    says: str


def cost(query: str, documents: Sequence[str], sequences: int, kind: Kind, max_tokens: int) -> float:
    """Return about how many characters a network reads in the sequences of a query with documents, or pairs of them."""
    if not documents:
        return 0.0
    each = sum(map(len, documents)) / len(documents) * (2 if kind == "duo" else 1)
    return sequences * min(len(query) + each, max_tokens * TOKEN_CHARACTERS)


def schedule(development: Development, training: float, kind: Kind, max_tokens: int) -> Schedule:
    """Return how often to measure, and on how many queries, for at most a tenth of the time.

    All queries as often as ten times, or at least twice; else twice on queries from all over the set that have a
    relevant candidate; not at all if these would be fewer than ten.

    Args:
        development: the whole set.
        training: cost of all sequences of the training, as `cost` estimates it.
        kind: of the model.
        max_tokens: of a sequence.
    """
    costs = [
        cost(example.query, texts, len(texts) * (len(texts) - 1 if kind == "duo" else 1), kind, max_tokens)
        for example, texts in zip(development.examples, development.texts(), strict=True)
    ]
    most, whole, count = SHARE / (1 - SHARE) * training, sum(costs), len(costs)
    if whole * (MEASUREMENTS + 1) <= most:
        return Schedule(development, MEASUREMENTS, before=True, says=f"{count} queries choose the best weights")
    if (times := int(most // whole)) >= LEAST_MEASUREMENTS:
        times = min(times, MEASUREMENTS)
        says = f"{count} queries choose the best weights, measured {times} times: {TENTH}"
        return Schedule(development, times, before=False, says=says)
    able = [place for place, example in enumerate(development.examples) if example.relevant]
    mean = sum(costs[place] for place in able) / len(able)
    wanted = min(len(able), int(most / (LEAST_MEASUREMENTS * mean)))
    while wanted and LEAST_MEASUREMENTS * sum(costs[place] for place in _spread(able, wanted)) > most:
        wanted -= 1
    if wanted < (least := min(LEAST_QUERIES, len(able))):
        says = f"the last weights are kept: a tenth of the time is too little to measure even {least} of {count}"
        return Schedule(None, LEAST_MEASUREMENTS, before=False, says=f"{says} queries; {FIX}")
    part = replace(development, examples=tuple(development.examples[place] for place in _spread(able, wanted)))
    says = f"{wanted} of {count} queries choose the best weights, measured {LEAST_MEASUREMENTS} times: {TENTH}; {FIX}"
    return Schedule(part, LEAST_MEASUREMENTS, before=False, says=says)


def _spread(places: Sequence[int], wanted: int) -> list[int]:
    """Return this many of the places, at even distances."""
    return [places[number * len(places) // wanted] for number in range(wanted)]
