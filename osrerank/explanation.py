"""Explain a candidate's rank in sentences."""

from osrerank.types import Candidate, StageReport


def explain(candidate: Candidate, reports: tuple[StageReport, ...]) -> list[str]:
    """Explain a candidate's rank and `_score`: return a sentence for each stage, and one for the score."""
    models = {report.name: report.model for report in reports}
    sentences = []
    previous_rank: int | None = None
    for entry in candidate.trace:
        parts = ", ".join(
            f"{name} {value}" if isinstance(value, int) else f"{name} {value:.4f}"
            for name, value in entry.parts.items()
        )
        values = parts or f"score {entry.score:.4f}"
        model = models.get(entry.stage)
        author = f" by {model}" if model else ""
        move = _describe_move(previous_rank, entry.rank)
        sentences.append(f"{entry.stage}: rank {entry.rank}{move}, {values}{author}")
        previous_rank = entry.rank
    if candidate.failure:
        sentences.append(f"not scored: {candidate.failure}")
    if candidate.rank != previous_rank:
        sentences.append(f"placed below the scored candidates, at rank {candidate.rank}")
    last = candidate.trace[-1]
    stages = "stage" if last.level == 1 else "stages"
    score = f"_score {last.level + last.unit:.6f}"
    sentences.append(f"{score} = {last.level} {stages} passed + {last.unit:.6f} of {last.stage}")
    return sentences


def _describe_move(previous: int | None, current: int) -> str:
    if previous is None or previous == current:
        return ""
    direction = "up" if current < previous else "down"
    return f", {direction} {abs(previous - current)} from {previous}"
