"""Find a collection's published files in a folder, and set a model's run beside others' published values."""

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
"""How far a value may differ from one that is published to four decimals."""
RUN_FILES = ("BM25.txt", "runs/BM25.txt")
CORPUS, QUERIES = "corpus.jsonl", "queries.tsv"


@dataclass(frozen=True, slots=True)
class Materials:
    """The files of a collection that a folder has.

    Attributes:
        candidates: BM25's candidates with their texts.
        qrels: the judgments.
        files: the paths of the files that both were read from.
    """

    candidates: CandidateLists
    qrels: Qrels
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A model's value beside others' on the same candidates.

    Attributes:
        collection: the collection.
        depth: how many candidates each query has.
        model: the model's name.
        values: run -> value: BM25's, the model's and those of the runs that it was compared with.
        published: others' published values on the same candidates; empty if the candidates differ.
        is_published: whether BM25 has its published value, which shows that the candidates are the published ones.
        comparisons: the model's run against BM25 and against each other run; p-values corrected by Holm's method.
        queries: how many queries were measured.
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
            "published": [asdict(value) for value in self.published],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def find(folder: Path, collection: Collection, depth: int, texts: Texts | None = None) -> Materials:
    """Return a collection's candidates and judgments from a folder.

    Judgments are recognised by their checksum, whatever the file's name. Candidates are rank_llm's file, or a run
    ``BM25.txt`` (in the folder or in ``runs``) with ``corpus.jsonl`` and ``queries.tsv``.

    Args:
        folder: the folder.
        collection: the collection to look for.
        depth: how many candidates each query has.
        texts: yields the texts of the run's documents, in place of ``corpus.jsonl``.

    Raises:
        EvaluationError: something is missing; the message names each file with its address and checksum.
        ChecksumError: rank_llm's file is not the published one.
    """
    qrels = next(_with_checksum(folder, collection.qrels), None)
    published = collection.candidates[depth]
    published_copy = folder / published.name
    run = next((folder / name for name in RUN_FILES if (folder / name).is_file()), None)
    corpus, queries = folder / CORPUS, folder / QUERIES
    if published_copy.is_file() and texts is None:
        _check(published_copy, published)
        files, candidates = [published_copy], candidate_lists(published_copy)
    elif run is not None and queries.is_file() and (texts is not None or corpus.is_file()):
        files, candidates = [run, queries], assemble(run, texts or corpus, queries)
    else:
        raise _lacking(folder, collection, [published, *([collection.qrels] if qrels is None else [])])
    if qrels is None:
        raise _lacking(folder, collection, [collection.qrels])
    return Materials(candidates, read_qrels(qrels), (*files, qrels))


def _lacking(folder: Path, collection: Collection, files: Sequence[PublishedFile]) -> EvaluationError:
    expected_files = "; ".join(map(str, files))
    return EvaluationError(
        f"{folder} lacks {expected_files}. Download the files to this folder, or run: osrerank download "
        f"{collection.name} --output {folder}"
    )


def first_pass(candidates: CandidateLists, depth: int) -> tuple[Run, CandidateLists]:
    """Return the candidates as BM25's run, and the candidates themselves, both cut to the depth."""

    def cut() -> Iterator[CandidateList]:
        return (replace(candidate, documents=tuple(candidate.documents[:depth])) for candidate in candidates)

    rankings = {
        candidate_list.query.query_id: tuple(
            ScoredDocument(document["id"], float(len(candidate_list.documents) - index))
            for index, document in enumerate(candidate_list.documents)
        )
        for candidate_list in cut()
    }
    return Run(rankings, BM25), CandidateLists(cut)


def compare_with_published(
    collection: Collection, depth: int, qrels: Qrels, bm25: Run, ours: Run, other_runs: Sequence[Run]
) -> Reproduction:
    """Measure a model's run, BM25's and others', and set them beside the values published on the same candidates.

    Args:
        collection: the collection.
        depth: candidates of a query.
        qrels: the collection's judgments.
        bm25: the candidates as BM25's run.
        ours: the model's run of the same candidates, named after the model.
        other_runs: more runs to compare the model's with.

    Raises:
        EvaluationError: two runs have the same name, or a run and the judgments share no query.
    """
    averaging = Averaging(complete=True)
    judged = Qrels({query_id: qrels.judgments[query_id] for query_id in bm25.rankings if query_id in qrels.judgments})
    evaluations = [evaluate(judged, run, [MEASURE], averaging) for run in (ours, bm25, *other_runs)]
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
        tuple(map(_reversed, compare_runs(evaluations))),
        len(judged.judgments),
    )


def _reversed(comparison: RunComparison) -> RunComparison:
    """Return a comparison with run and baseline exchanged."""
    return replace(
        comparison,
        baseline=comparison.run,
        run=comparison.baseline,
        difference=-comparison.difference,
        effect_size=-comparison.effect_size,
        wins=comparison.losses,
        losses=comparison.wins,
    )


def _with_checksum(folder: Path, published: PublishedFile) -> Iterator[Path]:
    """Yield the files in a folder that have a published file's size and MD5."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size == published.bytes and _digest(path, "md5") == published.md5:
            yield path


def _check(path: Path, published: PublishedFile) -> None:
    if published.sha256 and (digest := _digest(path, "sha256")) != published.sha256:
        raise ChecksumError(
            f"{path} is not the published file: its SHA-256 is {digest}, expected {published.sha256}; fetch it again "
            f"from {published.url}"
        )


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
