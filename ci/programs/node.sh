#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# In a guest: unmodified programs of Debian between the nodes, over tg0. Node 0 tests and writes KTAP; the others serve
# until it has finished. Started by ci/programs.sh on every node.
set -u
shared=/mnt/results
tests='ssh iperf3_tcp iperf3_udp iperf3_bidir nginx'
nodes=$(grep -c '^10\.84\..* node[0-9]*$' /etc/hosts)
last=node$((nodes - 1))

say() { echo "# $*" >&2; }

# Waits until a command succeeds.
until_ok() {
	limit=$1
	shift
	while ! "$@" >/dev/null 2>&1; do
		limit=$((limit - 1))
		[ "$limit" -gt 0 ] || { say "did not succeed in time: $*"; return 1; }
		sleep 1
	done
}

# The key of all nodes, and sshd.
keys() {
	mkdir -p -m 700 /root/.ssh
	if [ "$(hostname)" = node0 ]; then
		ssh-keygen -q -t ed25519 -N '' -f "$shared/key.part" && mv "$shared/key.part.pub" "$shared/key.pub" &&
			mv "$shared/key.part" "$shared/key" || return 1
	fi
	until_ok 120 test -s "$shared/key" || return 1
	cp "$shared/key" /root/.ssh/id_ed25519 && cp "$shared/key.pub" /root/.ssh/authorized_keys || return 1
	chmod 600 /root/.ssh/*
	printf 'Host node*\n\tStrictHostKeyChecking accept-new\n\tConnectTimeout 60\n\tLogLevel ERROR\n' >/root/.ssh/config
	mkdir -p /run/sshd && ssh-keygen -q -A
	/usr/sbin/sshd
}

t_ssh() {
	for to in $(seq 0 $((nodes - 1))); do
		[ "$(ssh "node$to" hostname)" = "node$to" ] || { say "ssh node$to"; return 1; }
	done
	[ "$(ssh node1 ssh "$last" hostname)" = "$last" ]
}

iperf() {
	ssh node1 'pidof iperf3 >/dev/null || iperf3 -s -D' || return 1
	until_ok 20 iperf3 -c node1 -n 1K || return 1
	iperf3 -c node1 -t 5 -f m "$@" | tee /tmp/iperf3 | grep -E 'sender|receiver' | sed 's/^/# /'
	grep -q receiver /tmp/iperf3
}

t_iperf3_tcp() { iperf; }
t_iperf3_udp() { iperf -u -b 50M; }
t_iperf3_bidir() { iperf --bidir; }

# 1000 files of 1 byte to 64 KiB: all that arrive are compared with what was served.
t_nginx() {
	ssh "$last" 'mkdir -p /var/www/html/t /var/log/nginx /var/lib/nginx && cd /var/www/html/t &&
		head -c 1048576 /dev/urandom >/tmp/pool && i=0 &&
		while [ $i -lt 1000 ]; do tail -c +$((i * 977 + 1)) /tmp/pool | head -c $((i * 66 + 1)) >$i; i=$((i + 1)); done &&
		sha256sum $(seq 0 999) >/tmp/sums && nginx' || return 1
	rm -rf /tmp/t && mkdir /tmp/t && cd /tmp/t || return 1
	for i in $(seq 0 999); do printf 'url = "http://%s/t/%s"\noutput = "%s"\n' "$last" "$i" "$i"; done >/tmp/urls
	curl -sS --fail -K /tmp/urls || return 1
	ssh "$last" cat /tmp/sums | sha256sum --quiet -c && [ "$(ls | wc -l)" = 1000 ]
}

run_all() {
	count=0 bad=0
	echo KTAP version 1
	echo "1..$(echo "$*" | wc -w)"
	for test; do
		count=$((count + 1)) start=$(date +%s)
		"t_$test"
		code=$?
		echo "# $test took $(($(date +%s) - start)) s"
		if [ "$code" = 0 ]; then
			echo "ok $count $test"
		else
			echo "not ok $count $test"
			bad=1
		fi
	done
	return "$bad"
}

# However node 0 ends, the others do.
[ "$(hostname)" != node0 ] || trap 'touch "$shared/done"' EXIT
keys || exit 3
if [ "$(hostname)" != node0 ]; then
	until_ok 3600 test -e "$shared/done"
	exit
fi
n=1
while [ "$n" -lt "$nodes" ]; do
	until_ok 120 ssh "node$n" true || exit 3
	n=$((n + 1))
done
# shellcheck disable=SC2086
run_all ${*:-$tests}
