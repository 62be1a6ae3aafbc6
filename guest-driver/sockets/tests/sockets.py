#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""An ordinary program: what programs do with sockets, between two nodes.

    sockets.py serve PORT            # at one node
    sockets.py NODE PORT [CASE...]   # at another: one line for each case, exit code 1 if any fails; the case "stop"
                                     # ends the server
    sockets.py measure NODE PORT ROUNDS
    sockets.py terminal              # a program at a terminal

With EXPECTED=memory in the environment, cases that can tell a connection through memory from one of the system's expect
the former where much has been sent, with EXPECTED=system the latter, and nothing otherwise.

Each case has two ends, which are written one below the other. Bytes are made by a seed, so both ends know them.
"""
import array, contextlib, errno, fcntl, hashlib, os, select, signal, socket, struct, subprocess, sys, tempfile
import termios, threading, time

MIB = 1 << 20
# No case takes so many seconds, on a slow machine either: one that does hangs.
PATIENCE = 120
EXPECTED = os.environ.get("EXPECTED")


def data(seed, size):
    return hashlib.shake_128(struct.pack("Q", seed)).digest(size)


def take(sock, size):
    """Reads exactly so many bytes."""
    got = bytearray()
    while len(got) < size:
        some = sock.recv(min(size - len(got), 200_000))
        if not some:
            raise EOFError(f"the end after {len(got)} of {size} bytes")
        got += some
    return bytes(got)


def same(got, expected, what="bytes"):
    if got != expected:
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        raise AssertionError(f"{what}: {len(got)} for {len(expected)}, the first other one at {at}")


def warm(sock, first):
    """Sends much both ways, so that the connection is one through memory afterwards, if it can be."""
    for round in range(4):
        for turn in (first, not first):
            if turn:
                sock.sendall(data(round, 150_000))
            else:
                same(take(sock, 150_000), data(round, 150_000), "warming")


def through_memory(sock):
    """Whether what is sent, or received, goes through memory: then there is no splice. To be asked at the end, for
    what has been spliced stays the system's."""
    read, write = os.pipe()
    try:
        os.splice(read, sock.fileno(), 0)
        return False
    except OSError as e:
        assert e.errno == errno.EINVAL, e
        return True
    finally:
        os.close(read)
        os.close(write)


def expect_memory(sock):
    if EXPECTED:
        assert through_memory(sock) == (EXPECTED == "memory"), f"expected a connection of the {EXPECTED}"


# Both ends of each case, by name: the one that connects, the one that accepts.
def blocking(sock):
    sender = threading.Thread(target=lambda: sock.sendall(data(1, 6 * MIB)))
    sender.start()
    same(take(sock, 6 * MIB), data(1, 6 * MIB))
    sender.join()


def blocking_end(sock):
    while True:
        some = sock.recv(70_000)
        if not some:
            return
        sock.sendall(some)


def small(sock):
    warm(sock, True)
    for n in range(400):
        sent = data(n, 1 + n * n % 700)
        sock.sendall(sent)
        same(take(sock, len(sent)), sent, f"round {n}")


def small_end(sock):
    warm(sock, False)
    blocking_end(sock)


def exchange(sock, wait, size, seed, step=90_000):
    """Sends and receives without blocking; `wait` says what is possible of what is wanted."""
    sock.setblocking(False)
    out, got = data(seed, size), bytearray()
    sent = 0
    while sent < size or len(got) < size:
        readable, writable = wait(len(got) < size, sent < size)
        if readable:
            try:
                while len(got) < size:
                    some = sock.recv(step)
                    if not some:
                        raise EOFError("the end, too early")
                    got += some
                    if wait.level:
                        break
            except BlockingIOError:
                pass
        if writable:
            try:
                while sent < size:
                    sent += sock.send(out[sent : sent + step])
                    if wait.level:
                        break
            except BlockingIOError:
                pass
    sock.setblocking(True)
    same(bytes(got), data(seed, size))


class Select:
    level = True

    def __init__(self, sock):
        self.sock = sock

    def __call__(self, read, write):
        readable, writable, _ = select.select([self.sock] if read else [], [self.sock] if write else [], [], 20)
        if not readable and not writable:
            raise TimeoutError("select")
        return readable, writable


