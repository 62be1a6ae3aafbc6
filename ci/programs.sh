#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Unmodified programs of Debian between four guests, over tg0. Node 0's KTAP is on standard output.
#
#   ci/programs.sh                     # everything: needs root, since a root of Debian's packages has several owners
#   ci/programs.sh iperf3_tcp ssh      # only these (see ci/programs/node.sh)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
mkdir "$results/shared"
packages=iperf3+openssh-server+openssh-client+nginx-light+curl+iproute2+procps
telegraphos=${TELEGRAPHOS:-}
if [ -z "$telegraphos" ]; then
	cargo build --manifest-path "$here/../Cargo.toml" --release
	telegraphos=${CARGO_TARGET_DIR:-$here/../target}/release/telegraphos
fi
"$telegraphos" run --nodes 4 --memory 768M --root "debian:trixie+$packages" --user root --timeout 1800 \
	--share "$here/programs:/mnt/programs:ro" --share "$results/shared:/mnt/results" \
	-- sh /mnt/programs/node.sh "$@"
