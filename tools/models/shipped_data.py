"""What the shipped models learn from: openly licensed collections as examples, some queries kept aside."""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.scoring.inputs import Tokens, padded
from osrerank.scoring.networks.cross_bias import mean
from osrerank.training.examples.batches import plan
from osrerank.training.examples.first_pass import from_index, from_questions, temporary_search
from osrerank.training.examples.lists import Example, read_examples, text_of, write_examples
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import load_trainee
from osrerank.types import Qrels, Query

KEPT_ASIDE = {"squad": 200, "scifact": 100}
CHOOSING, CALIBRATING = 40, 100
LEARNT = {"squad": 7000, "nq": 2500, "scifact": 709, "medquad": 3850, "pubmedqa": 700}
"""Examples of a set that are learnt from."""
LABELS = {"squad": 3000, "nq": 1500, "medquad": 600}
"""Those of them whose labels are learnt from, in files of their own; mono-small has all."""
MARGINS = {"squad": 9.0, "scifact": 9.0, "nq": 0.97, "pubmedqa": 0.95}
"""Others that the bi-encoder finds this much as like the query as a relevant document, or more, are left out: they may
be relevant too. A set that is not here keeps BM25's order."""


def documents_of(folder: Path) -> dict[str, str]:
    """Return the documents of a ``corpus.jsonl`` by id, title before text."""
    return {line["id"]: text_of(line) for _, line in numbered_objects(folder / "corpus.jsonl")}