class Poll(Select):
    def __call__(self, read, write):
        poll = select.poll()
        poll.register(self.sock, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        events = poll.poll(20_000)
        if not events:
            raise TimeoutError("poll")
        return events[0][1] & select.POLLIN, events[0][1] & select.POLLOUT


class Epoll(Select):
    """Edges: an event comes once for what is new."""

    level = False

    def __init__(self, sock):
        self.epoll = select.epoll()
        self.epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def __call__(self, read, write):
        events = self.epoll.poll(20)
        if not events:
            raise TimeoutError("epoll, edges")
        return events[0][1] & select.EPOLLIN, events[0][1] & select.EPOLLOUT


class Once(Select):
    """An event comes once for each time it is asked for."""

    def __init__(self, sock):
        self.sock, self.epoll = sock, select.epoll()
        self.epoll.register(sock, 0)

    def __call__(self, read, write):
        mask = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0) | select.EPOLLONESHOT
        self.epoll.modify(self.sock, mask)
        events = self.epoll.poll(20)
        if not events:
            raise TimeoutError("epoll, once")
        return events[0][1] & select.EPOLLIN, events[0][1] & select.EPOLLOUT


def exchanging(kind, seed):
    return lambda sock: exchange(sock, kind(sock), 4 * MIB, seed)


def asynchronous(sock):
    # Here alone, as it takes as long as all else that a program begins with.
    import asyncio

    async def run():
        reader, writer = await asyncio.open_connection(sock=sock)

        async def write():
            for n in range(40):
                writer.write(data(n, 100_000))
                await writer.drain()

        task = asyncio.create_task(write())
        for n in range(40):
            same(await reader.readexactly(100_000), data(n, 100_000), f"part {n}")
        await task
        writer.close()
        await writer.wait_closed()

    asyncio.run(run())


def asynchronous_end(sock):
    import asyncio

    async def run():
        reader, writer = await asyncio.open_connection(sock=sock)
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
        writer.close()

    asyncio.run(run())


def vectors(sock):
    warm(sock, True)
    parts = [data(n, size) for n, size in enumerate((1, 0, 70_000, 3, 200_000, 17))]
    whole = b"".join(parts)
    sent = sock.sendmsg(parts)
    sock.sendall(whole[sent:])
    buffers = [bytearray(size) for size in (5, 100_000, 1, 300_000)]
    got = bytearray()
    while len(got) < len(whole):
        count = sock.recvmsg_into(buffers)[0]
        assert count > 0
        got += b"".join(buffers)[:count]
    same(bytes(got), whole)


def peeking(sock):
    warm(sock, True)
    for n in range(12):
        # Some go through memory, some do not.
        sent = data(n, 100 if n % 2 else 30_000)
        sock.sendall(sent)
        assert sock.recv(1) == b"k"


def peeking_end(sock):
    warm(sock, False)
    for n in range(12):
        expected = data(n, 100 if n % 2 else 30_000)
        select.select([sock], [], [])
        seen = sock.recv(50, socket.MSG_PEEK)
        same(seen, expected[: len(seen)], "a peek")
        assert seen
        got = sock.recv(len(expected), socket.MSG_WAITALL)
        same(got, expected, "all of it")
        waiting = array.array("i", [-1])
        fcntl.ioctl(sock, termios.FIONREAD, waiting)
        assert waiting[0] == 0, f"{waiting[0]} bytes left"
        sock.sendall(b"k")


def waiting(sock):
    """How many bytes wait is known, with all of them there."""
    warm(sock, True)
    sock.sendall(data(5, 40_000))
    sock.sendall(data(6, 500))
    assert sock.recv(1) == b"k"


def waiting_end(sock):
    warm(sock, False)
    deadline = time.monotonic() + 20
    count = array.array("i", [-1])
    while count[0] != 40_500:
        fcntl.ioctl(sock, termios.FIONREAD, count)
        assert time.monotonic() < deadline and count[0] <= 40_500, f"{count[0]} bytes wait"
        time.sleep(0.01)
    same(take(sock, 40_500), data(5, 40_000) + data(6, 500))
    sock.sendall(b"k")


def half_close(sock):
    sock.sendall(data(7, 3 * MIB))
    sock.shutdown(socket.SHUT_WR)
    got = bytearray()
    while some := sock.recv(65536):
        got += some
    same(bytes(got), data(8, 3 * MIB))


def half_close_end(sock):
    got = bytearray()
    while some := sock.recv(65536):
        got += some
    same(bytes(got), data(7, 3 * MIB))
    sock.sendall(data(8, 3 * MIB))


