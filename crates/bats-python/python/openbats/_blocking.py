"""The blocking interface."""

from __future__ import annotations

import os
from typing import Iterator, Optional, Tuple, Union

from . import _native
from ._types import (
    BytesLike,
    ConnectionBase,
    File,
    Mode,
    as_bytes,
    file_of,
    identity,
    local_ip,
    options,
    trust,
)

#: Seconds that leaving a ``with`` block gives unacknowledged data.
LINGER = 10.0


class Connection(ConnectionBase):
    """Messages to and from one peer. Usable from several threads.

    In modes brtp, brctp, tcp and quic messages come in order, each exactly once; in btp,
    transparent, udp and with datagrams of quic some may be missing or come in another order (in
    udp also twice). ``is_reliable`` tells."""

    def send(
        self,
        data: BytesLike,
        timeout: Optional[float] = None,
        *,
        deadline: Optional[float] = None,
    ) -> None:
        """Hands a message over; returns when there is room for it, not when it has arrived.

        ``deadline`` says for how many seconds, an hour at most, the message is worth something:
        modes btp, transparent and datagrams of quic do not begin to send it after that. Reliable
        modes deliver it, however late."""
        self._native.send(as_bytes(data), deadline).wait(timeout)

    def recv(self, timeout: Optional[float] = None) -> Optional[bytes]:
        """The next message, or ``None`` after the peer's last."""
        return self._native.recv().wait(timeout)

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until the peer has everything that was sent so far."""
        self._native.flush().wait(timeout)

    def finish(self, timeout: Optional[float] = None) -> None:
        """Says that no more messages follow, and waits until the peer has everything."""
        self._native.finish().wait(timeout)

    def send_file(
        self, path: Union[str, os.PathLike], timeout: Optional[float] = None
    ) -> File:
        """Sends a file; returns when the peer has verified and stored it."""
        self._needs_reliability()
        sent = file_of(self._native.send_file(os.fspath(path)).wait(timeout))
        assert sent is not None
        return sent

    def receive_file(
        self,
        directory: Union[str, os.PathLike],
        *,
        overwrite: bool = False,
        max_size: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Optional[File]:
        """Receives the next file into a directory; ``None`` when the peer has finished."""
        self._needs_reliability()
        operation = self._native.receive_file(os.fspath(directory), overwrite, max_size)
        return file_of(operation.wait(timeout))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            message = self.recv()
            if message is None:
                return
            yield message

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is None and self.close_reason is None:
            try:
                self.finish(LINGER)
            except (TimeoutError, _native.ConnectionClosed):
                pass
        self.close()


class Listener:
    """Accepts connections. Iterating gives one after the other."""

    def __init__(self, native: "_native.Endpoint"):
        self._native = native

    @property
    def address(self) -> Tuple[str, int]:
        return self._native.address()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, for clients to pin."""
        fingerprint = self._native.fingerprint()
        assert fingerprint is not None
        return fingerprint

    def accept(self, timeout: Optional[float] = None) -> Connection:
        """The next connection that a peer has established."""
        return Connection(self._native.accept().wait(timeout), None)

    def close(self) -> None:
        """Closes all connections of this listener; its port is free when this returns."""
        self._native.terminate().wait(LINGER)

    def __iter__(self) -> Iterator[Connection]:
        while True:
            yield self.accept()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<openbats.Listener at {self.address[0]} port {self.address[1]}>"


def connect(
    host: str,
    port: int,
    *,
    fingerprint: Optional[str] = None,
    authorities: Optional[Union[str, os.PathLike]] = None,
    insecure: bool = False,
    mode: Mode = "brtp",
    congestion: str = "bbr",
    rate: Optional[int] = None,
    goal: str = "balanced",
    deadline: float = 0.2,
    idle_timeout: float = 30.0,
    keep_alive: Optional[float] = None,
    max_message_size: Optional[int] = None,
    compression: Optional[int] = None,
    quic_datagrams: bool = False,
    closed_key: Optional[bytes] = None,
    local: Optional[Tuple[str, int]] = None,
    timeout: Optional[float] = None,
) -> Connection:
    """Connects to a server. In modes btp and transparent a message that waits longer than
    ``deadline`` (seconds) is not sent.

    ``congestion`` is ``bbr``, ``cubic``, ``gcc``, ``none``, or ``fixed`` with a ``rate`` in bit/s,
    in modes btp, brtp and brctp. Mode quic has ``bbr`` and ``cubic``; over tcp the kernel decides;
    transparent and udp have none. Asking for another is a ``ValueError``.

    ``compression`` is a level of Zstandard, 1 to 19, for each message; ``quic_datagrams`` has the
    messages of mode quic go as datagrams, each once or not at all. Both ends must want it: messages
    are sent as they are otherwise (``Connection.is_compressed``), and without agreement on
    datagrams the connection fails.

    ``closed_key`` is a key of 32 bytes that both ends need, beside whom they trust, in modes btp, brtp,
    brctp and transparent: a listener with one answers whoever has it not nothing at all, and a
    client with another key or none times out."""
    believed = trust(fingerprint, authorities, insecure)
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key,
    )
    endpoint = _native.Endpoint.client(local, chosen["mode"])
    operation = endpoint.connect(host, port, believed, chosen)
    return Connection(operation.wait(timeout), endpoint)


def listen(
    host: str = "0.0.0.0",
    port: int = 0,
    *,
    cert: Optional[Union[str, os.PathLike]] = None,
    key: Optional[Union[str, os.PathLike]] = None,
    mode: Mode = "brtp",
    congestion: str = "bbr",
    rate: Optional[int] = None,
    goal: str = "balanced",
    deadline: float = 0.2,
    idle_timeout: float = 30.0,
    keep_alive: Optional[float] = None,
    max_message_size: Optional[int] = None,
    compression: Optional[int] = None,
    quic_datagrams: bool = False,
    closed_key: Optional[bytes] = None,
) -> Listener:
    """Listens; without certificate and key a certificate is made."""
    chosen = options(
        mode, congestion, rate, goal, deadline, idle_timeout, keep_alive, max_message_size,
        compression, quic_datagrams, closed_key,
    )
    return Listener(_native.Endpoint.server((local_ip(host), port), identity(cert, key), chosen))
