#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# In a guest: unmodified programs of Debian between the nodes, over tg0 and, for comparison, over virtio-net between the
# same guests, in rounds that alternate. Node 0 tests and writes KTAP; the others serve until it has finished. Started
# by ci/programs.sh on every node.
#
# A test is a function t_NAME: it gets a network (tg0 or virtio), uses it, compares what came with what was sent, and
# prints "NAME VALUE UNIT" lines of what it measured. In UNIT a slash says that more is better.
set -u
shared=/mnt/results
here=/mnt/programs
rounds=$ROUNDS
compared=$NETWORKS
nodes=$(grep -c '^10\.84\..* node[0-9]*$' /etc/hosts)
last=$((nodes - 1))

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

# Runs a command at a node, over one connection to it: to log in takes seconds in emulation.
on() {
	to=$1
	shift
	ssh -o ControlMaster=auto -o ControlPath=/run/ssh-%h -o ControlPersist=yes "node$to" "$@"
}

# The other network: QEMU's, with addresses 10.85.0.N and the same MTU. All its devices are made with one address.
virtio() {
	me=$(hostname)
	me=${me#node}
	modprobe virtio_net || return 1
	for device in /sys/class/net/*; do
		case $(readlink "$device/device/driver") in */virtio_net) device=${device##*/}; break ;; esac
	done
	ip link set "$device" name virtio address "$(printf 52:54:00:85:00:%02x "$me")" mtu 9000 &&
		ip address add "10.85.0.$((me + 1))/24" dev virtio && ip link set virtio up
}

# The address of a node in a network.
address() {
	case $1 in
	tg0) echo "10.84.0.$(($2 + 1))" ;;
	virtio) echo "10.85.0.$(($2 + 1))" ;;
	esac
}

seconds_of() {
	begun=$(date +%s%N)
	"$@" || return 1
	took=$(($(date +%s%N) - begun))
	seconds=$((took / 1000000000)).$(printf %03d $((took / 1000000 % 1000)))
}

# Every node as seen from every other; sshd listens on tg0 alone.
t_ssh() {
	[ "$1" = tg0 ] || return 0
	for to in $(seq 0 "$last"); do
		[ "$(ssh "node$to" hostname)" = "node$to" ] || { say "ssh node$to"; return 1; }
	done
	[ "$(ssh node1 ssh "node$last" hostname)" = "node$last" ] || return 1
	seconds_of ssh "node$last" true && echo "login $seconds s"
	head -c 8388608 /dev/urandom >/tmp/sent || return 1
	seconds_of scp -q /tmp/sent "node$last:/tmp/came" || return 1
	echo "scp_8MiB $seconds s"
	[ "$(ssh "node$last" sha256sum /tmp/came | cut -c 1-64)" = "$(sha256sum /tmp/sent | cut -c 1-64)" ]
}