def close_at_once(sock):
    warm(sock, True)
    sock.sendall(data(9, 2 * MIB + 77))


def close_at_once_end(sock):
    warm(sock, False)
    same(take(sock, 2 * MIB + 77), data(9, 2 * MIB + 77))
    assert sock.recv(1) == b""


def forking(sock):
    """A child continues, and its parent after it."""
    warm(sock, True)
    child = os.fork()
    if child == 0:
        ok = False
        try:
            sock.sendall(data(10, MIB))
            same(take(sock, MIB), data(11, MIB))
            ok = True
        finally:
            os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child"
    sock.sendall(data(12, MIB))
    same(take(sock, MIB), data(13, MIB))


def forking_end(sock):
    warm(sock, False)
    same(take(sock, MIB), data(10, MIB))
    child = os.fork()
    if child == 0:
        sock.sendall(data(11, MIB))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    same(take(sock, MIB), data(12, MIB))
    sock.sendall(data(13, MIB))


def orphan(sock):
    """The parent ends, its child continues with a connection that goes through memory."""
    warm(sock, True)
    sock.sendall(b"?")
    same(take(sock, 2 * MIB), data(14, 2 * MIB))


def orphan_end(sock):
    warm(sock, False)
    assert sock.recv(1) == b"?"
    if os.fork():
        return
    time.sleep(0.5)
    sock.sendall(data(14, 2 * MIB))


def send_pieces(sock, sent):
    """By several writes, at each of which a direction may become framed."""
    for at in range(0, len(sent), 50_000):
        sock.sendall(sent[at : at + 50_000])


def pieces(sock, size, seed):
    """Sends what the other end sends back, and compares."""
    sender = threading.Thread(target=lambda: send_pieces(sock, data(seed, size)))
    sender.start()
    same(take(sock, size), data(seed, size))
    sender.join()


def fork_both(sock):
    """Two processes have a connection over which nothing was sent before, and both read and write."""
    pieces(sock, MIB, 33)
    last = data(34, 2 * MIB)
    send_pieces(sock, last)
    sock.shutdown(socket.SHUT_WR)
    said = [struct.unpack("!QQ", take(sock, 16)) for _ in range(2)]
    assert sock.recv(1) == b""
    assert sum(count for count, _ in said) == 2 * MIB, f"{said} bytes"
    assert sum(value for _, value in said) == sum(map(last.count, range(9))), "other bytes"
    expect_memory(sock)


