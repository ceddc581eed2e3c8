"""An encrypted, reliable UDP transport with network coding.

    import openbats

    with openbats.listen("127.0.0.1") as listener:
        host, port = listener.address
        with openbats.connect(host, port, fingerprint=listener.fingerprint) as connection:
            connection.send(b"hello")
            print(listener.accept().recv())

``openbats.aio`` has the same interface with ``await``; ``openbats.sim`` simulates the protocol in
virtual time.
"""

from . import aio, sim
from ._blocking import Channel, Connection, Listener, connect, listen
from ._native import (
    ChannelError,
    ConnectError,
    ConnectionClosed,
    FileError,
    OpenBatsError,
    UnsupportedMode,
    __version__,
)
from ._types import MODES, File, Stats

__all__ = [
    "MODES",
    "Channel",
    "ChannelError",
    "ConnectError",
    "Connection",
    "ConnectionClosed",
    "File",
    "FileError",
    "Listener",
    "OpenBatsError",
    "Stats",
    "UnsupportedMode",
    "__version__",
    "aio",
    "connect",
    "listen",
    "sim",
]
