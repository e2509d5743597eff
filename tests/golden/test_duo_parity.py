"""Pairs scored by us against every pair's input built by itself and put through transformers."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from osrerank import DuoStage, MonoStage, Pairs, Pipeline
from osrerank.scoring.registry import load_scorer
from tests.rankings import ranking_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
DUO, MONO = DATA / "tiny-bert-duo", DATA / "tiny-bert-one-label"
QUERY = "what causes low blood pressure [SEP]"
DOCUMENTS = [
    "blood pressure is low when the heart is slow",
    "",
    "wing flow " * 200,  # more than 223 pieces
    "the search engine [SEP] wing",
    "water & heat: 1,000!",
]
PAIRS = list(permutations(range(len(DOCUMENTS)), 2))
TOLERANCE = 1e-4


def reference(query: str, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Score each pair alone: z1 - z0 of the forward pass, its ids and types put together here."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DUO / "tokenizer.json"))
    network = transformers.BertForSequenceClassification.from_pretrained(DUO).eval()
    cls, sep = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])

    def pieces(text: str, most: int) -> list[int]:
        plain = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return plain["input_ids"][:most]

    values = []
    for first, second in pairs:
        parts = [[cls, *pieces(query, 62), sep], [*pieces(first, 223), sep], [*pieces(second, 223), sep]]
        ids = torch.tensor([[text_part for part in parts for text_part in part]])
        types = torch.tensor([[kind for kind, part in enumerate(parts) for _ in part]])
        with torch.inference_mode():
            logits = network(input_ids=ids, token_type_ids=types).logits[0]
        values.append(float(logits[1] - logits[0]))
    return np.array(values)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_pair_scores_equal_a_forward_pass_of_each_pair_alone(backend: str) -> None:
    scores = load_scorer(str(DUO), backend=backend, threads=1, kinds=("duo",)).score(QUERY, DOCUMENTS, PAIRS)
    expected = reference(QUERY, [(DOCUMENTS[first], DOCUMENTS[second]) for first, second in PAIRS])
    np.testing.assert_allclose(scores.values, expected, atol=TOLERANCE, rtol=0)
    assert (scores.inferences, scores.truncated, scores.query_truncated) == (20, 1, False)
    assert np.ptp(expected) > 100 * TOLERANCE  # the tiny model tells pairs apart


def test_mono_then_duo_is_the_published_formula() -> None:
    """Sum of p_ij over the top 4 of monoBERT, the others below, against numpy over the reference's probabilities."""
    mono, duo = load_scorer(str(MONO), threads=1), load_scorer(str(DUO), threads=1, kinds=("duo",))
    ranking = ranking_of([*DOCUMENTS, "heat"], QUERY)
    after_mono = MonoStage(mono).rerank(ranking)
    top = [candidate.text or "" for candidate in after_mono.candidates[:4]]
    pairs = list(permutations(range(4), 2))
    matrix = np.zeros((4, 4))
    logits = reference(QUERY, [(top[first], top[second]) for first, second in pairs])
    matrix[tuple(np.array(pairs).T)] = 1 / (1 + np.exp(-logits))
    for how, worth in {
        "sum": matrix.sum(axis=1),
        "binary": (matrix > 0.5).sum(axis=1),
        "min": (matrix + 9 * np.eye(4)).min(axis=1),
        "max": matrix.max(axis=1),
    }.items():
        final = Pipeline((MonoStage(mono), DuoStage(duo, depth=4, pairs=Pairs(how)))).rerank(ranking)
        order = np.argsort(-worth, kind="stable")
        expected = [*(top[doc_index] for doc_index in order), *(c.text for c in after_mono.candidates[4:])]
        assert [candidate.text for candidate in final.candidates] == expected
        scores = [candidate.score for candidate in final.candidates[:4]]
        np.testing.assert_allclose(scores, worth[order], atol=TOLERANCE)
        assert [report.inferences for report in final.reports] == [5, 12]  # one document is blank
