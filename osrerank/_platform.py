"""Make what a forked child inherits from its parent usable again: locks and threads do not come over a fork."""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """What threads of this process share."""

    def renew(self) -> None:
        """Begin anew in a forked child, where no other thread is and nobody waits."""


_shared: "weakref.WeakSet[Renewable]" = weakref.WeakSet()


def renew_after_fork(one: Renewable) -> None:
    """Renew an object in every child that is forked while it exists."""
    _shared.add(one)


def _renew_all() -> None:
    for one in list(_shared):
        one.renew()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_renew_all)
