"""Make the steps of a training: turn examples into the sequences that scoring reads, in batches of similar length."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from osrerank.scoring.inputs import InputBuilder, PaddedBatch, Tokens, pad
from osrerank.training.examples.lists import Example

AHEAD = 4
"""How many steps are prepared ahead."""
WIDTHS = 16
"""Batch widths are multiples of this, because libraries prepare a matrix product for each new shape."""
Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Lot:
    """A batch of sequences that goes through the model at once; a step has one or several.

    Attributes:
        inputs: the padded sequences, one list after the other.
        targets: int64 ``(n,)``, 1 for relevant; in pre-training ``(n, tokens)``, the hidden pieces.
        sizes: the number of sequences in each list; with a pointwise loss, each sequence is a list of its own.
        share: the share of the step's lists that is in this lot; the shares of a step's lots add up to 1.
        teacher: the sequences as the teacher reads them; None if it reads them as the student does.
        scores: the logits ``(n,)`` that the examples have from a teacher, 0 without one; empty in pre-training.
    """

    inputs: PaddedBatch
    targets: Ids
    sizes: tuple[int, ...]
    share: float
    teacher: PaddedBatch | None = None
    scores: Logits = field(default_factory=lambda: np.empty(0, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The batches whose gradients change the weights once.

    Attributes:
        lots: the lots, in the order in which they are computed.
        sequences: the number of sequences.
        tokens: the number of tokens without padding.
        locations: files and lines of the examples, for errors.
    """

    lots: tuple[Lot, ...]
    sequences: int
    tokens: int
    locations: tuple[str, ...] = ()


class Made(NamedTuple):
    """A sequence to learn from.

    Attributes:
        tokens: the token ids that the model reads.
        target: 1 if the document, or the first of two, is relevant.
        score: a teacher's logit for the same sequence; 0 without one.
    """

    tokens: Tokens
    target: int
    score: float = 0.0


class Assembly(Protocol):
    """Turns an example into sequences."""

    @property
    def builder(self) -> InputBuilder:
        """Turns texts into sequences."""

    def count(self, example: Example) -> int:
        """Return the number of sequences of the example."""

    def sequences(self, example: Example) -> list[Made]:
        """Return the example's sequences with their targets."""