def paragraphs(data: Path) -> dict[str, str]:
    """Return SQuAD's train paragraphs: other documents for a collection that has relevant ones only."""
    articles = json.loads((data / "squad" / "train-v1.1.json").read_bytes())["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    return {f"squad-{number}": text for number, text in enumerate(contexts)}


def found(documents: dict[str, str], queries: Iterable[Query], qrels: Qrels) -> Iterator[Example]:
    """Yield BM25's first thirty for each query."""
    with temporary_search(documents.items(), 30) as search:
        yield from from_index(search, queries, qrels)


def nq(data: Path) -> Iterator[Example]:
    """Yield Natural Questions, with SQuAD's paragraphs among the documents."""
    folder = data / "nq-open-oracle"
    documents = {**documents_of(folder), **paragraphs(data)}
    yield from found(documents, read_queries(folder / "queries.tsv"), read_qrels(folder / "qrels.txt"))


def collection(folder: Path, split: Path) -> Iterator[Example]:
    """Yield a collection in corpus.jsonl, queries.tsv, qrels.txt."""
    yield from found(documents_of(folder), read_queries(split / "queries.tsv"), read_qrels(split / "qrels.txt"))


def medquad(data: Path, questions: int) -> Iterator[Example]:
    """Yield so many of MedQuAD's questions, each with its answer; an equal question's answers are relevant too."""
    lines = [line for _, line in numbered_objects(data / "medquad" / "medquad.jsonl")]
    answers: dict[str, dict[str, int]] = {}
    for line in lines:
        answers.setdefault(line["question"], {})[line["id"]] = 1
    asked = random.Random(1).sample(sorted(answers), min(questions, len(answers)))
    queries = [Query(str(number), question) for number, question in enumerate(asked)]
    qrels = Qrels({query.query_id: answers[query.text] for query in queries})
    yield from found({line["id"]: line["answer"] for line in lines}, queries, qrels)


def prepare(data: Path, start: Path, work: Path, questions: int) -> None:
    """Write the sets' examples, some of them aside, each file once."""
    makers: dict[str, Callable[[], Iterable[Example]]] = {
        "squad": lambda: from_questions(data / "squad" / "train-v1.1.json", depth=30, questions=questions),
        "nq": lambda: nq(data),
        "scifact": lambda: collection(data / "scifact", data / "scifact" / "train"),
        "medquad": lambda: medquad(data, min(4000, questions)),
        "pubmedqa": lambda: collection(data / "pubmedqa-l", data / "pubmedqa-l"),
    }
    aside: list[Example] = []
    for name, make in makers.items():
        whole, file = work / f"{name}.all.jsonl", work / f"{name}.jsonl"
        if not whole.exists():
            write_examples(whole, itertools.islice(make(), questions))
        examples = list(read_examples(whole))
        random.Random(1).shuffle(examples)
        kept = min(KEPT_ASIDE.get(name, 0), len(examples) // 3)
        aside += examples[:kept]
        if not file.exists():
            some = examples[kept:][: LEARNT[name]]
            learnt = closest_first(some, start, MARGINS[name]) if name in MARGINS else iter(some)
            print(f"{name}: {write_examples(file, learnt)} examples, {kept} kept aside", flush=True)
    for name, count in LABELS.items():
        labels = itertools.islice(read_examples(work / f"{name}.jsonl"), count)
        write_examples(work / f"{name}-labels.jsonl", labels)
    random.Random(3).shuffle(aside)
    write_examples(work / "dev.jsonl", aside)
    write_examples(work / "choosing.jsonl", aside[:CHOOSING])
    calibration_files(aside[:CALIBRATING], work)


def closest_first(examples: Sequence[Example], start: Path, margin: float) -> Iterator[Example]:
    """Yield the examples with the others that the bi-encoder finds most like the query first.

    Args:
        examples: the documents in any order.
        start: the bi-encoder's directory.
        margin: others whose cosine is this share of the best relevant document's, or more, are left out.
    """
    encoder = Encoder(start)
    texts = sorted({text for example in examples for text in example.documents})
    place = {text: number for number, text in enumerate(texts)}
    found, asked = encoder.embed(texts), encoder.embed([example.query for example in examples])
    for example, query in zip(examples, asked, strict=True):
        relevant = example.relevant
        like = {text: float(found[place[text]] @ query) for text in example.documents}
        most = margin * max((like[text] for text in relevant), default=0.0)
        others = sorted((text for text in example.others if like[text] < most), key=lambda text: -like[text])
        yield Example(example.query, (*relevant, *others), (*[1] * len(relevant), *[0] * len(others)))


class Encoder:
    """The bi-encoder itself: a text alone is a document that no query looks at.

    Args:
        start: its directory.
    """

    def __init__(self, start: Path) -> None:
        self._trainee = load_trainee(start, Recipe(layout="cross-bias", max_tokens=160))

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the mean states, of norm 1 ``(n, hidden)``."""
        network: Any = self._trainee.network.eval()
        builder = self._trainee.builder
        empty = builder.query("")
        sequences = []
        for pieces in builder.documents(texts, empty):
            whole = builder.mono(empty, pieces)
            sequences.append(Tokens(whole.ids[whole.segments == 1], whole.segments[whole.segments == 1]))
        found = np.zeros((len(texts), int(self._trainee.config["hidden_size"])), dtype=np.float32)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            for places in plan([[tokens] for tokens in sequences], 8192):
                batch = padded([sequences[one] for one in places])
                ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
                one_segment = torch.zeros_like(ids)
                states = network.embed(ids, one_segment)
                bias = network.attention_bias(one_segment, mask == 1)
                for layer in network.layers:
                    states = layer(states, bias)
                found[places] = torch.nn.functional.normalize(mean(states.float(), mask), dim=1).numpy()
        return found


def calibration_files(examples: Iterable[Example], work: Path) -> None:
    """Write the examples kept aside as candidates with judgments, for ``export``."""
    with (work / "dev.candidates.jsonl").open("w") as candidates, (work / "dev.qrels").open("w") as qrels:
        for number, example in enumerate(examples):
            documents = [{"doc_id": f"d{place}", "text": text} for place, text in enumerate(example.documents[:20])]
            line = {"query_id": str(number), "query": example.query, "candidates": documents}
            candidates.write(f"{json.dumps(line)}\n")
            qrels.writelines(
                f"{number} 0 d{place} {grade}\n" for place, grade in enumerate(example.relevance[:20]) if grade > 0
            )
