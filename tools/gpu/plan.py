"""What the machine that is borrowed allows, and the steps in their order: ``steps.toml``, read."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

FILE = Path(__file__).with_name("steps.toml")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a borrowed machine.

    Attributes:
        command_s: seconds of one command.
        total_s: seconds of all commands, the machine's starts among them.
        part_bytes: what may travel at a time.
        file_bytes: of one file that comes back.
        files: that come back from one command.
    """

    command_s: int
    total_s: int
    part_bytes: int
    file_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Step:
    """One script whose results are kept apart.

    Attributes:
        name: of the module in ``tools/gpu/steps`` and of the JSON file of its results.
        seconds: expected, without what an earlier command has done.
        needs: luggage, by its name in the luggage's folder.
        writes: patterns of the files that it leaves among the results.
    """

    name: str
    seconds: int
    needs: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All of ``steps.toml``.

    Attributes:
        limits: of the machine.
        wheels: the Python and the platforms of the machine, and the packages that it lacks.
        steps: in the order of their value.
    """

    limits: Limits
    wheels: Mapping[str, Any]
    steps: Sequence[Step]

    @classmethod
    def read(cls, file: Path = FILE) -> Self:
        """Read the plan."""
        content = tomllib.loads(file.read_text("utf-8"))
        steps = [
            Step(**{**one, "needs": tuple(one["needs"]), "writes": tuple(one["writes"])}) for one in content["steps"]
        ]
        return cls(Limits(**content["limits"]), content["wheels"], steps)

    def step(self, name: str) -> Step:
        """Return a step by its name."""
        return next(step for step in self.steps if step.name == name)
