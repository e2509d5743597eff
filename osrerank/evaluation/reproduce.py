"""Find the published files of a collection in a folder, and set a model's run beside the values of others."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from osrerank.errors import ChecksumError, EvaluationError
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.published import MEASURE, Collection, PublishedFile, PublishedValue
from osrerank.evaluation.significance import RunComparison, compare_runs
from osrerank.formats.candidates import CandidateList, CandidateLists, Texts, assemble, candidate_lists
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Run, ScoredDocument

BM25 = "BM25"
ROUNDING = 5e-5
"""How far a value may lie from one that is published to four decimals."""
RUN_FILES = ("BM25.txt", "runs/BM25.txt")
CORPUS, QUERIES = "corpus.jsonl", "queries.tsv"


@dataclass(frozen=True, slots=True)
class Materials:
    """What a folder has of a collection.

    Attributes:
        candidates: BM25's, with their texts.
        qrels: the judgments.
        files: paths that they were read from.
    """

    candidates: CandidateLists
    qrels: Qrels
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A model's value beside others' on the same candidates.

    Attributes:
        collection: which one.
        depth: candidates of a query.
        model: name of the model.
        values: BM25's, the model's and those of the runs that it was compared with, by name.
        published: others' values on the same candidates; none if they are other candidates.
        is_published: whether BM25 has the value here that is published for it, so that the candidates are the same.
        comparisons: the model's run against BM25 and against each given run; p-values corrected by Holm's method.
        queries: how many were measured.
    """

    collection: Collection
    depth: int
    model: str
    values: Mapping[str, float]
    published: tuple[PublishedValue, ...]
    is_published: bool
    comparisons: tuple[RunComparison, ...]
    queries: int

    def as_json(self) -> dict[str, Any]:
        """Return the values as a dictionary of JSON values."""
        return {
            "collection": self.collection.name,
            "measure": MEASURE,
            "depth": self.depth,
            "queries": self.queries,
            "model": self.model,
            "values": dict(self.values),
            "published_bm25": asdict(self.collection.bm25),
            "same_candidates": self.is_published,
            "published": [asdict(one) for one in self.published],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def find(folder: Path, collection: Collection, depth: int, texts: Texts | None = None) -> Materials:
    """Return a collection's candidates and judgments from a folder.

    Judgments are known by their checksum, whatever their name. Candidates are rank_llm's file, or a run ``BM25.txt``
    (in the folder or in ``runs``) with ``corpus.jsonl`` and ``queries.tsv``.

    Args:
        folder: the folder.
        collection: what is looked for.
        depth: candidates of a query.
        texts: finds the texts of the run's documents, in place of ``corpus.jsonl``.

    Raises:
        EvaluationError: something is missing; the message names each file with its address and checksum.
        ChecksumError: rank_llm's file is not the published one.
    """
    qrels = next(_with_checksum(folder, collection.qrels), None)
    published = collection.candidates[depth]
    given = folder / published.name
    run = next((folder / name for name in RUN_FILES if (folder / name).is_file()), None)
    corpus, queries = folder / CORPUS, folder / QUERIES
    if given.is_file() and texts is None:
        _check(given, published)
        files, candidates = [given], candidate_lists(given)
    elif run is not None and queries.is_file() and (texts is not None or corpus.is_file()):
        files, candidates = [run, queries], assemble(run, texts or corpus, queries)
    else:
        raise _lacking(folder, collection, [published, *([collection.qrels] if qrels is None else [])])
    if qrels is None:
        raise _lacking(folder, collection, [collection.qrels])
    return Materials(candidates, read_qrels(qrels), (*files, qrels))


def _lacking(folder: Path, collection: Collection, files: Sequence[PublishedFile]) -> EvaluationError:
    wanted = "; ".join(map(str, files))
    return EvaluationError(
        f"{folder} lacks {wanted}. Download them there by hand, or: osrerank download {collection.name} --output "
        f"{folder}"
    )


def first_pass(candidates: CandidateLists, depth: int) -> tuple[Run, CandidateLists]:
    """Return BM25's run of the candidates, and the candidates, both cut to the depth."""

    def cut() -> Iterator[CandidateList]:
        return (replace(candidate, documents=tuple(candidate.documents[:depth])) for candidate in candidates)

    rankings = {
        one.query.query_id: tuple(
            ScoredDocument(document["id"], float(len(one.documents) - index))
            for index, document in enumerate(one.documents)
        )
        for one in cut()
    }
    return Run(rankings, BM25), CandidateLists(cut)


def beside(
    collection: Collection, depth: int, qrels: Qrels, bm25: Run, ours: Run, others: Sequence[Run]
) -> Reproduction:
    """Measure a model's run, BM25's and others', and set them beside what is published on the same candidates.

    Args:
        collection: the collection.
        depth: candidates of a query.
        qrels: its judgments.
        bm25: BM25's run of the candidates.
        ours: the model's run of the same candidates, named after the model.
        others: runs to compare it with.

    Raises:
        EvaluationError: two runs have the same name, or a run and the judgments share no query.
    """
    averaging = Averaging(complete=True)
    judged = Qrels({query_id: qrels.judgments[query_id] for query_id in bm25.rankings if query_id in qrels.judgments})
    evaluations = [evaluate(judged, run, [MEASURE], averaging) for run in (ours, bm25, *others)]
    values = {evaluation.run: evaluation.overall[MEASURE] for evaluation in evaluations}
    is_published = len(judged.judgments) == collection.queries
    is_published = is_published and abs(values[BM25] - collection.bm25.value) <= ROUNDING
    return Reproduction(
        collection,
        depth,
        ours.name,
        values,
        collection.values if is_published and depth == min(collection.candidates) else (),
        is_published,
        tuple(map(_turned, compare_runs(evaluations))),
        len(judged.judgments),
    )


def _turned(one: RunComparison) -> RunComparison:
    """Return a comparison with run and baseline exchanged."""
    return replace(
        one,
        baseline=one.run,
        run=one.baseline,
        difference=-one.difference,
        effect_size=-one.effect_size,
        wins=one.losses,
        losses=one.wins,
    )


def _with_checksum(folder: Path, published: PublishedFile) -> Iterator[Path]:
    """Yield the files of a folder that have a published file's size and MD5."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size == published.bytes and _digest(path, "md5") == published.md5:
            yield path


def _check(path: Path, published: PublishedFile) -> None:
    if published.sha256 and (found := _digest(path, "sha256")) != published.sha256:
        raise ChecksumError(
            f"{path} is not the published file: its SHA-256 is {found}, expected {published.sha256}; fetch it again "
            f"from {published.url}"
        )


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
