"""Collections with published BM25 candidates, and other systems' published values on these candidates.

The candidates are from Anserini with k1 = 0.9 and b = 0.4. rank_llm publishes them with their texts. Anserini's
regressions publish the nDCG@10 of BM25's order, so candidates with another value are not the published ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MEASURE = "nDCG@10"
DEPTHS = (100, 1000)
"""The depths at which candidates are published."""
_ANSERINI = "https://github.com/castorini/anserini/blob/master/docs/regressions/regressions-{}-passage.md"
_RANK_LLM = "https://castorini.github.io/rank_llm/src/rank_llm/2cr/msmarco-{}-passage.html"
_CANDIDATES = "https://huggingface.co/datasets/castorini/rank_llm_data/resolve/main/retrieve_results/BM25/{}"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file to download, with its size and checksums: some are published, others were computed for this module.

    Attributes:
        name: the file's name.
        url: the file's address.
        bytes: the file's size in bytes, or 0 if unknown.
        md5: the MD5 checksum in hexadecimal digits, or "" if unknown.
        sha256: the SHA-256 checksum in hexadecimal digits, or "" if unknown.
    """

    name: str
    url: str
    bytes: int = 0
    md5: str = ""
    sha256: str = ""

    def __str__(self) -> str:
        checksum = ""
        if self.md5:
            checksum = f" (MD5 {self.md5})"
        elif self.sha256:
            checksum = f" (SHA-256 {self.sha256})"
        return f"{self.name} from {self.url}{checksum}"


@dataclass(frozen=True, slots=True)
class PublishedValue:
    """A system's published nDCG@10 over BM25's top 100, and the page that publishes it."""

    system: str
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection with published candidates and values.

    Attributes:
        name: the collection's name on the command line.
        description: a description in one line.
        n_queries: the number of judged queries.
        qrels: the file with the judgments.
        candidates: the file with BM25's top candidates and their texts, by depth: ``{100: ..., 1000: ...}``.
        bm25: nDCG@10 of these candidates in BM25's order, to four decimals.
        values: the published values of other systems on the top 100, lowest first.
    """

    name: str
    description: str
    n_queries: int
    qrels: PublishedFile
    candidates: Mapping[int, PublishedFile]
    bm25: PublishedValue
    values: tuple[PublishedValue, ...]


def _create_passage_collection(
    year: int, version: str, n_queries: int, qrels: PublishedFile, bm25: float, values: Mapping[str, float], sha256: str
) -> Collection:
    """Create the collection of a year's TREC Deep Learning track.

    ``version`` is MS MARCO's. ``bm25`` and ``values`` are nDCG@10. ``sha256`` is the checksum of the file with the top
    100 candidates, or "" if unknown.
    """
    name = f"dl{year % 100}"
    source = _RANK_LLM.format(version)
    candidates = {}
    for depth in DEPTHS:
        file = f"retrieve_results_{name}_top{depth}.jsonl"
        candidates[depth] = PublishedFile(file, _CANDIDATES.format(file), sha256=sha256 if depth == 100 else "")
    return Collection(
        name=name,
        description=f"TREC Deep Learning {year}, passages",
        n_queries=n_queries,
        qrels=qrels,
        candidates=MappingProxyType(candidates),
        bm25=PublishedValue("BM25", bm25, _ANSERINI.format(name)),
        values=tuple(PublishedValue(system, value, source) for system, value in values.items()),
    )


_NIST = "https://trec.nist.gov/data/deep/"
_COLLECTIONS = (
    _create_passage_collection(
        year=2019,
        version="v1",
        n_queries=43,
        qrels=PublishedFile(
            "2019qrels-pass.txt", f"{_NIST}2019qrels-pass.txt", bytes=187_092, md5="2f4be390198da108f6845c822e5ada14"
        ),
        bm25=0.5058,
        values={
            "RankVicuna-7B": 0.679,
            "Qwen2.5-7B, listwise": 0.699,
            "monoT5-3B": 0.717,
            "duoT5-3B": 0.730,
            "RankZephyr-7B": 0.737,
        },
        sha256="ec396c5725d0cec98739de9aff9fd6785da09e56fd21bee5b52dc19806f06899",
    ),
    _create_passage_collection(
        year=2020,
        version="v1",
        n_queries=54,
        qrels=PublishedFile(
            "2020qrels-pass.txt", f"{_NIST}2020qrels-pass.txt", bytes=218_617, md5="0355ccee7509ac0463e8278186cdd8d1"
        ),
        bm25=0.4796,
        values={
            "Qwen2.5-7B, listwise": 0.630,
            "RankVicuna-7B": 0.658,
            "monoT5-3B": 0.689,
            "duoT5-3B": 0.691,
            "RankZephyr-7B": 0.708,
        },
        sha256="ab556a0cf16f868759c77db68eed99da42345e3298fd423850b8c6e0f518e0ed",
    ),
    _create_passage_collection(
        year=2021,
        version="v2",
        n_queries=53,
        qrels=PublishedFile(
            "2021.qrels.pass.final.txt",
            f"{_NIST}2021.qrels.pass.final.txt",
            bytes=433_887,
            md5="c5b76ec95b589732edc9040302e22a2b",
        ),
        bm25=0.4458,
        values={
            "RankVicuna-7B": 0.619,
            "Qwen2.5-7B, listwise": 0.636,
            "monoT5-3B": 0.668,
            "duoT5-3B": 0.695,
            "RankZephyr-7B": 0.702,
        },
        sha256="",
    ),
)
COLLECTIONS: Mapping[str, Collection] = MappingProxyType({collection.name: collection for collection in _COLLECTIONS})
