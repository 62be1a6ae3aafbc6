#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Unmodified programs of Debian between four guests, over tg0, over tg0 under tg-sockets, and, in the same rounds, over
# virtio-net between the same guests. Node 0's KTAP is on standard output; lines with # have what was measured.
#
#   ci/programs.sh                     # everything; an ordinary user needs subordinate ids (docs/boot.md)
#   ci/programs.sh iperf3_tcp ssh      # only these (see ci/programs/node.sh)
#   ROUNDS=1 ci/programs.sh            # one round instead of four
#   KERNEL=newest GENERIC=newest-generic ci/programs.sh    # other kernels; the latter for Soft-RoCE
#   NETWORKS=tg0 ROUNDS=1 KERNEL=~/linux GENERIC=~/linux ci/programs.sh    # a tree with programs.config, tg0 alone
#   MEMORY=2G OPTIONS="--boot-timeout 900" ci/programs.sh  # for `telegraphos run`
set -eu
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
packages=apache2-utils+curl+gcc+ibverbs-providers+iperf3+iproute2+kmod+libc6-dev+libmpich-dev+libopenmpi-dev
packages=$packages+libpython3.13-testsuite+mpich+nfs-common+nfs-kernel-server+nginx-light+openmpi-bin+openssh-client
packages=$packages+openssh-server+perftest+postgresql+procps+python3+rdmacm-utils+redis-server+redis-tools+sockperf
packages=$packages+stress-ng
telegraphos=${TELEGRAPHOS:-}
if [ -z "$telegraphos" ]; then
	cargo build --manifest-path "$here/../Cargo.toml" --release
	telegraphos=${CARGO_TARGET_DIR:-$here/../target}/release/telegraphos
fi
# The other network is a multicast group on the loopback device, of this run alone.
group=239.84.$(($$ / 256 % 256)).$(($$ % 256))
other=dgram,id=other,remote.type=inet,remote.host=$group,remote.port=8484
other=$other,local.type=inet,local.host=127.0.0.1,local.port=8484

# Runs tests in guests with a kernel.
cluster() {
	kernel=$1
	shift
	rm -rf "$results/shared" && mkdir "$results/shared"
	# shellcheck disable=SC2086
	"$telegraphos" run --nodes 4 --memory "${MEMORY:-768M}" --kernel "$kernel" ${OPTIONS:-} \
		--root "debian:trixie+$packages" --user root --timeout 3600 \
		--share "$here/programs:/mnt/programs:ro" --share "$results/shared:/mnt/results" \
		--qemu-arg -netdev --qemu-arg "$other" \
		--qemu-arg -device --qemu-arg virtio-net-pci,netdev=other,romfile=,addr=1b.0 \
		-- env "ROUNDS=${ROUNDS:-4}" "NETWORKS=${NETWORKS:-tg0 sockets virtio}" sh /mnt/programs/node.sh "$@"
}

# Soft-RoCE is in the generic flavour alone.
rxe=0 others=
[ $# -gt 0 ] || set -- ssh iperf3_tcp iperf3_udp iperf3_bidir nginx redis postgres python sockperf stress \
	cpython nfs openmpi mpich rxe
for test; do
	case $test in rxe) rxe=1 ;; *) others="$others $test" ;; esac
done
result=0
# shellcheck disable=SC2086
[ -z "$others" ] || cluster "${KERNEL:-6.12}" $others || result=$?
[ "$rxe" = 0 ] || cluster "${GENERIC:-6.12-generic}" rxe || result=$?
exit $result
