"""The protocol over emulated links in virtual time: same seed, same result.

    from openbats import sim
    import pandas
    table = pandas.DataFrame(sim.matrix([0, 0.1, 0.3], [0.01, 0.05], rate=100e6, duration=5))

Results are plain dictionaries and lists. A run holds the calling thread until it is done; other
threads go on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List, Optional

from . import _native
from ._native import Link

__all__ = ["Cell", "Link", "Transfer", "cell", "matrix", "transfer"]

#: A sample every 10 ms of virtual time: the sender's statistics and the link's counters.
Row = Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What came of a transfer."""

    #: When the connection was established and when the last message was delivered, in seconds.
    established: Optional[float]
    finished: Optional[float]
    #: Messages and bytes delivered: whole, in order, each once.
    messages: int
    bytes: int
    #: Why the connection ended, if it did.
    closed: Optional[str]
    #: The receiver's statistics at the end.
    receiver: Row
    samples: List[Row]
    #: Percentiles of the messages' delays in the steady part of the run, in seconds.
    delay_p50: Optional[float]
    delay_p99: Optional[float]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a matrix."""

    figures: Row
    samples: List[Row]


def transfer(
    up: Link,
    down: Optional[Link] = None,
    *,
    message_size: int = 16384,
    total_bytes: Optional[int] = None,
    duration: float = 10.0,
    seed: int = 1,
    goal: str = "balanced",
) -> Transfer:
    """Sends messages over a link: ``up`` is the data's direction, ``down`` the way back (the same
    if it is not given). With ``total_bytes`` as many whole messages as hold that much are sent,
    otherwise as many as possible until the end."""
    result = _native.transfer(
        up,
        up if down is None else down,
        message_size=message_size,
        total_bytes=total_bytes,
        duration=duration,
        seed=seed,
        goal_name=goal,
    )
    return Transfer(**result)


def cell(
    loss: float,
    delay: float,
    *,
    rate: float = 1e9,
    queue: float = 1.0,
    duration: float = 15.0,
    seed: int = 1,
) -> Cell:
    """Bulk data over a link that loses a share ``loss`` of the packets in both directions, with
    ``delay`` seconds one way, ``rate`` bit/s, and a queue of so many bandwidth-delay products."""
    figures, samples = _native.cell(
        loss=loss, delay=delay, rate=int(rate), queue=queue, duration=duration, seed=seed
    )
    return Cell(figures, samples)


def matrix(
    losses: Iterable[float],
    delays: Iterable[float],
    *,
    rate: float = 1e9,
    queue: float = 1.0,
    duration: float = 15.0,
    seed: int = 1,
) -> List[Row]:
    """The figures of a cell for each loss and each delay, as rows of a table."""
    delays = list(delays)
    return [
        cell(loss, delay, rate=rate, queue=queue, duration=duration, seed=seed).figures
        for loss in losses
        for delay in delays
    ]