# Sums of what receivers got, in Mbit/s. Each time with a server of its own.
iperf() {
	server=$(address "$1" 1) port=$((5200 + turn))
	shift
	on 1 "rm -f /tmp/iperf3.log; iperf3 -s -1 -D -p $port --logfile /tmp/iperf3.log" || return 1
	until_ok 20 on 1 "grep -q :$(printf %04X "$port") /proc/net/tcp /proc/net/tcp6" || return 1
	iperf3 -c "$server" -p "$port" -t 3 -J "$@" >/tmp/iperf3.json || {
		say "$(grep error /tmp/iperf3.json); the server: $(on 1 tail -n 2 /tmp/iperf3.log)"
		return 1
	}
	# What perl has without any module must do for JSON: the sums at the end.
	perl -0ne '
		my ($end) = /"end":\s*\{(.*)/s or exit 1;
		my $sum = 0;
		while ($end =~ /"sum_received(?:_bidir_reverse)?":\s*\{([^}]*)/g) {
			my ($bytes, $rate) = $1 =~ /"bytes":\s*(\d+).*"bits_per_second":\s*([\d.e+]+)/s or exit 1;
			exit 1 unless $bytes > 0;
			$sum += $rate;
		}
		exit 1 unless $sum > 0;
		printf "received %.0f Mbit/s\n", $sum / 1e6' /tmp/iperf3.json
}

t_iperf3_tcp() { iperf "$1"; }
t_iperf3_udp() { iperf "$1" -u -b 0 -l 8K; }
t_iperf3_bidir() { iperf "$1" --bidir; }

# 1000 files of 1 byte to 64 KiB: all that arrive are compared with what was served.
t_nginx() {
	at=$(address "$1" "$last")
	# One program makes them: two for each file take minutes in emulation.
	on "$last" '[ -e /tmp/sums ] || {
		mkdir -p /var/www/html/t /var/log/nginx /var/lib/nginx && cd /var/www/html/t &&
		perl -e "open R, q(<), q(/dev/urandom) or die; read R, \$pool, 1048576 or die;
			for \$i (0 .. 999) { open F, q(>), \$i or die; print F substr(\$pool, \$i * 977, \$i * 66 + 1); close F or die }" &&
		sha256sum $(seq 0 999) >/tmp/sums && nginx; }' || return 1
	rm -rf /tmp/t && mkdir /tmp/t && cd /tmp/t || return 1
	for i in $(seq 0 999); do
		printf 'url = "http://%s/t/%s"\noutput = "%s"\n' "$at" "$i" "$i"
	done >/tmp/urls
	seconds_of curl -sS --fail -K /tmp/urls || return 1
	echo "1000_files $seconds s"
	on "$last" cat /tmp/sums | sha256sum --quiet -c && [ "$(ls | wc -l)" = 1000 ]
}

# What the benchmark wrote is counted, and 1000 values are compared.
t_redis() {
	at=$(address "$1" "$last")
	on "$last" 'pidof redis-server >/dev/null ||
		redis-server --protected-mode no --save "" --daemonize yes --dir /tmp --logfile /tmp/redis' >/dev/null || return 1
	until_ok 20 redis-cli -h "$at" ping || return 1
	redis-cli -h "$at" flushall >/dev/null || return 1
	seq 1000 | sed 's/.*/set key& value&x&/' | redis-cli -h "$at" >/tmp/set || return 1
	[ "$(grep -c OK /tmp/set)" = 1000 ] || { say "not all values were set"; return 1; }
	seq 1000 | sed 's/.*/get key&/' | redis-cli -h "$at" >/tmp/got || return 1
	seq 1000 | sed 's/.*/value&x&/' | cmp - /tmp/got || return 1
	redis-benchmark -h "$at" -n 3000 -c 10 -t lpush,get --csv >/tmp/redis || return 1
	[ "$(redis-cli -h "$at" llen mylist)" = 3000 ] || { say "not all pushes are there"; return 1; }
	awk -F '"' '$2 == "LPUSH" || $2 == "GET" { printf "%s %.0f requests/s\n", tolower($2), $4 }' /tmp/redis
	redis-benchmark -h "$at" -n 500 -c 1 -t set --csv |
		awk -F '"' '$2 == "SET" { printf "set_one_client_p50 %s ms\n", $10 }'
}

# The kernel's server on the last node, version 4.2, in memory; two clients.
nfs_server='
	[ ! -e /tmp/nfs-serves ] || exit 0
	grep -q nfsd /proc/filesystems || modprobe nfsd || exit 1
	mkdir -p /srv/nfs && mount -t tmpfs tmpfs /srv/nfs && chmod 1777 /srv/nfs || exit 1
	mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd || exit 1
	echo 10 >/proc/fs/nfsd/nfsv4gracetime && echo 10 >/proc/fs/nfsd/nfsv4leasetime
	mkdir -p /var/lib/nfs/v4recovery /run/rpc_pipefs
	exportfs -o rw,fsid=0,no_root_squash,no_subtree_check,insecure "*:/srv/nfs" || exit 1
	rpc.mountd -N 3 && rpc.nfsd -N 3 4 || exit 1
	echo Y >/proc/fs/nfsd/v4_end_grace
	touch /tmp/nfs-serves'
