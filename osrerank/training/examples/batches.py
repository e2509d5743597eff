"""Tokenise examples and group their sequences into training steps, each of one or several micro-batches.

The sequences of a step are grouped into lists. For a listwise loss, which compares sequences with each other, a list
has all sequences of an example. For a pointwise loss, it has one sequence.
"""

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from osrerank.scoring.inputs import InputBuilder, PaddedBatch, Tokens, pad
from osrerank.training.examples.example import Example

PREFETCHED_STEPS = 4
"""The number of steps that a background thread prepares ahead of the loop."""
WIDTH_MULTIPLE = 16
"""A micro-batch's width is a multiple of this. Few different shapes are faster, because libraries prepare for each."""
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The sequences of one forward pass. A step has one or several micro-batches.

    Attributes:
        inputs: the padded sequences, one list after the other.
        targets: int64 ``(n,)``, 1 if the document is relevant, otherwise 0. In pre-training, they are ``(n, tokens)``,
            the ids of the masked word pieces.
        sizes: the number of sequences in each list.
        weight: the fraction of the step's lists that this micro-batch has. Its loss is multiplied by it.
        teacher_inputs: the teacher's padded sequences, or None if the teacher reads the same sequences as the student.
        scores: the teacher's logits ``(n,)`` that the examples contain, or zeros if they contain none. In
            pre-training, the array is empty.
    """

    inputs: PaddedBatch
    targets: Ids
    sizes: tuple[int, ...]
    weight: float
    teacher_inputs: PaddedBatch | None = None
    scores: Logits = field(default_factory=lambda: np.empty(0, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The micro-batches of one update of the weights.

    Attributes:
        micro_batches: the micro-batches, in the order in which they are computed.
        n_sequences: the number of sequences.
        n_tokens: the number of tokens without padding.
        locations: the files and lines of the examples, for error messages.
    """

    micro_batches: tuple[MicroBatch, ...]
    n_sequences: int
    n_tokens: int
    locations: tuple[str, ...] = ()


class LabelledSequence(NamedTuple):
    """A sequence with its label.

    Attributes:
        tokens: the model's input.
        target: 1 if the document, or the first document of a pair, is relevant, otherwise 0.
        score: a teacher's logit for the sequence, or 0 without a teacher.
    """

    tokens: Tokens
    target: int
    score: float = 0.0


class SequenceBuilder(Protocol):
    """Turns an example into labelled sequences."""

    @property
    def input_builder(self) -> InputBuilder:
        """Tokenises texts and joins them into sequences."""

    def count(self, example: Example) -> int:
        """Return the number of sequences, without tokenising the texts."""

    def build_sequences(self, example: Example) -> list[LabelledSequence]:
        """Tokenise an example and return its sequences."""


