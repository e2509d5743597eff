"""The losses of trainings; each is a mean over sequences or lists. Logits are the outputs of the head.

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

SMALLEST_LOGIT = -100.0
"""Attention logits at or below this are masked, and count as 0 for student and teacher."""


def raw_scores(logits: Tensor, head: Head) -> Tensor:
    """Return a score for each sequence ``(n,)``, higher is better: the log-odds z1 - z0 of two logits, or one logit."""
    return logits[:, 1] - logits[:, 0] if head in ("logits2", "next-sentence") else logits[:, -1]


def two_logits(logits: Tensor) -> Tensor:
    """Return logits ``(n, 2)``, index 1 for relevant; a single logit z becomes (0, z), whose softmax is the sigmoid."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -log s over relevant sequences and -log(1 - s) over the others.

    Args:
        logits: ``(n, 1)`` or ``(n, 2)``.
        targets: int64 ``(n,)``, 1 for relevant; for pairs of documents, 1 if the first one is relevant.
    """
    return functional.cross_entropy(two_logits(logits), targets)


def list_cross_entropy(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean over lists of -log softmax(list) at the relevant document, averaged if there are several.

    Args:
        scores: ``(n,)``, one list after the other.
        targets: int64 ``(n,)``, 1 for relevant; each list has at least one 1.
        sizes: the number of documents in each list.
    """
    log_shares = _log_softmax(scores, sizes)
    relevant = _rows(targets.to(scores.dtype), sizes, 0.0)
    return -((log_shares * relevant).sum(dim=1) / relevant.sum(dim=1)).mean()


def list_divergence(student: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Return the mean over lists of KL(softmax(teacher / t) || softmax(student / t)); 0 where both agree.

    Args:
        student: the student's scores ``(n,)``, one list after the other.
        teacher: the teacher's scores ``(n,)``.
        sizes: the number of documents in each list.
        temperature: the temperature t.
    """
    student_shares = _log_softmax(student / temperature, sizes)
    teacher_shares = _log_softmax(teacher / temperature, sizes)
    shares = _rows(torch.ones_like(teacher), sizes, 0.0) * teacher_shares.exp()
    return (shares * (teacher_shares - student_shares)).sum(dim=1).mean()


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return -mean(softmax(teacher / t) * log_softmax(student / t)) over all logits, two each: half the cross-entropy.

    Args:
        student: the student's logits ``(n, 1)`` or ``(n, 2)``.
        teacher: the teacher's logits ``(n, 1)`` or ``(n, 2)``.
        temperature: the temperature t.
    """
    teacher_probabilities = functional.softmax(two_logits(teacher) / temperature, dim=1)
    student_shares = functional.log_softmax(two_logits(student) / temperature, dim=1)
    return -(teacher_probabilities * student_shares).mean()


def hidden_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared distance of states ``(n, tokens, hidden)``, over each sequence's tokens, then sequences.

    Args:
        student: the student's states, projected to the teacher's width.
        teacher: the teacher's states, without a gradient.
        mask: ``(n, tokens)``, 1 for a token and 0 for padding, which is ignored.
    """
    squares = (student - teacher).square().mean(dim=2) * mask
    return (squares.sum(dim=1) / mask.sum(dim=1)).mean()


def attention_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared distance of attention logits over rows and columns of tokens; masked logits count as 0.

    Args:
        student: the student's logits ``(n, heads, tokens, tokens)`` before the softmax, scaled and masked.
        teacher: the teacher's logits, of the same shape.
        mask: ``(n, tokens)``, 1 for a token and 0 for padding, which is ignored.
    """
    student_logits = student.masked_fill(student <= SMALLEST_LOGIT, 0.0)
    teacher_logits = teacher.masked_fill(teacher <= SMALLEST_LOGIT, 0.0)
    squares = (student_logits - teacher_logits).square().mean(dim=1) * mask.unsqueeze(1) * mask.unsqueeze(2)
    return (squares.sum(dim=(1, 2)) / mask.sum(dim=1).square()).mean()


def _rows(values: Tensor, sizes: Sequence[int], empty: float) -> Tensor:
    """Return lists as rows ``(lists, longest)``, with short lists filled up with ``empty``."""
    return torch.nn.utils.rnn.pad_sequence(
        list(torch.split(values, list(sizes))), batch_first=True, padding_value=empty
    )


def _log_softmax(scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the log-softmax of each list ``(lists, longest)``, 0 after a list's end."""
    logarithms = functional.log_softmax(_rows(scores, sizes, float("-inf")), dim=1)
    lengths = torch.tensor(list(sizes), device=scores.device)
    is_padding = torch.arange(logarithms.shape[1], device=scores.device) >= lengths.unsqueeze(1)
    return logarithms.masked_fill(is_padding, 0.0)