t_nfs() {
	at=$(address "$1" "$last")
	on "$last" "$nfs_server" || { say "the server does not start"; return 1; }
	for client in 0 1; do
		on "$client" "mkdir -p /mnt/nfs && mount -t nfs -o vers=4.2,hard $at:/ /mnt/nfs" || return 1
	done
	nfs_files
	result=$?
	for client in 0 1; do
		on "$client" umount /mnt/nfs || result=1
	done
	return $result
}

nfs_files() {
	rm -rf /mnt/nfs/t && mkdir /mnt/nfs/t && cd /mnt/nfs/t || return 1
	head -c 16777216 /dev/urandom >/tmp/data || return 1
	seconds_of dd if=/tmp/data of=data bs=1M conv=fsync status=none || return 1
	echo "write_16MiB $seconds s"
	seconds_of perl -e 'for (1 .. 100) { open F, q(>), $_ or die; print F "file $_\n" x $_; close F or die }' || return 1
	echo "make_100_files $seconds s"
	sums=$(cd /tmp && sha256sum data | cut -c 1-64)$(cat $(seq 100) | sha256sum)
	# Of the other client, which has nothing in its memory, and of the server.
	for there in "1 /mnt/nfs/t" "$last /srv/nfs/t"; do
		theirs=$(on "${there% *}" "cd ${there#* } && sha256sum data | cut -c 1-64 && cat \$(seq 100) | sha256sum" |
			tr -d '\n')
		[ "$theirs" = "$(echo "$sums" | tr -d '\n')" ] || { say "node${there% *} has other data"; return 1; }
	done
	cd / || return 1
	seconds_of on 1 'echo 3 >/proc/sys/vm/drop_caches; dd if=/mnt/nfs/t/data of=/dev/null bs=1M status=none' || return 1
	echo "read_16MiB $seconds s"
}

# Compiles the program for an MPI where all nodes find it, once.
compile() {
	[ -x "$shared/mpi-$1" ] || "mpicc.$1" -O1 -o "$shared/mpi-$1" "$here/mpi.c"
}

mpi_results() {
	awk '$1 == "RING" { print "ring_hop", $2, "us" } $1 == "ALLTOALL" { print "alltoall_64KiB", $2, "ms" }' /tmp/mpi
	[ "$(grep -c -e '^RING' -e '^ALLTOALL' /tmp/mpi)" = 2 ]
}

# A rank on each node, started by ssh; data over the network that is named.
t_openmpi() {
	compile openmpi || return 1
	hosts=$(seq -s , 0 "$last" | sed 's/[0-9]*/node&/g')
	net=$(address "$1" 0)
	seconds_of mpirun.openmpi --allow-run-as-root --host "$hosts" -np "$nodes" --mca pml ob1 --mca btl tcp,self \
		--mca btl_tcp_if_include "${net%.*}.0/24" "$shared/mpi-openmpi" "$nodes" >/tmp/mpi || return 1
	echo "whole_job $seconds s"
	mpi_results
}

t_mpich() {
	compile mpich || return 1
	hosts=$(seq -s , 0 "$last" | sed 's/[0-9]*/node&/g')
	seconds_of mpiexec.mpich -launcher ssh -hosts "$hosts" -n "$nodes" -genv FI_PROVIDER tcp -genv FI_TCP_IFACE "$1" \
		-genv UCX_TLS tcp,self -genv UCX_NET_DEVICES "$1" "$shared/mpi-mpich" "$nodes" >/tmp/mpi || return 1
	echo "whole_job $seconds s"
	mpi_results
}

