"""Masked language modelling: pre-train a model further on the collection that it will rank, or from scratch.

Devlin et al. 2018 (arXiv 1810.04805, section 3.1): 15% of the word pieces are hidden; 80% of these become [MASK], 10% a
random piece, and 10% stay as they are. Nogueira et al. 2019 (arXiv 1910.14424, section 4) pre-train on the target
corpus before fine-tuning: 100,000 steps of 128 full sequences of 512 tokens, with several passages in each.
Next-sentence prediction is left out.
"""

import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from torch.nn import functional

from osrerank.errors import ConfigError, EvaluationError, FormatError
from osrerank.export.export_model import new_directory, refuse_existing
from osrerank.formats.files import bad_line
from osrerank.formats.lines import numbered_lines
from osrerank.scoring.card_file import parameter_files
from osrerank.scoring.inputs import Ids, Tokens, pad
from osrerank.scoring.model_files import TOKENIZER_FILE, digest, tokenizer_file
from osrerank.training.examples.batches import Lot, TrainingStep, plan
from osrerank.training.examples.lists import text_of
from osrerank.training.examples.sampling import shuffled
from osrerank.training.loop import Machine, Training, TrainingPlan
from osrerank.training.objective import Objective, Parts, to_device
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import finish_encoder
from osrerank.training.weights.models import build_network, put_weights, read_checkpoint, write_encoder

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FRAMES = (("[CLS]", "[SEP]", "[MASK]"), ("<s>", "</s>", "<mask>"))
"""The tokens that begin a sequence, end it and hide a piece: BERT's and RoBERTa's."""
MINIMUM = 4
"""The minimum number of pieces in a sequence."""
IGNORED = -100
"""The target of a piece that is not hidden."""
AS_MASK, AS_ANY = 0.8, 0.1


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """The size of a new encoder.

    Attributes:
        layers: how many layers the encoder has.
        hidden: the width of a hidden state.
        heads: how many attention heads each layer has; 0 for one head for each 32 numbers of the hidden size.
        vocabulary: how many pieces, including special tokens, the tokenizer learns from the corpus.
    """

    layers: int = 2
    hidden: int = 128
    heads: int = 0
    vocabulary: int = 8000