@dataclass(frozen=True, slots=True)
class MonoAssembly:
    """Turns an example into a sequence for each document, whose target is 1 if the document is relevant.

    Attributes:
        builder: turns texts into sequences.
    """

    builder: InputBuilder

    def count(self, example: Example) -> int:
        return len(example.documents)

    def sequences(self, example: Example) -> list[Made]:
        query = self.builder.query(example.query)
        documents = self.builder.documents(example.documents, query)
        scores = example.scores or (0.0,) * len(documents)
        return [
            Made(self.builder.mono(query, text), int(grade > 0), score)
            for text, grade, score in zip(documents, example.relevance, scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Lists:
    """A step's lists before padding, and the same lists as the teacher reads them."""

    student: list[list[Made]] = field(default_factory=list)
    teacher: list[list[Tokens]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Steps:
    """Turns a stream of examples into steps.

    Attributes:
        assembly: makes the sequences.
        batch: the number of sequences in a step; its last example may add a few more.
        budget_tokens: maximum number of padded tokens in a lot; a longer list is a lot by itself.
        pad_id: the id of the padding token.
        lists: whether an example's sequences stay together, as a listwise loss needs.
        teacher: makes the teacher's sequences; None if they are the student's.
        teacher_pad_id: the id of the teacher's padding token.
    """

    assembly: Assembly
    batch: int
    budget_tokens: int
    pad_id: int = 0
    lists: bool = False
    teacher: Assembly | None = None
    teacher_pad_id: int = 0

    def make(self, examples: Iterator[Example], skip: int = 0) -> Iterator[TrainingStep]:
        """Yield steps until the examples end; the last step may be smaller.

        Args:
            examples: the examples, in order.
            skip: how many steps to skip, without preparing them.
        """
        for number, group in enumerate(self._groups(examples)):
            if number >= skip:
                yield self._step(group)

    def _groups(self, examples: Iterator[Example]) -> Iterator[list[Example]]:
        group: list[Example] = []
        sequences = 0
        for example in examples:
            count = self.assembly.count(example)
            if not count:
                continue
            group.append(example)
            sequences += count
            if sequences >= self.batch:
                yield group
                group, sequences = [], 0
        if group:
            yield group

    def _step(self, group: Sequence[Example]) -> TrainingStep:
        lists = _Lists()
        for example in group:
            sequences = self.assembly.sequences(example)
            teacher_tokens = [sequence.tokens for sequence in self.teacher.sequences(example)] if self.teacher else []
            width = len(sequences) if self.lists else 1
            for start in range(0, len(sequences), width):
                lists.student.append(sequences[start : start + width])
                lists.teacher.append(teacher_tokens[start : start + width])
        tokens = [[sequence.tokens for sequence in sequences] for sequences in lists.student]
        lots = tuple(self._lot(lists, indices) for indices in plan(tokens, self.budget_tokens, multiple=WIDTHS))
        lengths = [len(sequence.ids) for token_lists in tokens for sequence in token_lists]
        return TrainingStep(
            lots, len(lengths), sum(lengths), tuple(dict.fromkeys(example.location for example in group))
        )

    def _lot(self, lists: _Lists, indices: Sequence[int]) -> Lot:
        sequences = [sequence for index in indices for sequence in lists.student[index]]
        teacher_tokens = [tokens for index in indices for tokens in lists.teacher[index]]
        return Lot(
            _padded([sequence.tokens for sequence in sequences], self.pad_id, self.assembly),
            np.array([sequence.target for sequence in sequences], dtype=np.int64),
            tuple(len(lists.student[index]) for index in indices),
            len(indices) / len(lists.student),
            _padded(teacher_tokens, self.teacher_pad_id, self.teacher) if teacher_tokens and self.teacher else None,
            np.array([sequence.score for sequence in sequences], dtype=np.float32),
        )


def _padded(sequences: Sequence[Tokens], pad_id: int, assembly: Assembly) -> PaddedBatch:
    return pad(sequences, pad_id, multiple=WIDTHS, max_width=assembly.builder.max_tokens)


def plan(lists: Sequence[Sequence[Tokens]], budget_tokens: int, *, multiple: int = 1) -> Iterator[list[int]]:
    """Yield the indices of the lists in each batch, longest first; a batch is within the budget, or is one list.

    Args:
        lists: lists of sequences; a list is never divided.
        budget_tokens: maximum number of padded tokens in a batch.
        multiple: a batch's width is a multiple of this.
    """
    longest = [max(len(tokens.ids) for tokens in sequences) for sequences in lists]
    chosen: list[int] = []
    rows = 0
    for index in sorted(range(len(lists)), key=lambda index: (-longest[index], index)):
        width = -(-longest[chosen[0]] // multiple) * multiple if chosen else 0
        if chosen and width * (rows + len(lists[index])) > budget_tokens:
            yield chosen
            chosen, rows = [], 0
        chosen.append(index)
        rows += len(lists[index])
    if chosen:
        yield chosen


def prefetched(items: Iterator[Item], ahead: int = AHEAD) -> Generator[Item]:
    """Yield the items in order while a thread prepares the next ``ahead`` ones; the thread's errors are raised here."""
    waiting: queue.Queue[tuple[str, Any]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(kind: str, content: Any) -> bool:
        while not stopped.is_set():
            try:
                waiting.put((kind, content), timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # noqa: BLE001 - raised again where the items are used
            put("error", error)

    thread = threading.Thread(target=work, name="osrerank-batches", daemon=True)
    thread.start()
    try:
        yield from _received(waiting.get)
    finally:
        stopped.set()
        thread.join()


def _received(get: Callable[[], tuple[str, Any]]) -> Iterator[Any]:
    while True:
        kind, content = get()
        if kind == "error":
            raise content
        if kind == "end":
            return
        yield content


def runs(counts: Sequence[int], values: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield consecutive runs of the values, whose lengths are ``counts``."""
    for end, count in zip(accumulate(counts), counts, strict=True):
        yield list(islice(values, end - count, end))
