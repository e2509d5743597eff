"""Training losses, each a mean over sequences or lists. Logits are the outputs of the model's head.

Pointwise cross-entropy: Nogueira and Cho 2019 (arXiv 1901.04085, eq. 1), and over pairs of documents Nogueira et al.
2019 (arXiv 1910.14424, eq. 2). Listwise softmax cross-entropy: Gao, Dai, Callan: Rethink training of BERT rerankers in
multi-stage retrieval pipeline (arXiv 2101.08751, eq. 1). Soft labels, hidden states and attention: Chen et al.:
Simplified TinyBERT (arXiv 2009.07531), after Jiao et al.: TinyBERT (arXiv 1909.10351, eq. 7 to 10).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from osrerank.scoring.card import Head

MASKED_LOGIT = -100.0
"""Attention logits up to this one are masked. BERT adds large negative numbers to the attention logits of padding."""


def raw_scores(logits: Tensor, head: Head) -> Tensor:
    """Return a score for each sequence ``(n,)``, higher is better: the single logit, or z1 - z0 of two logits."""
    return logits[:, 1] - logits[:, 0] if head in ("logits2", "next-sentence") else logits[:, -1]


def as_two_logits(logits: Tensor) -> Tensor:
    """Return two logits ``(n, 2)`` for each sequence, not relevant and relevant. A single logit z becomes (0, z)."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over sequences of -log p if the sequence is relevant, and of -log(1 - p) if not.

    p is the model's probability that the sequence is relevant.

    Args:
        logits: ``(n, 1)`` or ``(n, 2)``.
        targets: int64 ``(n,)``, 1 if the document, or the first one of a pair, is relevant, otherwise 0.
    """
    return functional.cross_entropy(as_two_logits(logits), targets)


def list_cross_entropy(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean over lists of -log softmax(scores) at the relevant document; for several, the mean of these.

    Args:
        scores: ``(n,)``, one list after the other.
        targets: int64 ``(n,)``, 1 if the document is relevant, otherwise 0. Each list has at least one 1.
        sizes: the number of documents in each list.
    """
    log_probabilities = _log_softmax(scores, sizes)
    is_relevant = _pad_lists(targets.to(scores.dtype), sizes, padding=0.0)
    return -((log_probabilities * is_relevant).sum(dim=1) / is_relevant.sum(dim=1)).mean()


def list_divergence(student: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Return the mean over lists of KL(softmax(teacher / t) || softmax(student / t)).

    Args:
        student: the student's scores ``(n,)``, one list after the other.
        teacher: the teacher's scores ``(n,)``.
        sizes: the number of documents in each list.
        temperature: the temperature t.
    """
    student_log_probabilities = _log_softmax(student / temperature, sizes)
    teacher_log_probabilities = _log_softmax(teacher / temperature, sizes)
    is_document = _pad_lists(torch.ones_like(teacher), sizes, padding=0.0)
    teacher_probabilities = is_document * teacher_log_probabilities.exp()
    return (teacher_probabilities * (teacher_log_probabilities - student_log_probabilities)).sum(dim=1).mean()


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return -mean(softmax(teacher / t) * log_softmax(student / t)) over both logits of all sequences.

    This is half of the usual cross-entropy, which sums over the two logits.

    Args:
        student: the student's logits ``(n, 1)`` or ``(n, 2)``.
        teacher: the teacher's logits ``(n, 1)`` or ``(n, 2)``.
        temperature: the temperature t.
    """
    teacher_probabilities = functional.softmax(as_two_logits(teacher) / temperature, dim=1)
    student_log_probabilities = functional.log_softmax(as_two_logits(student) / temperature, dim=1)
    return -(teacher_probabilities * student_log_probabilities).mean()


def hidden_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared distance of hidden states, averaged over each sequence's tokens, then over sequences.

    Args:
        student: the student's states ``(n, tokens, hidden)``, projected to the teacher's width.
        teacher: the teacher's states ``(n, tokens, hidden)``, without a gradient.
        mask: ``(n, tokens)``, 1 for tokens and 0 for padding, which is ignored.
    """
    squares = (student - teacher).square().mean(dim=2) * mask
    return (squares.sum(dim=1) / mask.sum(dim=1)).mean()


def attention_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared distance of attention logits, averaged over each sequence's pairs of tokens.

    Args:
        student: the student's logits ``(n, heads, tokens, tokens)`` before the softmax, scaled and masked.
        teacher: the teacher's logits, of the same shape.
        mask: ``(n, tokens)``, 1 for tokens and 0 for padding, which is ignored.
    """
    student_logits = student.masked_fill(student <= MASKED_LOGIT, 0.0)
    teacher_logits = teacher.masked_fill(teacher <= MASKED_LOGIT, 0.0)
    squares = (student_logits - teacher_logits).square().mean(dim=1) * mask.unsqueeze(1) * mask.unsqueeze(2)
    return (squares.sum(dim=(1, 2)) / mask.sum(dim=1).square()).mean()


def _pad_lists(values: Tensor, sizes: Sequence[int], padding: float) -> Tensor:
    """Return lists as rows ``(lists, longest)``, padded at the end."""
    lists = list(torch.split(values, list(sizes)))
    return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=padding)


def _log_softmax(scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the log-softmax of each list ``(lists, longest)``, padded with 0."""
    log_probabilities = functional.log_softmax(_pad_lists(scores, sizes, padding=float("-inf")), dim=1)
    lengths = torch.tensor(list(sizes), device=scores.device)
    is_padding = torch.arange(log_probabilities.shape[1], device=scores.device) >= lengths.unsqueeze(1)
    return log_probabilities.masked_fill(is_padding, 0.0)
