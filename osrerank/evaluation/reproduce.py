"""Compare a model with the published values of other systems on the same BM25 candidates.

`evaluation.published` lists the collections, their files and the values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from osrerank.errors import ChecksumError, EvaluationError
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.published import MEASURE, Collection, PublishedFile, PublishedValue
from osrerank.evaluation.significance import RunComparison, compare_runs
from osrerank.evaluation.values import score_by_rank
from osrerank.formats.candidates import CandidateList, CandidateLists, Texts, assemble_candidates, candidate_lists
from osrerank.formats.files import hash_file
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Run

BM25 = "BM25"
ROUNDING = 5e-5
"""The maximum difference to a published value that comes from its rounding to four decimals."""
RUN_FILES = ("BM25.txt", "runs/BM25.txt")
CORPUS = "corpus.jsonl"
QUERIES = "queries.tsv"


@dataclass(frozen=True, slots=True)
class Materials:
    """A collection's candidates and judgments, read from files.

    Attributes:
        candidates: BM25's candidates with their texts.
        qrels: the judgments.
        files: the paths of the files that they were read from.
    """

    candidates: CandidateLists
    qrels: Qrels
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The measured and published values on a collection's candidates.

    Attributes:
        collection: the collection.
        depth: the number of candidates of each query.
        model: the model's name, which is also the name of its run.
        values: the measured nDCG@10 of the model's run, BM25's and all other runs: ``{"BM25": 0.5058, ...}``.
        published: other systems' published values on the same candidates. Empty if the candidates or the depth differ.
        has_published_candidates: whether BM25 has its published value, which shows that the candidates are the
            published ones.
        comparisons: comparisons of the model's run with each other run. Holm's method corrects the p-values.
        n_queries: the number of measured queries.
    """

    collection: Collection
    depth: int
    model: str
    values: Mapping[str, float]
    published: tuple[PublishedValue, ...]
    has_published_candidates: bool
    comparisons: tuple[RunComparison, ...]
    n_queries: int

    def as_json(self) -> dict[str, Any]:
        """Return the reproduction as JSON values."""
        return {
            "collection": self.collection.name,
            "measure": MEASURE,
            "depth": self.depth,
            "queries": self.n_queries,
            "model": self.model,
            "values": dict(self.values),
            "published_bm25": asdict(self.collection.bm25),
            "same_candidates": self.has_published_candidates,
            "published": [asdict(value) for value in self.published],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def find_materials(folder: Path, collection: Collection, depth: int, texts: Texts | None = None) -> Materials:
    """Read a collection's candidates and judgments from a folder.

    Judgments are recognised by their checksum, not by the file's name. Candidates come from rank_llm's published file,
    or from a run ``BM25.txt`` (in the folder or in ``runs``) with ``corpus.jsonl`` and ``queries.tsv``. ``texts`` reads
    the texts of the run's documents from an index, in place of ``corpus.jsonl``.

    Raises:
        EvaluationError: a file is missing. The message contains its address and checksum.
        ChecksumError: rank_llm's file is not the published one.
    """
    qrels = next(_find_by_checksum(folder, collection.qrels), None)
    published = collection.candidates[depth]
    candidates_file = folder / published.name
    run = next((folder / name for name in RUN_FILES if (folder / name).is_file()), None)
    corpus = folder / CORPUS
    queries = folder / QUERIES
    if candidates_file.is_file() and texts is None:
        _verify_checksum(candidates_file, published)
        files = [candidates_file]
        candidates = candidate_lists(candidates_file)
    elif run is not None and queries.is_file() and (texts is not None or corpus.is_file()):
        files = [run, queries]
        candidates = assemble_candidates(run, texts or corpus, queries)
    else:
        missing = [published] if qrels is not None else [published, collection.qrels]
        raise _missing_files_error(folder, collection, missing)
    if qrels is None:
        raise _missing_files_error(folder, collection, [collection.qrels])
    return Materials(candidates, read_qrels(qrels), files=(*files, qrels))


def _missing_files_error(folder: Path, collection: Collection, files: Sequence[PublishedFile]) -> EvaluationError:
    return EvaluationError(
        f"{folder} does not contain {'; '.join(map(str, files))}. Download the files to it, or run: osrerank download "
        f"{collection.name} --output {folder}"
    )


def truncate_candidates(candidates: CandidateLists, depth: int) -> tuple[Run, CandidateLists]:
    """Return the top ``depth`` candidates of each query: as BM25's run, and as lists with texts."""

    def truncate() -> Iterator[CandidateList]:
        for candidate_list in candidates:
            yield replace(candidate_list, documents=tuple(candidate_list.documents[:depth]))

    rankings = {
        candidate_list.query.query_id: score_by_rank([document["id"] for document in candidate_list.documents])
        for candidate_list in truncate()
    }
    return Run(rankings, BM25), CandidateLists(truncate)


def compare_with_published(
    collection: Collection, depth: int, qrels: Qrels, bm25: Run, model_run: Run, other_runs: Sequence[Run]
) -> Reproduction:
    """Measure the model's run, BM25's run and other runs, and compare them with published values.

    ``bm25`` contains the candidates. ``model_run`` is named after the model.

    Raises:
        EvaluationError: two runs have the same name, or a run and the judgments share no query.
    """
    averaging = Averaging(complete=True)  # a query without candidates is left out, and one that a run lacks counts as 0
    run_qrels = Qrels(
        {query_id: qrels.judgments[query_id] for query_id in bm25.rankings if query_id in qrels.judgments}
    )
    evaluations = [evaluate(run_qrels, run, [MEASURE], averaging) for run in (model_run, bm25, *other_runs)]
    values = {evaluation.run: evaluation.overall[MEASURE] for evaluation in evaluations}
    has_all_queries = len(run_qrels.judgments) == collection.n_queries
    has_published_candidates = has_all_queries and abs(values[BM25] - collection.bm25.value) <= ROUNDING
    has_published_values = has_published_candidates and depth == min(collection.candidates)  # their depth
    return Reproduction(
        collection=collection,
        depth=depth,
        model=model_run.name,
        values=values,
        published=collection.values if has_published_values else (),
        has_published_candidates=has_published_candidates,
        # `compare_runs` uses the first run, the model's, as the baseline of the others
        comparisons=tuple(map(_swap_runs, compare_runs(evaluations))),
        n_queries=len(run_qrels.judgments),
    )


def _swap_runs(comparison: RunComparison) -> RunComparison:
    """Exchange the run and the baseline of a comparison. The p-values stay the same."""
    return replace(
        comparison,
        baseline=comparison.run,
        run=comparison.baseline,
        difference=-comparison.difference,
        effect_size=-comparison.effect_size,
        wins=comparison.losses,
        losses=comparison.wins,
    )


def _find_by_checksum(folder: Path, published: PublishedFile) -> Iterator[Path]:
    """Yield the files in a folder with the size and MD5 checksum of a published file, whatever their names are."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if path.is_file() and path.stat().st_size == published.bytes and hash_file(path, "md5") == published.md5:
            yield path


def _verify_checksum(path: Path, published: PublishedFile) -> None:
    """Raise an error if the file's SHA-256 is not the published one. If none is published, nothing is checked."""
    if not published.sha256:
        return
    digest = hash_file(path)
    if digest != published.sha256:
        raise ChecksumError(
            f"{path} is not the published file: its SHA-256 is {digest}, not {published.sha256}; download it again "
            f"from {published.url}"
        )
