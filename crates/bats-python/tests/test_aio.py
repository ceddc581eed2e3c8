import asyncio
import os

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


def test_bulk_data_both_ways():
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


def test_a_cancelled_wait_loses_nothing():
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


def test_a_cancelled_connect_is_given_up():
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


def test_the_end_of_a_connection_wakes_who_waits():
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


def test_loops_follow_each_other():
    async def main():
        async with aio.listen("127.0.0.1") as listener:
            near = await aio.connect(*listener.address, fingerprint=listener.fingerprint)
            await near.send(b"x")
            assert await (await listener.accept()).recv() == b"x"
            near.close()

    for _ in range(3):
        run(main())


def test_missing_modes_are_refused():
    with pytest.raises(openbats.UnsupportedMode):
        asyncio.run(_connect())


async def _connect():
    await aio.connect("127.0.0.1", 9, insecure=True, mode=200)
