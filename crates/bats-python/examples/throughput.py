"""Sends large messages as fast as possible and prints the received rate."""

import sys
import threading
import time
from typing import List

import openbats

TOTAL = int(sys.argv[1]) * 10**6 if len(sys.argv) > 1 else 100 * 10**6
SIZE = 1_000_000

with openbats.listen("127.0.0.1") as listener:
    connection = openbats.connect(*listener.address, fingerprint=listener.fingerprint, timeout=30)
    server = listener.accept(30)
    times: List[float] = []

    def receive() -> None:
        for number, message in enumerate(server):
            assert len(message) == SIZE and int.from_bytes(message[:8], "big") == number
            times.append(time.perf_counter())

    thread = threading.Thread(target=receive)
    thread.start()
    body = bytes(SIZE - 8)
    count = TOTAL // SIZE
    for number in range(count):
        connection.send(number.to_bytes(8, "big") + body)
    connection.finish(60)
    thread.join()
    assert len(times) == count
    rate = (count - 1) * SIZE * 8 / (times[-1] - times[0]) / 1e9
    print(f"throughput: {count * SIZE / 1e6:.0f} MB in {count} messages, {rate:.2f} Gbit/s")
