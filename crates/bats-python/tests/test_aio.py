import asyncio
import os
import threading

import openbats
import pytest
from openbats import aio

LIMIT = 30


def run(coroutine):
    async def limited():
        await asyncio.wait_for(coroutine, LIMIT)

    asyncio.run(limited())


async def echo(listener):
    async for connection in listener:
        asyncio.ensure_future(echo_one(connection))


async def echo_one(connection):
    async for message in connection:
        await connection.send(message)
    await connection.finish()


def test_only_bytes_can_be_sent():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            async with aio.connect(
                *listener.address, fingerprint=listener.fingerprint
            ) as connection:
                for data in (5, [1, 2], "text", None):
                    with pytest.raises(TypeError):
                        await connection.send(data)

    run(main())


def test_many_connections_at_once():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            server = asyncio.ensure_future(echo(listener))

            async def client(number):
                async with aio.connect(
                    *listener.address, fingerprint=listener.fingerprint
                ) as connection:
                    for x in range(20):
                        message = b"%d " % x * (1 + 97 * number)
                        await connection.send(message)
                        assert await connection.recv() == message

            await asyncio.gather(*(client(number) for number in range(10)))
            server.cancel()

    run(main())


def test_bulk_data_in_both_directions():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            far = await listener.accept()
            message = os.urandom(140_000)

            async def send(connection):
                for _ in range(50):
                    await connection.send(message)
                await connection.finish()

            async def receive(connection):
                count = 0
                async for received in connection:
                    assert received == message
                    count += 1
                assert count == 50

            await asyncio.gather(send(near), send(far), receive(near), receive(far))

    run(main())


def test_cancelled_wait_loses_no_message():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            far = await listener.accept()
            for number in range(20):
                waiting = asyncio.ensure_future(far.recv())
                await asyncio.sleep(0.001)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await near.send(b"%d" % number)
                assert await far.recv() == b"%d" % number
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(far.recv(), 0.02)
            near.close()

    run(main())


def test_cancelled_connect_is_aborted():
    async def main():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
        )
        address = transport.get_extra_info("sockname")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.connect(*address, insecure=True), 0.1)
        transport.close()

    run(main())


def test_close_wakes_waiting_tasks():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            far = await listener.accept()
            waiting = asyncio.ensure_future(near.recv())
            await asyncio.sleep(0.01)
            far.close(3, "bye")
            with pytest.raises(openbats.ConnectionClosed, match="bye"):
                await waiting

    run(main())


def test_files(tmp_path):
    source = tmp_path / "data.bin"
    source.write_bytes(os.urandom(500_000))
    target = tmp_path / "target"
    target.mkdir()

    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            far = await listener.accept()
            sent, received = await asyncio.gather(near.send_file(source), far.receive_file(target))
            assert sent.hash == received.hash
            assert (target / "data.bin").read_bytes() == source.read_bytes()
            near.close()

    run(main())


def test_consecutive_event_loops_work():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            await near.send(b"x")
            assert await (await listener.accept()).recv() == b"x"
            near.close()

    for _ in range(3):
        run(main())


def test_unsupported_modes_are_refused():
    with pytest.raises(openbats.UnsupportedMode):
        asyncio.run(_connect())


async def _connect():
    await aio.connect("127.0.0.1", 9, insecure=True, mode=200)


def file_threads():
    return [thread for thread in threading.enumerate() if thread.name == "openbats file"]


def test_many_waiting_transfers_do_not_block_the_executor(tmp_path):
    """More waiting transfers than the loop's executor has threads (at most 32)."""
    count = 40
    target = tmp_path / "target"
    target.mkdir()
    for number in range(count):
        (tmp_path / f"{number}.bin").write_bytes(b"%d " % number * 2_000)

    async def main():
        async with aio.listen("127.0.0.1") as listener:
            pairs = []
            for _ in range(count):
                near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
                pairs.append((near, await listener.accept()))
            receiving = [asyncio.ensure_future(far.receive_file(target)) for _, far in pairs]
            await asyncio.sleep(0.05)
            # All transfers wait and the executor is free, which name resolution needs.
            assert await asyncio.to_thread(lambda: 7) == 7
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            near.close()
            sent = await asyncio.gather(
                *(near.send_file(tmp_path / f"{x}.bin") for x, (near, _) in enumerate(pairs))
            )
            received = await asyncio.gather(*receiving)
            assert [file.hash for file in sent] == [file.hash for file in received]
            for near, _ in pairs:
                near.close()

    run(main())
    assert len(list(target.iterdir())) == count
    for number in range(count):
        assert (target / f"{number}.bin").read_bytes() == b"%d " % number * 2_000


def test_cancelled_transfer_ends_its_thread(tmp_path):
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            far = await listener.accept()
            waiting = asyncio.ensure_future(far.receive_file(tmp_path))
            await asyncio.sleep(0.05)
            assert len(file_threads()) == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert far.close_reason is not None
            with pytest.raises(openbats.ConnectionClosed, match="cancelled"):
                await near.recv()

    run(main())
    for thread in file_threads():
        thread.join(LIMIT)
        assert not thread.is_alive()
