# SPDX-License-Identifier: MIT OR Apache-2.0
# Echoes lines with asyncio: `echo.py serve PORT`, or asks such a server over 20 connections at once, short lines and
# one of 256 KiB: `echo.py ask HOST PORT`.
import asyncio
import sys

LONG = 256 << 10


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, "0.0.0.0", port, limit=2 * LONG)
    async with server:
        await server.serve_forever()


async def ask(host, port, number):
    reader, writer = await asyncio.open_connection(host, port, limit=2 * LONG)
    for turn in range(10):
        text = b"%d of %d " % (turn, number)
        line = text + (b"x" * LONG if turn == 5 else b"") + b"\n"
        writer.write(line)
        await writer.drain()
        if await reader.readline() != line:
            sys.exit(f"connection {number}, line {turn}: another came back")
    writer.close()
    await writer.wait_closed()


async def ask_all(host, port):
    await asyncio.wait_for(asyncio.gather(*(ask(host, port, number) for number in range(20))), 120)


if sys.argv[1] == "serve":
    asyncio.run(serve(int(sys.argv[2])))
else:
    asyncio.run(ask_all(sys.argv[2], int(sys.argv[3])))
