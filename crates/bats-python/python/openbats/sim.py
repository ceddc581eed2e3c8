"""Simulates the protocol over emulated links in virtual time: equal seeds give equal results.

    from openbats import sim
    import pandas
    table = pandas.DataFrame(sim.matrix([0, 0.1, 0.3], [0.01, 0.05], rate=100e6, duration=5))

``hops`` simulates lines of relays, ``paths`` multipath. Results are plain dictionaries and lists. A
run blocks the calling thread, but not other threads.
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
    """Result of a transfer."""

    #: When the connection was established and when the last message was delivered, in seconds.
    established: Optional[float]
    finished: Optional[float]
    #: Messages and bytes delivered.
    messages: int
    bytes: int
    #: Why the connection was closed, if it was.
    closed: Optional[str]
    #: The receiver's statistics at the end.
    receiver: Row
    samples: List[Row]
    #: Percentiles of the message delay in the steady part of the run, in seconds.
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
    congestion: str = "ltcc",
    rate: Optional[int] = None,
) -> Transfer:
    """Sends messages over a link: ``up`` is the direction of the data, ``down`` the return
    direction (default: the same as ``up``). With ``total_bytes`` it sends as many full messages as
    that holds, otherwise as many as possible until ``duration`` seconds after the handshake.

    ``mode`` is ``brtp`` or ``brctp``; ``congestion`` is ``ltcc``, ``bbr3``, ``cubic``, ``gcc``, ``none``, or
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
    """Bulk transfer over a link that loses the fraction ``loss`` of the packets in each direction,
    with a one-way delay of ``delay`` seconds, ``rate`` bit/s, and a queue of ``queue`` BDP."""
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
    """Runs a cell for each loss and each delay; returns the figures as rows of a table."""
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
    """Bulk transfer over lines of relays: returns a row for each number of links (1 to 64), each
    loss, and each value of ``recoding``.

    Each link loses the fraction ``loss`` of the packets in each direction and has a one-way delay
    of ``delay`` seconds, ``rate`` bit/s of Ethernet frames and a queue of ``queue`` BDP. With
    ``recoding`` relays recode and repair; without it they forward, and the ends repair.

    A row has ``hops``, ``loss_percent``, ``recoding`` and

    - ``goodput_mbps``: goodput without the first third of the run;
    - ``lossless_mbps``: goodput over one such link without loss;
    - ``bound_mbps``: (1 - loss) times ``lossless_mbps``, and ``share``: goodput divided by this
      bound (``None`` if the run is too short);
    - ``forwarding_mbps``: (1 - loss) ** hops times ``lossless_mbps``: the bound without repair by
      relays;
    - ``handshake_ms``: duration of the end-to-end handshake, ``None`` if it took more than 20 s;
    - ``end_repairs_percent``: repairs sent by the source, relative to its symbols;
    - ``useless_percent``: non-innovative packets, over all nodes;
    - ``relay_kib``: largest memory use of a node, in KiB;
    - ``batches_lost``: batches abandoned by relays.

    Raises ``ConnectError`` if the loss is too high for links to be established."""
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
    paths: Iterable[Union[Link, Sequence[Link]]],
    *,
    cut: Optional[Tuple[int, float, Optional[float]]] = None,
    duration: float = 15.0,
    seed: int = 1,
) -> Row:
    """Bulk transfer over several paths at once (multipath, 1 to 16 paths): returns a table row.

    Each item of ``paths`` is one path: a link, or a sequence of links with relays between them. All
    paths need the same number of links, and each link a rate; links are symmetric. ``cut`` is the
    number of a path (from 0), the time in seconds after the handshake when its first link fails,
    and the time when it works again, or ``None``.

    The row has ``paths`` (their number) and

    - ``goodput_mbps``: goodput without the first third of the run, or with ``cut`` in the last
      third;
    - ``bound_mbps``: sum over the paths that work at the end of (1 - loss) times the rate of the
      slowest link, as UDP payload in full frames, and ``share``: goodput divided by this bound
      (``None`` if no path is left);
    - ``longest_gap_ms``: longest time without progress;
    - ``end_repairs_percent``: repairs sent by the source, relative to its symbols;
    - ``useless_percent``: non-innovative coded packets at the destination.

    Raises ``ConnectError`` if the loss is too high for links to be established."""
    listed = [[path] if isinstance(path, Link) else list(path) for path in paths]
    return _native.paths(listed, cut=cut, duration=duration, seed=seed)