def fork_both_end(sock):
    # Whose turn it is.
    turns = [os.pipe(), os.pipe()]
    child = os.fork()
    own = 1 if child == 0 else 0
    if own == 0:
        os.write(turns[0][1], b"t")
    for _ in range(8):
        assert os.read(turns[own][0], 1) == b"t"
        # Of odd sizes, so that the other one continues in the middle of a record.
        sock.sendall(take(sock, MIB // 16 - 7 if own == 0 else MIB // 16 + 7))
        os.write(turns[1 - own][1], b"t")
    if own == 0:
        # Until the other one has had its last turn.
        assert os.read(turns[own][0], 1) == b"t"
    # And now at the same time.
    count = value = 0
    while some := sock.recv(30_000):
        # How many there are of some bytes, regardless of the reader.
        count, value = count + len(some), value + sum(map(some.count, range(9)))
    sock.sendall(struct.pack("!QQ", count, value))
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child"


def fork_reader_ends(sock):
    """The process that was the first to read much ends amid the stream, and its parent reads the rest."""
    send_pieces(sock, data(35, 2 * MIB))
    assert take(sock, 1) == b"k"
    expect_memory(sock)


def fork_reader_ends_end(sock):
    child = os.fork()
    if child == 0:
        same(take(sock, MIB + 11), data(35, MIB + 11), "the child's")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    same(take(sock, MIB - 11), data(35, 2 * MIB)[MIB + 11 :], "the parent's")
    sock.sendall(b"k")


def fork_hands_over(sock):
    """The parent closes its copy, and its child, which has had nothing yet, serves through memory."""
    pieces(sock, MIB, 36)
    expect_memory(sock)


def fork_hands_over_end(sock):
    child = os.fork()
    if child == 0:
        send_pieces(sock, take(sock, MIB))
        expect_memory(sock)
        os._exit(0)
    sock.close()
    assert os.waitpid(child, 0)[1] == 0, "the child"


def other_user(sock):
    """A child of the other end becomes another user's and continues with a connection of which little has been sent: it
    stays the system's. Later one does so with a connection through memory: it gets an error; its parent continues."""
    sock.sendall(data(50, 5000))
    same(take(sock, 5000), data(51, 5000))
    sock.sendall(data(52, MIB))
    same(take(sock, MIB), data(53, MIB))
    if EXPECTED:
        assert not through_memory(sock), "expected a connection of the system"


def as_another_user(run):
    child = os.fork()
    if child == 0:
        ok = False
        try:
            os.setuid(65534)
            ok = run()
        finally:
            os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child"


def other_user_end(sock):
    def run():
        same(take(sock, 5000), data(50, 5000))
        sock.sendall(data(51, 5000))
        return True

    as_another_user(run)
    same(take(sock, MIB), data(52, MIB))
    sock.sendall(data(53, MIB))


def late_user(sock):
    warm(sock, True)
    warm(sock, True)
    same(take(sock, 1), b"k")
    sock.sendall(data(54, MIB))
    same(take(sock, MIB), data(55, MIB))
    expect_memory(sock)


def late_user_end(sock):
    warm(sock, False)
    warm(sock, False)

    def run():
        for call in (lambda: sock.recv(1), lambda: sock.send(b"x")):
            try:
                call()
                return EXPECTED != "memory"
            except OSError:
                pass
        # Nor does it reach the connection by a program.
        subprocess.run(["sh", "-c", f"echo wrong >&{sock.fileno()}"], pass_fds=[sock.fileno()])
        return EXPECTED == "memory"

    as_another_user(run)
    sock.sendall(b"k")
    same(take(sock, MIB), data(54, MIB))
    sock.sendall(data(55, MIB))


def copies(sock):
    warm(sock, True)
    other = socket.socket(fileno=os.dup(sock.fileno()))
    third = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, 200)
    other.sendall(data(15, 300_000))
    os.close(third)
    same(take(sock, 300_000), data(15, 300_000))
    other.close()
    sock.sendall(data(16, 300_000))
    same(take(sock, 300_000), data(16, 300_000))


def file(sock):
    with tempfile.TemporaryFile() as source:
        source.write(data(17, 3 * MIB + 5))
        source.flush()
        source.seek(0)
        sender = threading.Thread(target=lambda: sock.sendfile(source))
        sender.start()
        same(take(sock, 3 * MIB + 5), data(17, 3 * MIB + 5))
        sender.join()
        assert source.tell() == 3 * MIB + 5


def warm_more(sock):
    """For what is through memory if anything is: the first may be over before. The other end sends all back."""
    pieces(sock, 400_000, 40)


def splicing(sock):
    """What is spliced arrives; where that is refused, programs write."""
    warm(sock, True)
    warm_more(sock)
    read, write = os.pipe()
    os.write(write, b"x" * 1000)
    try:
        moved = os.splice(read, sock.fileno(), 1000)
        assert EXPECTED != "memory", "spliced"
    except OSError as e:
        assert e.errno == errno.EINVAL and EXPECTED != "system", e
        moved = sock.send(os.read(read, 1000))
    assert moved == 1000
    assert take(sock, 1000) == b"x" * 1000
    try:
        moved = os.splice(sock.fileno(), write, 1000) if EXPECTED == "memory" else None
        assert moved is None, "spliced from it"
    except OSError as e:
        assert e.errno == errno.EINVAL, e


def limits(sock):
    warm(sock, True)
    sock.settimeout(0.2)
    begun = time.monotonic()
    try:
        sock.recv(1)
        raise AssertionError("nothing was sent")
    except TimeoutError:
        assert 0.15 < time.monotonic() - begun < 5
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 200_000))
    try:
        sock.recv(1)
        raise AssertionError("nothing was sent")
    except BlockingIOError:
        pass
    # A signal ends a wait.
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 0))
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        sock.recv(1)
        raise AssertionError("nothing was sent")
    except Alarm:
        pass


def full(sock):
    """The other end does not read: nothing is lost, and it is seen that there is no room."""
    warm(sock, True)
    sock.setblocking(False)
    out, sent = data(18, 24 * MIB), 0
    # What is on its way makes room when it arrives.
    while select.select([], [sock], [], 0.5)[1]:
        try:
            while True:
                sent += sock.send(out[sent : sent + 65536])
        except BlockingIOError:
            pass
    assert sent < len(out)
    # Then it reads, and there is room again.
    assert select.select([], [sock], [], 20)[1], "it has no room"
    sock.setblocking(True)
    sock.sendall(out[sent:])
    assert take(sock, 1) == b"k"


