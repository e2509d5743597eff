"""Rule-based state machines: how many examples are tried, and of how many steps.

``TEST_MACHINE_EXAMPLES=200`` tries so many of each machine, 60 steps each; by default there are few, so that all
machines together take seconds.
"""

import os
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

MANY = "TEST_MACHINE_EXAMPLES"
STEPS = 60


def run(factory: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a machine so often, or as often as the environment says; a failure prints the steps that lead to it."""
    wanted_runs = int(os.environ.get(MANY, "0"))
    chosen = settings(
        max_examples=wanted_runs or examples,
        stateful_step_count=STEPS if wanted_runs else steps,
        deadline=None,
        derandomize=not wanted_runs,  # the default tier tries the same ones everywhere
        database=None,
        phases=[Phase.generate, *([] if os.environ.get("TEST_MACHINE_NO_SHRINK") else [Phase.shrink])],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(factory, settings=chosen)
