# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs CPython's own tests of sockets: `cpython.py NAMES`, and then those that passed are written to the file NAMES,
# one a line. With a second file, `cpython.py NAMES BEFORE`, those tests of BEFORE that have not passed are tried once
# more, alone, and printed if they fail again. What each module took goes to the standard error.
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

# Of asyncio's, those that use sockets.
MODULES = ["test_socket", "test_selectors", "test_socketserver"] + [
    f"test.test_asyncio.test_{part}" for part in ("sock_lowlevel", "streams", "sendfile", "server")
]
# Connections between this machine and itself by VSOCK: where there is no such way, `accept` waits for ever.
IGNORED = "*VSOCK*"
REPORT = "/tmp/cpython.xml"


def passed(module, arguments=()):
    """The names of the tests of a module that passed."""
    run = [sys.executable, "-m", "test", "-u", "network", "--timeout", "300", "--ignore", IGNORED]
    run += ["--junit-xml", REPORT, module, *arguments]
    begun = time.monotonic()
    with open("/tmp/cpython.log", "a") as log:
        subprocess.run(["rm", "-f", REPORT], check=True)
        subprocess.run(run, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
    try:
        cases = list(ElementTree.parse(REPORT).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        # It came to no end.
        cases = []
    bad = ("failure", "error", "skipped")
    names = {case.get("name") for case in cases if not any(case.findall(kind) for kind in bad)}
    print(f"# {module}: {len(names)} passed in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return names


names = set().union(*(passed(module) for module in MODULES))
if len(sys.argv) > 2:
    with open(sys.argv[2]) as file:
        before = set(file.read().split("\n")) - {""}
    for name in sorted(before - names):
        # "test.test_socket.Class.method": its module, and the test in it.
        module = next((module for module in MODULES if f".{module}." in f".{name}."), None)
        if module and name in passed(module, ["-m", name]):
            names.add(name)
        else:
            print(name)
with open(sys.argv[1], "w") as file:
    file.writelines(f"{name}\n" for name in sorted(names))
