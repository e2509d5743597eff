"""Explain a hit's rank in sentences, for the option ``explain``."""

from osrerank.types import Candidate, StageReport


def explain(candidate: Candidate, reports: tuple[StageReport, ...]) -> list[str]:
    """Return a sentence about the candidate's rank after each stage, and one about its final `_score`.

    For example: "mono: rank 1, up 2 from 3, logit 4.2000, probability 0.9852 by osrerank/minilm-l6" and
    "_score 1.985200 = 1 (stage passed) + 0.985200 (mono score between 0 and 1)".

    Args:
        candidate: the candidate, with its score and rank from each stage.
        reports: the reports of the stages, which contain the models' names.
    """
    models = {report.name: report.model for report in reports}
    sentences = []
    previous_rank: int | None = None
    for entry in candidate.trace:
        formatted_parts = [
            f"{name} {value}" if isinstance(value, int) else f"{name} {value:.4f}"
            for name, value in entry.parts.items()
        ]
        values = ", ".join(formatted_parts) or f"score {entry.score:.4f}"
        model = models.get(entry.stage)
        by_model = f" by {model}" if model else ""
        move = _describe_move(previous_rank, entry.rank)
        sentences.append(f"{entry.stage}: rank {entry.rank}{move}, {values}{by_model}")
        previous_rank = entry.rank
    if candidate.failure:
        sentences.append(f"not scored: {candidate.failure}")
    if candidate.rank != previous_rank:
        sentences.append(f"placed below the scored candidates, at rank {candidate.rank}")
    last = candidate.trace[-1]
    stages = "stage" if last.level == 1 else "stages"
    score = f"_score {last.level + last.unit:.6f}"
    sentences.append(f"{score} = {last.level} ({stages} passed) + {last.unit:.6f} ({last.stage} score between 0 and 1)")
    return sentences


def _describe_move(previous: int | None, current: int) -> str:
    """Return the change of a rank, such as ", up 2 from 3", or "" if it is unchanged."""
    if previous is None or previous == current:
        return ""
    direction = "up" if current < previous else "down"
    return f", {direction} {abs(previous - current)} from {previous}"
