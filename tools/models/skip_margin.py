"""Measure what leaving out the pairs of queries with a clear first candidate costs (`duo_skip_margin`).

osrerank rerank --candidates squad.jsonl --blend replace --depth 100 --output squad.run
python tools/models/skip_margin.py squad.run.jsonl:squad.qrels dl19.run.jsonl:dl19.qrels

Each set is a side file of `osrerank run` or `osrerank rerank`, made with `--blend replace`, and its judgments. There is
no duo model in this: the stand-in for one takes p_ij from the difference of two documents' blended scores, monoBERT's
with the first pass worth 7 logits. It knows more than the order it is given, monoBERT's alone, as a duo model would.
Beside each value stands, in brackets, what skipping as many queries at random would give on average.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ir_measures

from osrerank import DuoStage
from osrerank.response import FIRST_PASS
from osrerank.testing import FunctionScorer
from osrerank.types import Candidate, Query, Ranking, StageScore

MARGINS = (None, 8.0, 4.0, 2.0, 1.0, 0.5, 1e-9)
DEPTH = 20
FIRST_PASS_WEIGHT = 7.0
MEASURE = ir_measures.parse_measure("nDCG@10")


def mono_order(record: dict[str, Any]) -> Ranking:
    """Return a record's candidates in monoBERT's order; a text is its document's id."""
    scored = [one for one in record["candidates"] if "mono" in one["stages"]]
    scored.sort(key=lambda one: one["stages"]["mono"]["rank"])
    candidates = [
        Candidate(one["doc_id"], one["doc_id"], score, rank, (StageScore(FIRST_PASS, 0.0, rank, 0.0),))
        for rank, one in enumerate(scored, start=1)
        for score in (one["stages"]["mono"]["score"],)
    ]
    return Ranking(Query(record["query_id"], "x"), tuple(candidates))


def stand_in(record: dict[str, Any]) -> FunctionScorer:
    """Return a scorer of pairs: the difference of the two documents' blended scores."""
    best = max((one["first_pass"]["score"] for one in record["candidates"]), default=0) or 1
    blended = {
        one["doc_id"]: one["stages"]["mono"]["score"] + FIRST_PASS_WEIGHT * one["first_pass"]["score"] / best
        for one in record["candidates"]
        if "mono" in one["stages"]
    }
    return FunctionScorer(lambda _query, doc_id: blended[doc_id])


def outcomes(records: list[dict[str, Any]], qrels: list[Any]) -> Iterator[tuple[float | None, float, float, float]]:
    """Yield for each margin the share of queries skipped, the pairs per query, and the mean of the measure."""
    for margin in MARGINS:
        run, skipped, pairs = {}, 0, 0
        for record in records:
            ranking = DuoStage(stand_in(record), DEPTH, skip_margin=margin).rerank(mono_order(record))
            run[record["query_id"]] = {one.doc_id: -float(one.rank) for one in ranking.candidates}
            skipped += ranking.reports[0].skipped
            pairs += ranking.reports[0].inferences
        value = ir_measures.calc_aggregate([MEASURE], qrels, run)[MEASURE]
        yield margin, skipped / len(records), pairs / len(records), value


def main(pairs: list[str]) -> None:
    """Print a table for each set."""
    for pair in pairs:
        side_file, _, judgments = pair.partition(":")
        lines = Path(side_file).read_text("utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if record.get("candidates")]
        asked = {record["query_id"] for record in records}
        qrels = [line for line in ir_measures.read_trec_qrels(judgments) if line.query_id in asked]
        rows = list(outcomes(records, qrels))
        whole, none = rows[0][3], rows[-1][3]
        print(f"{Path(side_file).name}, {len(records)} queries")
        print("margin", "skipped", "pairs/query", str(MEASURE), sep="\t")
        for margin, share, compared, value in rows:
            at_random = whole - share * (whole - none)
            print(margin, f"{share:.0%}", f"{compared:.0f}", f"{value:.4f} ({at_random:.4f})", sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:])
