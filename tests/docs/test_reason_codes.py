"""docs/concepts.md says why a search is not reranked, and what to do, for every code of a reason."""

import re

from osrerank.types.reasons import ReasonCode
from tests.servers import ROOT


def test_the_reason_codes_in_the_documentation_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    rows = page.split("## When a search is not reranked")[1].split("\n|---|---|\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z_]+)` \| .+ \|$", rows, re.MULTILINE) == [*ReasonCode]