def full_end(sock):
    warm(sock, False)
    # For longer than a node is waited for that does not answer.
    time.sleep(10)
    same(take(sock, 24 * MIB), data(18, 24 * MIB))
    sock.sendall(b"k")


def killed(sock):
    """The other end is killed: what it has sent arrives, and then the end."""
    warm(sock, True)
    got = bytearray()
    try:
        while some := sock.recv(65536):
            got += some
    except ConnectionResetError:
        pass
    same(bytes(got), data(19, len(got)) if len(got) < MIB else data(19, MIB), "before the end")
    assert len(got) >= MIB


def killed_end(sock):
    child = os.fork()
    if child == 0:
        warm(sock, False)
        sock.sendall(data(19, MIB))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def passed(sock):
    """A connection is passed to another process before its first byte."""
    sock.sendall(data(20, 400_000))
    same(take(sock, 400_000), data(20, 400_000))


def passed_end(sock):
    # Nothing has been read here but the name of the case.
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        sock.close()
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        passed = socket.socket(fileno=fds[0])
        passed.sendall(take(passed, 400_000))
        os._exit(0)
    socket.send_fds(ours, [b"x"], [sock.fileno()])
    assert os.waitpid(child, 0)[1] == 0


def program(sock):
    """A connection is another program's standard streams."""
    sock.sendall(data(21, 300_000))
    sock.shutdown(socket.SHUT_WR)
    same(take(sock, 300_000), data(21, 300_000))


def program_end(sock):
    assert subprocess.run(["cat"], stdin=sock, stdout=sock).returncode == 0


SOME = 2 * MIB + 33


