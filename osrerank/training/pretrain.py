"""Pre-train an encoder by masked language modelling: train a new one, or continue on the corpus that it will rank.

The tokenizer splits a text into word pieces, called pieces here. Devlin et al. 2018 (arXiv 1810.04805, section 3.1)
mask 15% of the pieces, which the model learns to predict: 80% of them are replaced by [MASK], 10% by a random piece,
and 10% stay unchanged. Nogueira et al. 2019 (arXiv 1910.14424, section 4) pre-train on the target corpus before
fine-tuning: 100,000 steps of 128 full sequences of 512 tokens, with several passages in each. osrerank leaves out
next-sentence prediction.
"""

import itertools
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from torch.nn import functional

from osrerank._bad_value import describe_bad_value
from osrerank.errors import ConfigError, EvaluationError, FormatError
from osrerank.export.export_model import new_directory, refuse_existing
from osrerank.formats.files import line_error
from osrerank.formats.lines import read_numbered_lines
from osrerank.scoring.card_file import list_parameter_files
from osrerank.scoring.inputs import Ids, Tokens, pad
from osrerank.scoring.model_files import TOKENIZER_FILE, hash_files, tokenizer_file
from osrerank.training.examples.batches import MicroBatch, TrainingStep, plan_batches
from osrerank.training.examples.example import join_title
from osrerank.training.examples.sampling import shuffle
from osrerank.training.loop import Machine, Training, TrainingPlan
from osrerank.training.objective import LossParts, Objective, move_to_device
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import write_encoder_description
from osrerank.training.weights.models import build_network, load_weights, read_checkpoint, write_encoder

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
START_END_MASK = (("[CLS]", "[SEP]", "[MASK]"), ("<s>", "</s>", "<mask>"))
"""The tokens that begin a sequence, end it and mask a piece: those of BERT, then those of RoBERTa."""
MIN_PIECES = 4
"""The minimum number of pieces in a sequence. Shorter sequences are left out."""
IGNORE_INDEX = -100
"""The target of a piece that is not masked. torch's cross-entropy ignores it."""
MASK_FRACTION = 0.8
"""The fraction of the masked pieces that are replaced by [MASK]."""
RANDOM_FRACTION = 0.1
"""The fraction of the masked pieces that are replaced by a random piece."""


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """The size of a new encoder.

    Attributes:
        layers: the number of layers.
        hidden: the width of a hidden state.
        heads: the number of attention heads in a layer. If 0, it is chosen so that each head has 32 dimensions.
        vocabulary: the number of pieces, including special tokens, that the tokenizer learns from the corpus.
    """

    layers: int = 2
    hidden: int = 128
    heads: int = 0
    vocabulary: int = 8000


