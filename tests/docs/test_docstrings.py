"""The examples in docstrings run as they stand."""

import inspect
import re

import pytest

import osrerank
from osrerank.pipeline import Pipeline
from osrerank.types import Encoder, Scorer, Stage

EXAMPLES = (Encoder, Scorer, Stage, Pipeline, osrerank.Client.search, osrerank.Reranker)


@pytest.mark.parametrize("documented", EXAMPLES, ids=lambda one: one.__qualname__)
def test_examples_in_docstrings_run(documented, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    response = re.search(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
    assert response, "it has no example"
    exec(compile(response[1], documented.__qualname__, "exec"), {})
