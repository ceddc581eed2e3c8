"""An echo server, and a client that checks the echoes."""

import asyncio

from openbats import aio


async def serve(listener: aio.Listener) -> None:
    async for connection in listener:
        async for message in connection:
            await connection.send(message)


async def main() -> None:
    async with aio.listen("127.0.0.1") as listener:
        server = asyncio.ensure_future(serve(listener))
        async with aio.connect(*listener.address, fingerprint=listener.fingerprint) as connection:
            for text in (b"one", b"two", b"three"):
                await connection.send(text)
            echoes = [await connection.recv() for _ in range(3)]
            assert echoes == [b"one", b"two", b"three"], echoes
        server.cancel()
    print(f"echo: {len(echoes)} messages came back")


asyncio.run(main())