class MaskedObjective(Objective):
    """The cross-entropy of a masked language model on the masked pieces."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        # torch does not look into lists for modules, so the parts of the network are not registered a second time.
        self._encoder: Any = [network.base_model]
        self._head: Any = [network.cls if hasattr(network, "cls") else network.lm_head]

    def forward(self, micro_batch: MicroBatch) -> LossParts:
        device = next(self.network.parameters()).device
        inputs = move_to_device(device, micro_batch.inputs)
        targets = torch.from_numpy(micro_batch.targets).to(device)
        is_masked = targets != IGNORE_INDEX
        states = self._encoder[0](**inputs).last_hidden_state  # (n, tokens, width)
        logits = self._head[0](states[is_masked]).float()  # (masked pieces, vocabulary)
        return {"masked": functional.cross_entropy(logits, targets[is_masked])}


@dataclass(frozen=True, slots=True)
class MaskedStepBuilder:
    """Turns a corpus into training steps of sequences ``[CLS] pieces [SEP]``.

    Each text becomes one or several sequences. If the recipe sets ``pack``, a sequence holds several texts, ``[CLS]
    pieces [SEP] pieces [SEP]``, and a text that does not fit continues in the next one. Every sequence of a pass except
    the last one is then full, and pieces attend to all texts in their sequence.

    Attributes:
        tokenizer: the tokenizer of the model.
        recipe: the recipe. Its ``batch``, ``max_tokens``, ``mask``, ``pack``, ``shuffle`` and ``seed`` are used.
        budget_tokens: the maximum number of tokens in a micro-batch, including padding.
        pad_id: the id of the padding token.
    """

    tokenizer: Tokenizer
    recipe: Recipe
    budget_tokens: int
    pad_id: int = 0

    def build_sequences(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Yield the sequences of a pass, except those with fewer than `MIN_PIECES` pieces."""
        start_id, end_id, _ = self._special_ids
        pieces_of_texts = (self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        if self.recipe.pack:
            sequences = self._pack_texts(pieces_of_texts, end_id)
        else:
            sequences = self._split_texts(pieces_of_texts)
        for piece_ids in sequences:
            if len(piece_ids) >= MIN_PIECES:
                yield np.array([start_id, *piece_ids, end_id], dtype=np.int64)

    @property
    def _special_ids(self) -> tuple[int, int, int]:
        """The ids of the tokens that begin a sequence, end it and mask a piece."""
        for tokens in START_END_MASK:
            start_id, end_id, mask_id = (self.tokenizer.token_to_id(token) for token in tokens)
            if start_id is not None and end_id is not None and mask_id is not None:
                return start_id, end_id, mask_id
        names = " nor ".join(", ".join(tokens) for tokens in START_END_MASK)
        raise ConfigError(f"the model's tokenizer has neither {names}; start from another model", setting="init_from")

    @property
    def _max_pieces(self) -> int:
        return self.recipe.max_tokens - 2  # without [CLS] and [SEP]

    def _split_texts(self, pieces_of_texts: Iterable[list[int]]) -> Iterator[list[int]]:
        """Yield the pieces of each text in parts that fit into a sequence."""
        size = self._max_pieces
        for piece_ids in pieces_of_texts:
            for start in range(0, len(piece_ids), size):
                yield piece_ids[start : start + size]

    def _pack_texts(self, pieces_of_texts: Iterable[list[int]], separator: int) -> Iterator[list[int]]:
        """Join the pieces of all texts by separators, and yield them in parts that fill a sequence.

        If a sequence takes 4 pieces, the texts [1, 2] and [3, 4, 5] become [1, 2, separator, 3] and [4, 5]. A separator
        at the beginning or end of a part is left out, because [CLS] and [SEP] are added to each part.
        """
        buffer: list[int] = []
        for piece_ids in pieces_of_texts:
            if buffer and piece_ids:
                buffer.append(separator)
            buffer += piece_ids
            while len(buffer) >= self._max_pieces:
                part = buffer[: self._max_pieces]
                buffer = buffer[self._max_pieces :]
                if part[-1] == separator:
                    part.pop()
                if buffer[:1] == [separator]:
                    buffer.pop(0)
                yield part
        yield buffer

    def build(self, texts: Callable[[], Iterable[str]], skip: int) -> Iterator[TrainingStep]:
        """Yield steps without end. The first ``skip`` steps are left out, because a resumed training did them."""
        for step_index, sequences in enumerate(self._group_sequences(texts)):
            if step_index >= skip:
                yield self._build_step(sequences, np.random.default_rng([self.recipe.seed, step_index]))

    def _group_sequences(self, texts: Callable[[], Iterable[str]]) -> Iterator[list[Ids]]:
        """Yield the sequences of each step. A step can span two passes."""
        batch: list[Ids] = []
        for pass_index in itertools.count():
            rng = random.Random(f"{self.recipe.seed}/{pass_index}")  # noqa: S311 - a repeatable order
            for ids in self.build_sequences(shuffle(texts(), self.recipe.shuffle, rng)):
                batch.append(ids)
                if len(batch) == self.recipe.batch:
                    yield batch
                    batch = []

    def _build_step(self, sequences: Sequence[Ids], rng: np.random.Generator) -> TrainingStep:
        """Mask the sequences of a step, and divide them into micro-batches."""
        masked_sequences = [self.mask_pieces(ids, rng) for ids in sequences]
        n_masked = sum(_count_masked(targets) for _, targets in masked_sequences)
        lists = [[Tokens(ids, np.zeros_like(ids))] for ids, _ in masked_sequences]  # of one sequence each
        micro_batches = []
        for indices in plan_batches(lists, self.budget_tokens):
            inputs = pad([lists[index][0] for index in indices], self.pad_id)
            batch_targets = np.full_like(inputs.input_ids, IGNORE_INDEX)
            for row, index in enumerate(indices):
                _, targets = masked_sequences[index]
                batch_targets[row, : len(targets)] = targets
            weight = _count_masked(batch_targets) / n_masked  # all masked pieces of a step count the same
            micro_batches.append(MicroBatch(inputs, batch_targets, sizes=(1,) * len(indices), weight=weight))
        return TrainingStep(tuple(micro_batches), len(sequences), sum(len(ids) for ids in sequences))

    def mask_pieces(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Mask at least one piece of a sequence, and return the changed sequence and the targets.

        The targets are the original ids of the masked pieces, and `IGNORE_INDEX` elsewhere.
        """
        start_id, end_id, mask_id = self._special_ids
        piece_positions = np.flatnonzero(~np.isin(ids, (start_id, end_id)))
        n_masked = max(1, round(self.recipe.mask * len(piece_positions)))
        masked_positions = np.sort(rng.choice(piece_positions, n_masked, replace=False))
        targets = np.full_like(ids, IGNORE_INDEX)
        targets[masked_positions] = ids[masked_positions]
        draws = rng.random(n_masked)  # a number from 0 to 1 for each masked piece decides what replaces it
        masked_ids = ids.copy()
        masked_ids[masked_positions[draws < MASK_FRACTION]] = mask_id
        is_random = (draws >= MASK_FRACTION) & (draws < MASK_FRACTION + RANDOM_FRACTION)
        random_positions = masked_positions[is_random]
        first_id = len(SPECIAL_TOKENS)  # in a vocabulary of `train_tokenizer`, lower ids are special tokens
        masked_ids[random_positions] = rng.integers(first_id, self.tokenizer.get_vocab_size(), len(random_positions))
        return masked_ids, targets


def _count_masked(targets: Ids) -> int:
    return int((targets != IGNORE_INDEX).sum())


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
    """Train an encoder on texts and return its directory, or None if time ran out. The same call then resumes.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors.
        output: the directory to create.
        corpora: files of JSON lines with ``text`` and optionally ``title``, or of plain text with a document per line.
        recipe: the hyperparameters.
        max_minutes: the minutes after which training stops. If None, there is no limit.
        report: called with each line of progress.
        clock: returns the time in seconds.

    Raises:
        ConfigError: the output exists.
        FormatError: a corpus is malformed or empty.
        EvaluationError: the corpora have fewer sequences than a step needs.
        ModelLoadError: the source cannot be read.
    """
    refuse_existing(output)
    machine = Machine(recipe.precision)
    report = machine.on_main_process(report)
    network, steps = _load_network_and_step_builder(source, recipe, machine)
    n_sequences = sum(1 for _ in steps.build_sequences(read_texts(corpora)))
    if n_sequences < recipe.batch:
        raise EvaluationError(
            f"the corpora contain {n_sequences} sequences, but a step needs {recipe.batch}; set a lower batch"
        )
    total_steps = recipe.steps or math.ceil(recipe.epochs * n_sequences / recipe.batch)
    report(f"{n_sequences} sequences a pass, {total_steps} steps")
    folder = output.with_name(f"{output.name}.training")
    fingerprint = _compute_fingerprint(source, corpora, recipe)
    plan = TrainingPlan(recipe, total_steps, folder, fingerprint, max_minutes=max_minutes, report=report, clock=clock)
    training = Training(MaskedObjective(network), plan, machine)
    remaining_steps = steps.build(lambda: read_texts(corpora), skip=training.state.step)
    if not training.run(remaining_steps, total_steps, measure=None):
        return None
    if machine.is_main_process:
        with new_directory(output) as directory:
            write_encoder(directory, network, source)
            write_encoder_description(directory, folder, _build_provenance(source, corpora, recipe, total_steps))
        shutil.rmtree(folder)
    machine.wait()
    return output


def _load_network_and_step_builder(source: Path, recipe: Recipe, machine: Machine) -> tuple[Any, MaskedStepBuilder]:
    """Return the source's network as a masked language model, and the builder of its training steps."""
    torch.manual_seed(recipe.seed)
    config, weights = read_checkpoint(source)
    rates = {"hidden_dropout_prob": recipe.dropout, "attention_probs_dropout_prob": recipe.dropout}
    network = build_network("AutoModelForMaskedLM", {**config, **rates})
    load_weights(network, weights, source)
    tokenizer = Tokenizer.from_file(str(tokenizer_file(source)))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
    budget_tokens = recipe.budget_tokens or machine.budget_tokens
    recipe = replace(recipe, max_tokens=min(recipe.max_tokens, int(config.get("max_position_embeddings", 512))))
    return network, MaskedStepBuilder(tokenizer, recipe, budget_tokens, int(config.get("pad_token_id") or 0))


def _compute_fingerprint(source: Path, corpora: Sequence[Path], recipe: Recipe) -> str:
    """Return the recipe, the source's hash and the corpora's sizes as JSON. They determine the trained weights."""
    files = [(str(path), path.stat().st_size) for path in corpora]
    # budget_tokens only divides a step into micro-batches
    settings = {name: value for name, value in asdict(recipe).items() if name != "budget_tokens"}
    return json.dumps([settings, hash_files(source, list_parameter_files(source)), files], sort_keys=True)


def create_encoder(corpora: Sequence[Path], output: Path, size: EncoderSize) -> Path:
    """Write an untrained BERT with a vocabulary learnt from the corpora, for `pretrain` to start from.

    Raises:
        ConfigError: the output exists.
        FormatError: a corpus is malformed or empty.
    """
    with new_directory(output) as directory:
        tokenizer = train_tokenizer(read_texts(corpora), size.vocabulary)
        tokenizer.save(str(directory / TOKENIZER_FILE))
        torch.manual_seed(1)
        config = {
            "model_type": "bert",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads or max(1, size.hidden // 32),
            "intermediate_size": 4 * size.hidden,
        }
        write_encoder(directory, build_network("AutoModelForMaskedLM", config), directory)
    return output


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn a lower-casing WordPiece tokenizer with BERT's special tokens from texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106 - a piece
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def read_texts(corpora: Sequence[Path]) -> Iterator[str]:
    """Yield the documents' texts of all corpora.

    Raises:
        FormatError: a line is malformed, or a corpus has no text.
    """
    for path in corpora:
        has_text = False
        for number, line in read_numbered_lines(path):
            if line.strip():
                has_text = True
                yield _parse_json_line(path, number, line) if line.startswith("{") else line
        if not has_text:
            raise FormatError(f"{path} has no text", file=str(path))


def _parse_json_line(path: Path, number: int, line: str) -> str:
    try:
        return join_title(json.loads(line)).full_text
    except (ValueError, KeyError, TypeError) as error:
        raise line_error(path, number, f"{describe_bad_value(error)}; expected JSON with a text") from None


def _build_provenance(source: Path, corpora: Sequence[Path], recipe: Recipe, total_steps: int) -> Mapping[str, Any]:
    return {
        "base_model": source.name,
        "our_training": asdict(recipe),
        "data": [{"source": path.name} for path in corpora],
        "steps": total_steps,
        "seed": recipe.seed,
    }
