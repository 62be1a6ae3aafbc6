#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Boots guests, runs tg-selftest in all of them at once, and leaves one KTAP file for each node and all logs.
#
#   ci/selftest.sh [NODES [KERNEL [DIRECTORY]]]     by default: 2 6.12 selftest-results
#
# Exit code: 0, or that of `telegraphos run` (the first guest's that failed; 125 if the cluster could not be set up).
set -euo pipefail

nodes=${1:-2}
kernel=${2:-6.12}
results=${3:-selftest-results}

mkdir -p "$results"
results=$(cd "$results" && pwd)
rm -f "$results"/node*.ktap
cd "$(dirname "$0")/.."

code=0
cargo run --release -- run --nodes "$nodes" --kernel "$kernel" --log-dir "$results/logs" --lab -- tg-selftest |
    tee "$results/output" || code=$?
# Each line of output begins with the node's number in brackets.
for ((node = 0; node < nodes; node++)); do
    sed -n "s/^\[$node\] //p" "$results/output" >"$results/node$node.ktap"
done
exit "$code"
