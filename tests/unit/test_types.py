"""What mypy finds in the code of an application."""

from dataclasses import fields
from pathlib import Path

import pytest

from osrerank import Rerank, RerankOptions

CALL = """
import osrerank
client = osrerank.connect("embedded:data")
client.search("low", index="articles", rerank={argument})
"""


def test_every_option_has_a_type() -> None:
    assert list(RerankOptions.__annotations__) == [one.name for one in fields(Rerank)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ('{"depth": 50, "blend": "replace", "passages": {"aggregation": "maxp"}, "fields": ["body"]}', ""),
        ("osrerank.Rerank(depth=50)", ""),
        ('{"dept": 50}', 'expected "bool | RerankOptions | Rerank"'),
        ('{"depth": "deep"}', 'expected "bool | RerankOptions | Rerank"'),
        ('{"blend": "replaced"}', 'expected "bool | RerankOptions | Rerank"'),
        ('"yes"', 'expected "bool | RerankOptions | Rerank"'),
        ("osrerank.RerankOptions(dept=50)", 'Extra key "dept" for TypedDict "RerankOptions"'),
    ],
)
def test_a_mistyped_option_is_found_by_mypy(argument: str, error: str, tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "application.py"
    file.write_text(CALL.replace("{argument}", argument), encoding="utf-8")
    found, _, status = api.run(["--strict", "--cache-dir", str(tmp_path.parent / "mypy-cache"), str(file)])
    assert (error in found) if error else status == 0, found
