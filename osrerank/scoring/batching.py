"""Which sequences go through the model together: batches by tokens, not by count."""

from collections.abc import Sequence


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


def blocks(n_tuples: int, *, size: int) -> tuple[range, ...]:
    """Cut ``0..n_tuples`` into runs of at most ``size``: with a deadline, one run is done before the next is begun."""
    return tuple(range(start, min(start + size, n_tuples)) for start in range(0, n_tuples, size))
