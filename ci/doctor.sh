#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Prints what a report of a fault needs to say about a machine: versions, QEMU, KVM, memory, namespaces, the cache, limits.
# Nothing is fetched or booted, and nothing private is in it.
#
#   ci/doctor.sh > doctor.txt
#
# It is `telegraphos doctor` of what is built here or installed, which is built where there is none, with what made it.
# Exit code: that of `telegraphos doctor`; 1 if it cannot be built, with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."

echo "revision        $(git describe --always --dirty 2>/dev/null || echo "unknown: no checkout of git")"
echo "rustc           $(rustc --version 2>/dev/null || echo none)"
for program in "${CARGO_TARGET_DIR:-target}"/{release,debug}/telegraphos "$(command -v telegraphos || true)"; do
    [ -x "$program" ] && exec "$program" doctor
done
echo "building telegraphos, which takes minutes ..." >&2
if ! log=$(cargo build --release --locked --package telegraphos-cluster 2>&1); then
    echo "telegraphos     cannot be built:"
    tail -n 30 <<<"$log"
    exit 1
fi
exec "${CARGO_TARGET_DIR:-target}/release/telegraphos" doctor