def program_says(sock):
    """Another program takes over, which reads, and writes, and says what came."""
    warm(sock, True)
    sender = threading.Thread(target=lambda: (sock.sendall(data(26, SOME)), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    same(take(sock, SOME), data(26, SOME))
    assert sock.recv(1) == b""
    sender.join()


def amid(sock):
    """Reads some of a stream, so that the rest is in the ring and in the connection, in the middle of a record."""
    head = take(sock, 40_001)
    same(head, data(26, SOME)[: len(head)], "before exec")
    time.sleep(0.3)
    sock.sendall(head)


def exec_cat_end(sock):
    """The process itself becomes the program."""
    warm(sock, False)
    amid(sock)
    os.dup2(sock.fileno(), 0)
    os.dup2(sock.fileno(), 1)
    os.execvp("cat", ["cat"])


def spawn_end(sock):
    """posix_spawn, with all other descriptors closed, as Python's subprocess does it for a path."""
    warm(sock, False)
    amid(sock)
    assert subprocess.run(["/bin/cat"], stdin=sock, stdout=sock).returncode == 0


def pipeline_end(sock):
    """A shell, and what it starts, some of which reads by libc's streams (sed)."""
    warm(sock, False)
    amid(sock)
    script = "head -c 100000; cat | sed '' | cat >&1; exit 7"
    assert subprocess.run(["sh", "-c", script], stdin=sock, stdout=sock).returncode == 7


def streams(sock):
    """Lines that libc's streams read and write."""
    warm(sock, True)
    lines = b"".join(b"%d " % n + b"x" * (n % 3000) + b"\n" for n in range(2000))
    sender = threading.Thread(target=lambda: (sock.sendall(lines), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    same(take(sock, len(lines)), lines)
    assert sock.recv(1) == b""
    sender.join()


def streams_end(sock):
    warm(sock, False)
    time.sleep(0.3)
    assert subprocess.run(["sed", "s/x/x/"], stdin=sock, stdout=sock).returncode == 0


def exec_sender(sock):
    """A program continues to send, by another descriptor, and the one that started it continues after it."""
    warm(sock, True)
    same(take(sock, MIB), data(27, MIB))
    same(take(sock, MIB), data(28, MIB))
    same(take(sock, MIB), data(29, MIB))
    sock.sendall(data(30, 300_000))
    assert sock.recv(1) == b"k"


def exec_sender_end(sock):
    warm(sock, False)
    sock.sendall(data(27, MIB))
    os.set_inheritable(sock.fileno(), True)
    child = [sys.executable, __file__, "send", str(sock.fileno()), "28", str(MIB)]
    assert subprocess.run(child, close_fds=False).returncode == 0
    sock.sendall(data(29, MIB))
    same(take(sock, 300_000), data(30, 300_000))
    # By fork and exec, too, and with a closed range between.
    if os.fork() == 0:
        os.closerange(sock.fileno() + 1, 5000)
        os.execv("/bin/sh", ["sh", "-c", f"printf k >&{sock.fileno()}"])
    assert os.wait()[1] == 0
    # What another user starts does not get the state of connections; a program that is not preloaded shows what it has.
    if "LD_PRELOAD" in os.environ:
        for user, expected in ((os.getuid(), 0), (65534, 1)):
            if os.fork() == 0:
                os.setuid(user)
                os.execve("/bin/sh", ["sh", "-c", "ls -l /proc/self/fd | grep -q telegraphos-sockets:cells"], {})
            assert os.waitstatus_to_exitcode(os.wait()[1]) == expected, f"user {user}"


def exec_fails(sock):
    """What cannot be run changes nothing."""
    warm(sock, True)
    sock.sendall(data(31, MIB))
    for attempt in (
        lambda: os.execv("/none", ["none"]),
        lambda: os.execvp("none", ["none"]),
        lambda: os.posix_spawn("/none", ["none"], {}),
        lambda: subprocess.run(["none"], stdin=sock),
    ):
        try:
            attempt()
            raise AssertionError("it was run")
        except FileNotFoundError:
            pass
    same(take(sock, MIB), data(31, MIB))
    sock.sendall(data(32, MIB))
    same(take(sock, MIB), data(32, MIB))


def exec_fails_end(sock):
    warm(sock, False)
    sock.sendall(take(sock, MIB))
    sock.sendall(take(sock, MIB))


def buffers(sock):
    before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    warm(sock, True)
    sock.sendall(data(22, MIB))
    after = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    # The system's own grows with what is sent.
    assert after >= before, f"{before} before, {after} after"
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
    same(take(sock, MIB), data(22, MIB))


ASK_KERNEL = """
import ctypes, os, socket, sys
pid, fd, level, name = map(int, sys.argv[1:])
pidfd_getfd = 438
copy = ctypes.CDLL(None, use_errno=True).syscall(pidfd_getfd, os.pidfd_open(pid), fd, 0)
assert copy >= 0, os.strerror(ctypes.get_errno())
print(socket.socket(fileno=copy).getsockopt(level, name))
"""


def option_of_kernel(sock, level, name):
    """An option as the kernel has it: a program without the preload asks."""
    import ctypes

    pr_set_ptracer, any_process = 0x59616D61, ctypes.c_ulong(-1)
    ctypes.CDLL(None).prctl(pr_set_ptracer, any_process, 0, 0, 0)
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    words = [sys.executable, "-c", ASK_KERNEL, *map(str, (os.getpid(), sock.fileno(), level, name))]
    return int(subprocess.run(words, env=plain, stdout=subprocess.PIPE, check=True).stdout)


def options(sock):
    """Options read as the program has set them, before and after much was sent."""
    keepalive, no_delay = (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY)
    sock.setsockopt(*no_delay, 0)
    warm(sock, True)
    pieces(sock, 300_000, 37)
    for option in (keepalive, no_delay):
        assert sock.getsockopt(*option) == 0, option
        # What is done for the program is not what it sees.
        of_kernel = option_of_kernel(sock, *option)
        assert not EXPECTED or of_kernel == (EXPECTED == "memory"), f"{option}: {of_kernel}"
        for value in (1, 0, 1):
            sock.setsockopt(*option, value)
            assert sock.getsockopt(*option) == value, f"{option}: not {value}"
    # Of the bytes of a record the kernel has one.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 32 << 10)
    pieces(sock, 300_000, 38)
    assert [sock.getsockopt(*option) for option in (keepalive, no_delay)] == [1, 1]
    expect_memory(sock)


def options_end(sock):
    no_delay = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
    keepalive = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for option in (keepalive, no_delay):
        sock.setsockopt(*option, 1)
    warm(sock, False)
    for _ in range(2):
        sock.sendall(take(sock, 300_000))
    for option in (keepalive, no_delay):
        assert sock.getsockopt(*option) == 1, option
        sock.setsockopt(*option, 0)
        assert sock.getsockopt(*option) == 0, option


def buffers_end(sock):
    warm(sock, False)
    sock.sendall(take(sock, MIB))


def late_pass(sock):
    """A connection that goes through memory is not passed: that is refused, and it continues."""
    warm(sock, True)
    warm_more(sock)
    ours, theirs = socket.socketpair()
    try:
        socket.send_fds(ours, [b"x"], [sock.fileno()])
        theirs.close()
        assert EXPECTED != "memory", "passed"
    except OSError as e:
        assert e.errno == errno.EOPNOTSUPP and EXPECTED != "system", e
    sock.sendall(data(23, 100_000))
    same(take(sock, 100_000), data(23, 100_000))


def threads(sock):
    """Several threads write whole records of one size, and one reads them."""
    warm(sock, True)
    lock = threading.Lock()

    def write(letter):
        for _ in range(60):
            with lock:
                sock.sendall(letter * 20_000)

    all = [threading.Thread(target=write, args=(bytes([65 + n]),)) for n in range(4)]
    for thread in all:
        thread.start()
    counts = {}
    for _ in range(240):
        record = take(sock, 20_000)
        assert record == record[:1] * 20_000, "records are mixed"
        counts[record[:1]] = counts.get(record[:1], 0) + 1
    for thread in all:
        thread.join()
    assert sorted(counts.values()) == [60] * 4, counts


@contextlib.contextmanager
def told(sock, *others):
    """Much has been sent, the other node is switched off, and what is done ends well, or by what the system says then,
    or one of others."""
    warm(sock, True)
    warm(sock, True)
    print("warm", flush=True)
    try:
        yield
    except OSError as e:
        assert e.errno in (errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, *others), e


def lost_sending(sock):
    """The other node is switched off: a sender gets an error."""
    with told(sock, errno.EPIPE):
        while True:
            sock.sendall(data(24, 100_000))


def lost_polling(sock):
    """The other node is switched off: a process that waits for room otherwise than in a write is woken, too."""
    with told(sock, errno.EPIPE):
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while True:
            poll.poll()
            try:
                while True:
                    sock.send(data(24, 100_000))
            except BlockingIOError:
                pass


def lost_asking(sock):
    """The other node is switched off: a process that sends little, and waits for an answer, is woken."""
    with told(sock, errno.EPIPE):
        sock.setblocking(False)
        # Something is always under way; there is room for it for longer than this takes.
        while not select.select([sock], [], [], 0.05)[0]:
            sock.send(b"?")
        assert sock.recv(1) == b""


def lost_waiting(sock):
    """The other node is switched off: a process that waits for it is woken."""
    with told(sock):
        assert sock.recv(1) == b""


def lost_end(sock):
    # Twice: the first may be over before the first record.
    warm(sock, False)
    warm(sock, False)
    signal.alarm(0)
    while sock.recv(65536):
        pass


def measured_end(sock):
    """Sends back what it has got whole, so that both do not send at the same time."""
    warm(sock, False)
    while head := sock.recv(4, socket.MSG_WAITALL):
        sock.sendall(take(sock, struct.unpack("!I", head)[0]))


def terminal():
    """A terminal edits lines, echoes them, has a size, and makes a signal of a key."""
    import pty

    child, master = pty.fork()
    if child == 0:
        # What the lines come to. It outlives the signal: what a terminal has said is lost if it ends too early.
        said = "trap 'echo interrupted' INT && echo \"<$line>\" && { read line || read line; }"
        os.execvp("sh", ["sh", "-c", f"tty -s && stty size && read line && {said}"])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    said = b""

    def until(what):
        nonlocal said
        while what not in said:
            assert select.select([master], [], [], 20)[0], said
            said += os.read(master, 1000)

    # One key is taken back.
    os.write(master, b"abx\x7fc\n")
    until(b"<abc>\r\n")
    assert b"33 99\r\n" in said and os.isatty(master), said
    os.write(master, b"\x03")
    until(b"^C")
    until(b"interrupted\r\n")
    os.write(master, b"\n")
    status = os.waitpid(child, 0)[1]
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
    print("ok terminal")


CASES = {
    "blocking": (blocking, blocking_end),
    "small": (small, small_end),
    "select": (exchanging(Select, 2), exchanging(Select, 2)),
    "poll": (exchanging(Poll, 3), exchanging(Poll, 3)),
    "epoll": (exchanging(Epoll, 4), exchanging(Epoll, 4)),
    "once": (exchanging(Once, 5), exchanging(Epoll, 5)),
    "asyncio": (asynchronous, asynchronous_end),
    "vectors": (vectors, small_end),
    "peeking": (peeking, peeking_end),
    "waiting": (waiting, waiting_end),
    "half_close": (half_close, half_close_end),
    "close_at_once": (close_at_once, close_at_once_end),
    "fork": (forking, forking_end),
    "orphan": (orphan, orphan_end),
    "fork_both": (fork_both, fork_both_end),
    "fork_reader_ends": (fork_reader_ends, fork_reader_ends_end),
    "fork_hands_over": (fork_hands_over, fork_hands_over_end),
    "other_user": (other_user, other_user_end),
    "late_user": (late_user, late_user_end),
    "copies": (copies, small_end),
    "file": (file, blocking_end),
    "splice": (splicing, small_end),
    "limits": (limits, small_end),
    "full": (full, full_end),
    "killed": (killed, killed_end),
    "passed": (passed, passed_end),
    "late_pass": (late_pass, small_end),
    "program": (program, program_end),
    "exec": (program_says, exec_cat_end),
    "spawn": (program_says, spawn_end),
    "pipeline": (program_says, pipeline_end),
    "streams": (streams, streams_end),
    "exec_sender": (exec_sender, exec_sender_end),
    "exec_fails": (exec_fails, exec_fails_end),
    "buffers": (buffers, buffers_end),
    "options": (options, options_end),
    "threads": (threads, small_end),
}
# By their names only.
OTHERS = {
    "lost_sending": (lost_sending, lost_end),
    "lost_polling": (lost_polling, lost_end),
    "lost_asking": (lost_asking, lost_end),
    "lost_waiting": (lost_waiting, lost_end),
    "measured": (None, measured_end),
}


def measure(node, port, rounds):
    """Microseconds there and back for some sizes, after much has been sent: the medians."""
    sock = connect(node, port, "measured")
    warm(sock, True)
    for size in (1, 8, 1024, 65536, MIB):
        times, sent = [], data(25, size)
        for _ in range(rounds):
            begun = time.perf_counter()
            sock.sendall(struct.pack("!I", size) + sent)
            same(take(sock, size), sent)
            times.append((time.perf_counter() - begun) * 1e6)
        print(f"{size} bytes: {sorted(times)[rounds // 2]:.0f} us", flush=True)
    sock.close()
    connect(node, port, "stop").close()


def serve(port):
    listener = socket.create_server(("", port), backlog=16)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print("ready", flush=True)
    while True:
        sock, _ = listener.accept()
        # The name alone: what follows is the case's.
        name = sock.recv(16, socket.MSG_WAITALL).decode().strip()
        if name == "stop":
            return
        if os.fork() == 0:
            signal.alarm(PATIENCE)
            listener.close()
            try:
                (CASES | OTHERS)[name][1](sock)
            except BaseException as e:
                print(f"{name}, the end that accepts: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
                sock.close()
                os._exit(1)
            sock.close()
            sys.stdout.flush()
            # With what a program does at its end.
            sys.exit(0)
        sock.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def connect(node, port, name):
    # The first case waits for the other end to begin.
    deadline = time.monotonic() + (30 if name == FIRST else 3)
    while True:
        try:
            sock = socket.create_connection((node, port))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    sock.sendall(name.ljust(16).encode())
    return sock


def main():
    global FIRST
    if sys.argv[1] == "serve":
        return serve(int(sys.argv[2]))
    if sys.argv[1] == "send":
        # What "exec_sender" starts: a descriptor, a seed, a number of bytes.
        return socket.socket(fileno=int(sys.argv[2])).sendall(data(int(sys.argv[3]), int(sys.argv[4])))
    if sys.argv[1] == "measure":
        FIRST = "measured"
        return measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[1] == "terminal":
        return terminal()
    node, port = sys.argv[1], int(sys.argv[2])
    failed = 0
    names = sys.argv[3:] or [*CASES, "stop"]
    FIRST = names[0]
    for name in names:
        if name == "stop":
            connect(node, port, name).close()
            continue
        begun = time.monotonic()
        # Cases that lose their node wait for what the starter of this program does.
        signal.alarm(0 if name.startswith("lost_") else PATIENCE)
        try:
            sock = connect(node, port, name)
            (CASES | OTHERS)[name][0](sock)
            sock.close()
            print(f"ok {name} {time.monotonic() - begun:.2f} s", flush=True)
        except BaseException as e:
            failed += 1
            print(f"not ok {name}: {type(e).__name__}: {e}", flush=True)
        signal.alarm(0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
