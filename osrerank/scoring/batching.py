"""Which sequences go through the model together: batches by tokens, not by count."""

from collections.abc import Iterable


def batch_size(lengths: Iterable[int], budget_tokens: int, *, packed: bool = False) -> int:
    """Return how many leading sequences fit a batch, at least one where there is one.

    Args:
        lengths: tokens of each sequence, in order.
        budget_tokens: most tokens of a batch; a single sequence that exceeds it is a batch of its own.
        packed: whether a batch costs the sum of its lengths, or its longest times their number, as padding does.
    """
    size = longest = total = 0
    for length in lengths:
        longest, total = max(longest, length), total + length
        cost = total if packed else longest * (size + 1)
        if size and cost > budget_tokens:
            break
        size += 1
    return size
