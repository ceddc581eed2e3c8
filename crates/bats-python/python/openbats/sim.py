"""The protocol over emulated links in virtual time: same seed, same result.

    from openbats import sim
    import pandas
    table = pandas.DataFrame(sim.matrix([0, 0.1, 0.3], [0.01, 0.05], rate=100e6, duration=5))

``hops`` has the same for lines of relays, ``paths`` for several ways at once. Results are plain
dictionaries and lists. A run holds the calling thread until it is done; other
threads go on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from . import _native
from ._native import Link
from ._types import Mode, mode_number

__all__ = ["Cell", "Link", "Transfer", "cell", "hops", "matrix", "paths", "transfer"]

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
    mode: Mode = "brtp",
    congestion: str = "bbr",
    rate: Optional[int] = None,
) -> Transfer:
    """Sends messages over a link: ``up`` is the data's direction, ``down`` the way back (the same
    if it is not given). With ``total_bytes`` as many whole messages as hold that much are sent,
    otherwise as many as possible until ``duration`` seconds after the handshake.

    ``mode`` is ``brtp`` or ``brctp``; ``congestion`` is ``bbr``, ``cubic``, ``gcc``, ``none``, or
    ``fixed`` with a ``rate`` in bit/s of UDP payload."""
    result = _native.transfer(
        up,
        up if down is None else down,
        message_size=message_size,
        total_bytes=total_bytes,
        duration=duration,
        seed=seed,
        goal_name=goal,
        mode=mode_number(mode),
        congestion_name=congestion,
        bits_per_second=rate,
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


def hops(
    counts: Iterable[int],
    losses: Iterable[float],
    *,
    delay: float = 0.01,
    rate: float = 100e6,
    queue: float = 1.0,
    recoding: Union[bool, Iterable[bool]] = True,
    duration: float = 15.0,
    seed: int = 1,
) -> List[Row]:
    """Bulk data along lines of relays: a row for each number of links (1 to 64) and each loss, and
    for each of ``recoding`` if that is several.

    Each link loses a share ``loss`` of the packets in both directions and has ``delay`` seconds one
    way, ``rate`` bit/s of Ethernet frames and a queue of so many bandwidth-delay products. With
    ``recoding`` relays recode and repair; without, they forward, and the ends repair.

    A row has ``hops``, ``loss_percent``, ``recoding`` and

    - ``goodput_mbps``: of messages, from the second third of the run on;
    - ``lossless_mbps``: the same over one such link without loss;
    - ``bound_mbps``: (1 - loss) times that, and ``share``: the goodput's part of it (``None`` if
      the run is too short to tell);
    - ``forwarding_mbps``: (1 - loss) ** hops times that, what forwarding alone leaves;
    - ``handshake_ms`` between the ends, ``None`` if it did not succeed in 20 s;
    - ``end_repairs_percent``: repairs that the source sent, of its symbols;
    - ``useless_percent``: packets that brought nothing to the node that received them;
    - ``relay_kib``: most that one node held, in KiB;
    - ``batches_lost``: batches that some relay gave up.

    Raises ``ConnectError`` if links lose so much that they do not come up."""
    counts, losses = list(counts), list(losses)
    rows: List[Row] = []
    lossless: Optional[float] = None
    for recodes in [recoding] if isinstance(recoding, bool) else list(recoding):
        for loss in losses:
            for count in counts:
                row = _native.hops(
                    hops=count,
                    loss=loss,
                    delay=delay,
                    rate=int(rate),
                    queue=queue,
                    recoding=recodes,
                    duration=duration,
                    seed=seed,
                    lossless=lossless,
                )
                lossless = row["lossless_mbps"]
                rows.append(row)
    return rows


def paths(
    ways: Iterable[Union[Link, Sequence[Link]]],
    *,
    cut: Optional[Tuple[int, float, Optional[float]]] = None,
    duration: float = 15.0,
    seed: int = 1,
) -> Row:
    """Bulk data over several ways at once (1 to 16): a row for a table.

    A way is a link, or links one after the other with a relay between each two. All ways have as
    many links, and each link a rate; it is the same in both directions. ``cut`` is the number of a
    way (from 0), the seconds after the handshake when its first link stops, and the seconds when it
    carries again, or ``None``.

    The row has ``ways`` (their number) and

    - ``goodput_mbps``: of messages, from the second third of the run on, with ``cut`` in the last;
    - ``bound_mbps``: the sum of (1 - loss) times the rate over the ways that are there in the end,
      of the least link of each, as UDP payload in full frames, and ``share``: the goodput's part of
      it (``None`` if nothing is left);
    - ``longest_gap_ms``: longest time without progress;
    - ``end_repairs_percent``: repairs that the source sent, of its symbols;
    - ``useless_percent``: coded packets that brought the destination nothing.

    Raises ``ConnectError`` if links lose so much that they do not come up."""
    lines = [[way] if isinstance(way, Link) else list(way) for way in ways]
    return _native.paths(lines, cut=cut, duration=duration, seed=seed)
