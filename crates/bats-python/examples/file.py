"""Sends a file that is verified on arrival."""

import os
import pathlib
import tempfile
import threading
from typing import List, Optional

import openbats

with tempfile.TemporaryDirectory() as name, openbats.listen("127.0.0.1") as listener:
    source = pathlib.Path(name, "data.bin")
    source.write_bytes(os.urandom(8 << 20))
    target = pathlib.Path(name, "received")
    target.mkdir()
    received: List[Optional[openbats.File]] = []

    def receive() -> None:
        # Leaving the block waits until the sender knows the result.
        with listener.accept(30) as peer:
            received.append(peer.receive_file(target, timeout=60))

    thread = threading.Thread(target=receive)
    thread.start()
    with openbats.connect(*listener.address, fingerprint=listener.fingerprint) as connection:
        sent = connection.send_file(source, timeout=60)
    thread.join()
    assert received[0] is not None and received[0].hash == sent.hash
    assert (target / "data.bin").read_bytes() == source.read_bytes()
    print(f"file: {sent.size} bytes arrived")
