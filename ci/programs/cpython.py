# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs CPython's own tests of sockets: `cpython.py NAMES`, and then those that passed are written to the file NAMES,
# one a line. With a second file, `cpython.py NAMES BEFORE`, those tests of BEFORE that have not passed are tried once
# more, alone, and printed if they fail again.
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

MODULES = ["test_socket", "test_selectors", "test_socketserver", "test_asyncio"]
REPORT = "/tmp/cpython.xml"


def passed(arguments):
    """The names of the tests that passed."""
    run = [sys.executable, "-m", "test", "--timeout", "600", "--junit-xml", REPORT]
    with open("/tmp/cpython.log", "a") as log:
        subprocess.run(run + arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
    try:
        cases = ElementTree.parse(REPORT).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        return set()
    bad = ("failure", "error", "skipped")
    return {case.get("name") for case in cases if not any(case.findall(kind) for kind in bad)}


names = passed(MODULES)
if len(sys.argv) > 2:
    with open(sys.argv[2]) as file:
        before = set(file.read().split("\n")) - {""}
    for name in sorted(before - names):
        # "test.test_socket.Class.method": its module, and the test in it.
        module = next((module for module in MODULES if f".{module}." in f".{name}."), None)
        if module and name in passed([module, "-m", name]):
            names.add(name)
        else:
            print(name)
with open(sys.argv[1], "w") as file:
    file.writelines(f"{name}\n" for name in sorted(names))