@dataclass(frozen=True, slots=True)
class MonoSequenceBuilder:
    """Builds a sequence for each document, whose target is 1 if the document is relevant.

    Attributes:
        input_builder: tokenises texts and joins them into sequences.
    """

    input_builder: InputBuilder

    def count(self, example: Example) -> int:
        return len(example.documents)

    def build_sequences(self, example: Example) -> list[LabelledSequence]:
        query = self.input_builder.tokenise_query(example.query)
        documents = self.input_builder.tokenise_documents(example.documents, query)
        scores = example.scores or (0.0,) * len(documents)
        return [
            LabelledSequence(self.input_builder.build_mono(query, text), int(grade > 0), score)
            for text, grade, score in zip(documents, example.relevance, scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _StepLists:
    """A step's lists of sequences before padding. The teacher's are empty if `StepBuilder` has no builder for it."""

    student: list[list[LabelledSequence]] = field(default_factory=list)
    teacher: list[list[Tokens]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepBuilder:
    """Groups a stream of examples into steps.

    Attributes:
        sequence_builder: builds the sequences.
        min_sequences: the minimum number of sequences in a step, except in the last step.
        budget_tokens: the maximum number of tokens in a micro-batch, including padding. A longer list is a micro-batch
            by itself.
        pad_id: the id of the padding token.
        is_listwise: whether an example's sequences stay in one list, as a listwise loss needs.
        teacher_builder: builds the teacher's sequences. None if there is no teacher, or if it reads the student's.
        teacher_pad_id: the id of the teacher's padding token.
    """

    sequence_builder: SequenceBuilder
    min_sequences: int
    budget_tokens: int
    pad_id: int = 0
    is_listwise: bool = False
    teacher_builder: SequenceBuilder | None = None
    teacher_pad_id: int = 0

    def build(self, examples: Iterator[Example], skip: int = 0) -> Iterator[TrainingStep]:
        """Yield steps until the examples end. The first ``skip`` steps are left out, without tokenising them."""
        for step_index, group in enumerate(self._group_examples(examples)):
            if step_index >= skip:
                yield self._build_step(group)

    def _group_examples(self, examples: Iterator[Example]) -> Iterator[list[Example]]:
        """Yield the examples of each step, and skip those without sequences."""
        group: list[Example] = []
        n_sequences = 0
        for example in examples:
            n_added = self.sequence_builder.count(example)
            if not n_added:
                continue
            group.append(example)
            n_sequences += n_added
            if n_sequences >= self.min_sequences:
                yield group
                group = []
                n_sequences = 0
        if group:
            yield group

    def _build_step(self, group: Sequence[Example]) -> TrainingStep:
        """Tokenise the examples of a step, and divide the lists of their sequences into micro-batches."""
        lists = _StepLists()
        n_tokens = 0
        for example in group:
            sequences = self.sequence_builder.build_sequences(example)
            teacher_tokens: list[Tokens] = []
            if self.teacher_builder is not None:
                teacher_tokens = [sequence.tokens for sequence in self.teacher_builder.build_sequences(example)]
            list_size = len(sequences) if self.is_listwise else 1
            for start in range(0, len(sequences), list_size):
                lists.student.append(sequences[start : start + list_size])
                lists.teacher.append(teacher_tokens[start : start + list_size])
            n_tokens += sum(len(sequence.tokens.ids) for sequence in sequences)
        token_lists = [[sequence.tokens for sequence in sequences] for sequences in lists.student]
        plan = plan_batches(token_lists, self.budget_tokens, multiple=WIDTH_MULTIPLE)
        return TrainingStep(
            micro_batches=tuple(self._build_micro_batch(lists, indices) for indices in plan),
            n_sequences=sum(map(len, token_lists)),
            n_tokens=n_tokens,
            locations=tuple(dict.fromkeys(example.location for example in group)),
        )

    def _build_micro_batch(self, lists: _StepLists, indices: Sequence[int]) -> MicroBatch:
        sequences = [sequence for index in indices for sequence in lists.student[index]]
        teacher_inputs = None
        if self.teacher_builder is not None:
            teacher_tokens = [tokens for index in indices for tokens in lists.teacher[index]]
            teacher_inputs = _pad(teacher_tokens, self.teacher_pad_id, self.teacher_builder)
        return MicroBatch(
            inputs=_pad([sequence.tokens for sequence in sequences], self.pad_id, self.sequence_builder),
            targets=np.array([sequence.target for sequence in sequences], dtype=np.int64),
            sizes=tuple(len(lists.student[index]) for index in indices),
            weight=len(indices) / len(lists.student),
            teacher_inputs=teacher_inputs,
            scores=np.array([sequence.score for sequence in sequences], dtype=np.float32),
        )


def _pad(sequences: Sequence[Tokens], pad_id: int, builder: SequenceBuilder) -> PaddedBatch:
    return pad(sequences, pad_id, multiple=WIDTH_MULTIPLE, max_width=builder.input_builder.max_tokens)


def plan_batches(lists: Sequence[Sequence[Tokens]], budget_tokens: int, *, multiple: int = 1) -> Iterator[list[int]]:
    """Group lists of similar length into batches, longest first, and yield the indices of each batch's lists.

    Three lists of one sequence each, of 5, 9 and 8 tokens, become [1, 2] and [0] for a budget of 18 tokens.

    Args:
        lists: lists of sequences. A list is never divided.
        budget_tokens: the maximum number of tokens in a batch, including padding. A longer list is a batch by itself.
        multiple: the width of a batch is a multiple of this.
    """
    max_lengths = [max(len(tokens.ids) for tokens in sequences) for sequences in lists]
    batch: list[int] = []
    n_sequences = 0
    for index in sorted(range(len(lists)), key=lambda index: (-max_lengths[index], index)):
        max_length = max_lengths[batch[0]] if batch else 0  # of the batch: its first list is the longest
        width = math.ceil(max_length / multiple) * multiple
        if batch and width * (n_sequences + len(lists[index])) > budget_tokens:
            yield batch
            batch = []
            n_sequences = 0
        batch.append(index)
        n_sequences += len(lists[index])
    if batch:
        yield batch


def prefetch(items: Iterator[Item]) -> Generator[Item]:
    """Yield items while a thread prepares the next `PREFETCHED_STEPS`. An error in that thread is raised here."""

    def read_next() -> list[Item]:
        """Return a list of the next item, or an empty list at the end."""
        return list(islice(items, 1))

    pool = ThreadPoolExecutor(1, "osrerank-batches")
    try:
        pending = deque(pool.submit(read_next) for _ in range(PREFETCHED_STEPS))
        while next_item := pending.popleft().result():
            pending.append(pool.submit(read_next))
            yield from next_item
    finally:
        pool.shutdown(cancel_futures=True)


def split_by_counts(counts: Sequence[int], values: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the first ``counts[0]`` values, the next ``counts[1]``, and so on: "ab" and "c" for [2, 1] and "abc"."""
    for end, count in zip(accumulate(counts), counts, strict=True):
        yield values[end - count : end]