# Soft-RoCE over a network device: rping compares what comes back, and ib_write_bw writes into memory of the other node.
t_rxe() {
	at=$(address "$1" 1)
	for node in 0 1; do
		# Built in, they are no modules.
		on "$node" "modprobe -aq rdma_rxe rdma_ucm
			[ -e /sys/class/infiniband/rxe_$1 ] || rdma link add rxe_$1 type rxe netdev $1" || return 1
	done
	on 1 "rping -s -a $at -C 100 -S 4096 >/tmp/rping 2>&1 & sleep 2"
	seconds_of rping -c -a "$at" -C 100 -S 4096 -V >/tmp/rping 2>&1 || { say "$(tail -n 3 /tmp/rping)"; return 1; }
	echo "rping_100_of_4KiB $seconds s"
	# The entry of the table of addresses that is this network's over IPv4.
	# shellcheck disable=SC2046
	gid=$(printf '%02x%02x:%02x%02x' $(address "$1" 0 | tr . ' '))
	index=$(grep -l "$gid" "/sys/class/infiniband/rxe_$1/ports/1/gids/"* | head -n 1)
	index=${index##*/}
	[ -n "$index" ] || { say "rxe_$1 has no address of $1"; return 1; }
	on 1 "ib_write_bw -d rxe_$1 -x $index -F -n 200 -s 65536 >/tmp/write 2>&1 & sleep 2"
	ib_write_bw -d "rxe_$1" -x "$index" -F -n 200 -s 65536 "$at" >/tmp/write 2>&1 ||
		{ say "$(tail -n 3 /tmp/write)"; return 1; }
	awk '$1 == 65536 && $2 == 200 { print "ib_write_bw", $4, "MiB/s"; found = 1 } END { exit !found }' /tmp/write
}

# One test over one network: what it measured goes to a file, each line behind the network.
once() {
	(cd / && "t_$1" "$2") >"/tmp/$1.out"
	code=$?
	sed "s/^/$2 /" "/tmp/$1.out" >>"/tmp/$1.all"
	return $code
}

# Medians, and the ratio of each round: above 1 is in favour of tg0.
table() {
	awk '
		{ value[$1, $2, ++count[$1, $2]] = $3; unit[$2] = $4 }
		!($2 in seen) { seen[$2] = 1; order[++names] = $2 }
		function median(net, name,   n, i, j, v, t) {
			n = count[net, name]
			for (i = 1; i <= n; i++) v[i] = value[net, name, i] + 0
			for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
			return v[int((n + 1) / 2)]
		}
		END {
			for (k = 1; k <= names; k++) {
				name = order[k]
				line = sprintf("# %-20s tg0 %s", name, median("tg0", name))
				n = count["virtio", name]
				if (n) line = line sprintf(" virtio %s", median("virtio", name))
				line = line " " unit[name]
				low = high = 0
				for (i = 1; i <= n && i <= count["tg0", name]; i++) {
					a = value["tg0", name, i]; b = value["virtio", name, i]
					if (a <= 0 || b <= 0) continue
					ratio = unit[name] ~ /\// ? a / b : b / a
					if (!low || ratio < low) low = ratio
					if (ratio > high) high = ratio
				}
				if (low) line = line sprintf(", %.2f to %.2f times as good", low, high)
				print line
			}
		}' "/tmp/$1.all"
}

run_all() {
	count=0 bad=0 turn=0
	echo KTAP version 1
	echo "1..$(echo "$*" | wc -w)"
	for test; do
		count=$((count + 1)) start=$(date +%s) code=0 round=0
		: >"/tmp/$test.all"
		while [ "$round" -lt "$rounds" ] && [ "$code" = 0 ]; do
			round=$((round + 1))
			# The first of a round pays for what emulation has not translated yet: they take turns.
			networks=$compared
			[ $((round % 2)) = 1 ] || networks=$(echo "$compared" | awk '{ for (i = NF; i > 0; i--) print $i }')
			for network in $networks; do
				turn=$((turn + 1))
				once "$test" "$network" || { code=1; say "$test fails over $network, round $round"; break; }
			done
		done
		table "$test"
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
case $compared in *virtio*) virtio || { say "no virtio-net"; exit 3; } ;; esac
if [ "$(hostname)" != node0 ]; then
	until_ok 3600 test -e "$shared/done"
	exit
fi
n=1
while [ "$n" -lt "$nodes" ]; do
	until_ok 60 on "$n" true || exit 3
	n=$((n + 1))
done
run_all "$@"
