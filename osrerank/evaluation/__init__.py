"""Measure runs against judgments, and test how runs differ, from Python.

```python
from osrerank.evaluation import compare, evaluate, read_qrels, read_run

qrels = read_qrels("qrels.txt")
print(evaluate(qrels, read_run("reranked.run"), ["nDCG@10"]).overall)
for comparison in compare(qrels, {"bm25": "bm25.run", "reranked": "reranked.run"}, ["nDCG@10"]):
    print(comparison.run, comparison.difference, comparison.wins, comparison.losses, comparison.p_t_holm)
```
"""

from osrerank.evaluation.measures import Averaging, Evaluation, evaluate
from osrerank.evaluation.significance import RunComparison, compare
from osrerank.formats.candidates import CandidateList, read_candidates
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run, write_run

__all__ = [
    "Averaging",
    "CandidateList",
    "Evaluation",
    "RunComparison",
    "compare",
    "evaluate",
    "read_candidates",
    "read_qrels",
    "read_queries",
    "read_run",
    "write_run",
]
