"""Which sequences go through the model together: batches by tokens, not by count."""

from collections.abc import Sequence
from itertools import pairwise


def plan_batches(lengths: Sequence[int], budget_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Group sequences of like length, longest first; each batch, padded to its longest, stays within the budget.

    Args:
        lengths: tokens of each sequence.
        budget_tokens: most tokens of a padded batch; a single sequence that exceeds it is a batch of its own.

    Returns:
        Batches of indices into ``lengths``; each index is in exactly one.
    """
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget_tokens:
            batches.append(tuple(batch))
            batch = []
        batch.append(index)
    return (*batches, tuple(batch)) if batch else tuple(batches)


def blocks(lengths: Sequence[int], most_tokens: int) -> tuple[range, ...]:
    """Cut ``0..n`` into runs of consecutive sequences of at most ``most_tokens`` together, or of one that is longer.

    With a deadline one run is done before the next is begun, so that what was scored is a beginning.
    """
    starts: list[int] = []
    total = 0
    for index, length in enumerate(lengths):
        total += length
        if not starts or total > most_tokens:
            starts.append(index)
            total = length
    return tuple(range(start, end) for start, end in pairwise([*starts, len(lengths)]))
