"""The declared types of options and responses."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from osrerank import HitMarks, Rerank, RerankMarks, RerankOptions, StageMarks, StageScoreMarks, connect
from osrerank.testing import CannedTransport, FunctionScorer
from tests.rankings import response_of

CALL = """
import osrerank
client = osrerank.connect("embedded:data")
client.search("low", index="articles", rerank={argument})
"""


def test_every_rerank_option_has_a_declared_type() -> None:
    assert list(RerankOptions.__annotations__) == [option.name for option in fields(Rerank)]


def keys_of(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    return kind.__required_keys__, kind.__optional_keys__


def fits(value: dict[str, Any], kind: Any) -> bool:
    required, optional = keys_of(kind)
    return required <= set(value) <= required | optional


def test_a_response_has_its_declared_types() -> None:
    scorer = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"bb"}))
    answer = response_of(["a", "bb", "ccc", "dd"])
    client = connect(
        "http://localhost:9", scorer=scorer, duo_scorer=scorer, transport_class=CannedTransport, answer=answer
    )
    options: list[RerankOptions] = [
        {"explain": True, "pipeline": "mono-duo"},
        {"min_score": 0.1, "blend": "linear", "blend_weight": 1.0},
        {"passages": "maxp"},
        {"sentences": True},
    ]
    for option in options:
        response = client.search("low", index="i", rerank=option)
        assert fits(response["rerank"], RerankMarks)
        assert all(fits(stage, StageMarks) for stage in response["rerank"]["stages"])
        for hit in response["hits"]["hits"]:
            assert fits(hit["_rerank"], HitMarks), hit
            for marks in hit["_rerank"].values():
                if isinstance(marks, dict):
                    assert keys_of(StageScoreMarks)[0] <= set(marks)


CALLS = [
    ('{"depth": 50, "blend": "replace", "passages": {"aggregation": "maxp"}, "fields": ["body"]}', ""),
    ("osrerank.Rerank(depth=50)", ""),
    ('{"dept": 50}', 'expected "bool | RerankOptions | Rerank"'),
    ('{"depth": "deep"}', 'expected "bool | RerankOptions | Rerank"'),
    ('{"blend": "replaced"}', 'expected "bool | RerankOptions | Rerank"'),
    ('"yes"', 'expected "bool | RerankOptions | Rerank"'),
    ("osrerank.RerankOptions(dept=50)", 'Extra key "dept" for TypedDict "RerankOptions"'),
]


@pytest.mark.slow
@pytest.mark.long
def test_a_mistyped_option_is_found_by_mypy(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    for number, (argument, _) in enumerate(CALLS):
        text = CALL.replace("{argument}", argument)
        (tmp_path / f"call{number}.py").write_text(text, encoding="utf-8")
    output, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path)])
    for number, (_, error) in enumerate(CALLS):
        lines = [line for line in output.splitlines() if f"call{number}.py" in line]
        assert [error in line for line in lines] == ([True] if error else []), output
