"""Export of late-interaction models: the card, token dimensions, and refused options."""

import json
import re
import shutil
from pathlib import Path

import pytest

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.card_file import read_card
from tests.late_interaction import SAVED, exported


def copied(tmp_path: Path, **metadata: object) -> Path:
    """Copy the model in Stanford's form with some of its metadata changed; None leaves a field out."""
    folder = tmp_path / "copy"
    shutil.copytree(SAVED / "stanford", folder)
    file = folder / "artifact.metadata"
    content = {**json.loads(file.read_text("utf-8")), **metadata}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}), "utf-8")
    return folder


def test_a_card_of_late_interaction_round_trips(tmp_path: Path) -> None:
    card = read_card(exported("pooled", tmp_path, pool_factor=4, dimensions=8, query_prefix="ask "))
    assert (card.kind, card.dimensions, card.query_prefix, card.document_prefix) == (
        "late-interaction", 8, "ask ", "the document ",
    )  # fmt: skip
    assert (card.tokens.pool_factor, card.tokens.expanded_to, card.tokens.attends_to_expansion) == (4, 8, True)
    assert [step.name for step in card.modules] == ["1_Dense.linear"]


def test_token_dimensions_come_from_the_weights_and_contradicting_files_are_refused(tmp_path: Path) -> None:
    assert read_card(exported(str(copied(tmp_path, dim=None)), tmp_path / "made")).dimensions == 16
    reason = "model.safetensors projects to 16 dimensions, but the model's config file says 128"
    with pytest.raises(ModelLoadError, match=re.escape(reason)):
        exported(str(copied(tmp_path / "other", dim=128)), tmp_path / "other" / "made")


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"pooling": "mean"}, "leave --pooling out"), ({"dimensions": 17}, "vectors have only 16 dimensions")],
)
def test_export_options_without_effect_on_late_interaction_are_refused(
    tmp_path: Path, given: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        exported("expanded", tmp_path, **given)