class MaskedObjective(Objective):
    """The cross-entropy of the hidden pieces.

    Args:
        network: a masked language model of transformers.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self._encoder: Any = [network.base_model]  # a list, since it is already registered as part of the network
        self._predict: Any = [network.cls if hasattr(network, "cls") else network.lm_head]

    def forward(self, lot: Lot) -> Parts:
        device = next(self.network.parameters()).device
        inputs = to_device(device, lot.inputs)
        targets = torch.from_numpy(lot.targets).to(device)
        hidden = targets != IGNORED
        states = self._encoder[0](**inputs).last_hidden_state  # (n, tokens, hidden)
        logits = self._predict[0](states[hidden]).float()  # (hidden pieces, vocabulary)
        return {"masked": functional.cross_entropy(logits, targets[hidden])}


@dataclass(frozen=True, slots=True)
class MaskedSteps:
    """Turns a corpus into steps of sequences ``[CLS] pieces [SEP]``.

    If the recipe packs, texts follow one another, ``[CLS] pieces [SEP] pieces [SEP]``. Every sequence of a pass except
    the last one is full, and a text that does not fit continues in the next sequence; pieces attend to the other texts
    in their sequence. Without packing, each text becomes one or several sequences of its own.

    Attributes:
        tokenizer: the tokenizer of the model.
        recipe: the recipe; its batch, lengths, share of hidden pieces, packing and seed are used.
        budget_tokens: maximum number of padded tokens in a lot.
        pad_id: the id of the padding token.
    """

    tokenizer: Tokenizer
    recipe: Recipe
    budget_tokens: int
    pad_id: int = 0

    def sequences(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Yield the sequences of a pass; those of fewer than four pieces are left out."""
        first, last, _ = self._frame
        token_ids = (self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        for piece_ids in self._packed(token_ids, last) if self.recipe.pack else self._cut(token_ids):
            if len(piece_ids) >= MINIMUM:
                yield np.array([first, *piece_ids, last], dtype=np.int64)

    @property
    def _frame(self) -> tuple[int, int, int]:
        """Return the ids of the tokens that begin a sequence, end it, and hide a piece.

        Raises:
            ConfigError: the tokenizer has neither BERT's nor RoBERTa's tokens.
        """
        for begins, ends, hides in FRAMES:
            first, last, mask = (self.tokenizer.token_to_id(name) for name in (begins, ends, hides))
            if first is not None and last is not None and mask is not None:
                return first, last, mask
        names = " nor ".join(", ".join(frame) for frame in FRAMES)
        raise ConfigError(f"the model's tokenizer has neither {names}; start from another model", setting="init_from")

    def _cut(self, texts: Iterable[list[int]]) -> Iterator[list[int]]:
        """Yield the pieces of each text, at most as many at a time as a sequence has room for."""
        room = self.recipe.max_tokens - 2
        return (token_ids[start : start + room] for token_ids in texts for start in range(0, len(token_ids), room))

    def _packed(self, texts: Iterable[list[int]], separator: int) -> Iterator[list[int]]:
        """Yield the pieces of all texts one after the other, as many at a time as a sequence has room for.

        A separator at the beginning or end of a sequence is left out, since each sequence gets its own.
        """
        room = self.recipe.max_tokens - 2
        waiting: list[int] = []
        for token_ids in texts:
            if waiting and token_ids:
                waiting.append(separator)
            waiting += token_ids
            while len(waiting) >= room:
                yield waiting[: room - (waiting[room - 1] == separator)]
                waiting = waiting[room + (waiting[room : room + 1] == [separator]) :]
        yield waiting

    def make(self, texts: Callable[[], Iterable[str]], skip: int) -> Iterator[TrainingStep]:
        """Yield steps without end, without the first ``skip``."""
        for number, sequences in enumerate(self._batches(texts)):
            if number >= skip:
                yield self._step(sequences, np.random.default_rng([self.recipe.seed, number]))

    def _batches(self, texts: Callable[[], Iterable[str]]) -> Iterator[list[Ids]]:
        batch: list[Ids] = []
        turn = 0
        while True:
            rng = random.Random(f"{self.recipe.seed}/{turn}")  # noqa: S311 - a repeatable order
            for ids in self.sequences(shuffled(texts(), self.recipe.shuffle, rng)):
                batch.append(ids)
                if len(batch) == self.recipe.batch:
                    yield batch
                    batch = []
            turn += 1

    def _step(self, sequences: Sequence[Ids], rng: np.random.Generator) -> TrainingStep:
        hidden = [self.masked(ids, rng) for ids in sequences]
        count = sum(int((targets != IGNORED).sum()) for _, targets in hidden)
        rows = [[Tokens(ids, np.zeros_like(ids))] for ids, _ in hidden]
        lots = []
        for indices in plan(rows, self.budget_tokens):
            inputs = pad([rows[index][0] for index in indices], self.pad_id)
            targets = np.full_like(inputs.input_ids, IGNORED)
            for row, index in enumerate(indices):
                targets[row, : len(hidden[index][1])] = hidden[index][1]
            share = int((targets != IGNORED).sum()) / count
            lots.append(Lot(inputs, targets, (1,) * len(indices), share))
        return TrainingStep(tuple(lots), len(sequences), sum(len(ids) for ids in sequences))

    def masked(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Hide at least one piece of a sequence; return it and the targets: the hidden pieces, `IGNORED` elsewhere."""
        first, last, mask = self._frame
        inside = np.flatnonzero(~np.isin(ids, (first, last)))
        count = max(1, round(self.recipe.mask * len(inside)))
        chosen = np.sort(rng.choice(inside, count, replace=False))
        targets = np.full_like(ids, IGNORED)
        targets[chosen] = ids[chosen]
        fate = rng.random(count)
        changed = ids.copy()
        changed[chosen[fate < AS_MASK]] = mask
        anything = chosen[(fate >= AS_MASK) & (fate < AS_MASK + AS_ANY)]
        changed[anything] = rng.integers(len(SPECIALS), self.tokenizer.get_vocab_size(), len(anything))
        return changed, targets


def pretrain(
    source: Path,
    output: Path,
    corpora: Sequence[Path],
    recipe: Recipe,
    *,
    max_minutes: float | None = None,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Path | None:
    """Train a checkpoint on texts and return the directory; None if time ran out, and the same call then resumes.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors.
        output: the directory to make.
        corpora: files of JSON lines with ``text`` and perhaps ``title``, or of plain text with a document in each line.
        recipe: the recipe of the training.
        max_minutes: the minutes after which the training stops; None for no limit.
        report: called with each line of progress.
        clock: returns the time in seconds, by which ``max_minutes`` is measured.

    Raises:
        ConfigError: the output exists.
        FormatError: a corpus is malformed or empty.
        EvaluationError: the corpora have fewer sequences than a step needs.
        ModelLoadError: the source cannot be read.
    """
    refuse_existing(output)
    machine = Machine(recipe.precision)
    report = machine.on_main_process(report)
    network, steps = _start(source, recipe, machine)
    count = sum(1 for _ in steps.sequences(read_texts(corpora)))
    if count < recipe.batch:
        raise EvaluationError(f"the corpora have {count} sequences; a step needs {recipe.batch}: lower the batch")
    total = recipe.steps or math.ceil(recipe.epochs * count / recipe.batch)
    report(f"{count} sequences a pass, {total} steps")
    folder = output.with_name(f"{output.name}.training")
    fingerprint = _fingerprint(source, corpora, recipe)
    settled = TrainingPlan(recipe, total, folder, fingerprint, max_minutes=max_minutes, report=report, clock=clock)
    training = Training(MaskedObjective(network), settled, machine)
    if not training.run(steps.make(lambda: read_texts(corpora), training.state.step), total, None):
        return None
    if machine.is_first:
        with new_directory(output) as directory:
            write_encoder(directory, network, source)
            finish_encoder(directory, folder, _provenance(source, corpora, recipe, total))
        shutil.rmtree(folder)
    machine.wait()
    return output


def _start(source: Path, recipe: Recipe, machine: Machine) -> tuple[Any, MaskedSteps]:
    """Return the network to train, and the maker of its steps."""
    torch.manual_seed(recipe.seed)
    config, weights = read_checkpoint(source)
    rates = {"hidden_dropout_prob": recipe.dropout, "attention_probs_dropout_prob": recipe.dropout}
    network = build_network("AutoModelForMaskedLM", {**config, **rates})
    put_weights(network, weights, source)
    tokenizer = Tokenizer.from_file(str(tokenizer_file(source)))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
    budget_tokens = recipe.budget_tokens or machine.budget_tokens
    recipe = replace(recipe, max_tokens=min(recipe.max_tokens, int(config.get("max_position_embeddings", 512))))
    return network, MaskedSteps(tokenizer, recipe, budget_tokens, int(config.get("pad_token_id") or 0))


def _fingerprint(source: Path, corpora: Sequence[Path], recipe: Recipe) -> str:
    """Return the recipe, the source's hash and the corpora's sizes, which determine the outcome, as text."""
    files = [(str(path), path.stat().st_size) for path in corpora]
    changing = {name: value for name, value in recipe.as_json().items() if name != "budget_tokens"}
    return json.dumps([changing, digest(source, parameter_files(source)), files], sort_keys=True)


def new_encoder(corpora: Sequence[Path], output: Path, shape: EncoderSize, seed: int = 1) -> Path:
    """Write an untrained BERT with a vocabulary learnt from the corpora, for `pretrain` to start from.

    Raises:
        ConfigError: the output exists.
        FormatError: a corpus is malformed or empty.
    """
    with new_directory(output) as directory:
        tokenizer = learnt_tokenizer(read_texts(corpora), shape.vocabulary)
        tokenizer.save(str(directory / TOKENIZER_FILE))
        torch.manual_seed(seed)
        config = {
            "model_type": "bert",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads or max(1, shape.hidden // 32),
            "intermediate_size": 4 * shape.hidden,
        }
        write_encoder(directory, build_network("AutoModelForMaskedLM", config), directory)
    return output


def learnt_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Return a lower-casing WordPiece tokenizer with BERT's specials, learnt from texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106 - a piece
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=list(SPECIALS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    first, last = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", first), ("[SEP]", last)],
    )
    return tokenizer


def read_texts(corpora: Sequence[Path]) -> Iterator[str]:
    """Yield the texts of the documents in all corpora.

    Raises:
        FormatError: a line is malformed, or a corpus has no text.
    """
    for path in corpora:
        empty = True
        for number, line in numbered_lines(path):
            if line.strip():
                empty = False
                yield _line_text(path, number, line) if line.startswith("{") else line
        if empty:
            raise FormatError(f"{path} has no text", file=str(path))


def _line_text(path: Path, number: int, line: str) -> str:
    try:
        return text_of(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise bad_line(path, number, f"expected JSON with a text: {error!r}") from None


def _provenance(source: Path, corpora: Sequence[Path], recipe: Recipe, total: int) -> Mapping[str, Any]:
    return {
        "base_model": source.name,
        "our_training": recipe.as_json(),
        "data": [{"source": path.name} for path in corpora],
        "steps": total,
        "seed": recipe.seed,
    }
