#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# In a guest: unmodified programs of Debian between the nodes, over tg0, over tg0 under tg-sockets, whose long writes go
# through memory, and, for comparison, over virtio-net between the same guests, in rounds that alternate. Node 0 tests
# and writes KTAP; the others serve until it has finished. Started by ci/programs.sh on every node.
#
# A test is a function t_NAME: it gets a network (tg0, sockets or virtio), uses it, compares what came with what was
# sent, and prints "NAME VALUE UNIT" lines of what it measured. In UNIT a slash says that more is better.
set -u
shared=/mnt/results
here=/mnt/programs
rounds=$ROUNDS
compared=$NETWORKS
# Where processes under tg-sockets say what became of their connections, at each node.
log=/run/sockets.log
sockets="env TELEGRAPHOS_SOCKETS_LOG=$log $(command -v tg-sockets)"
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
	tg0 | sockets) echo "10.84.0.$(($2 + 1))" ;;
	virtio) echo "10.85.0.$(($2 + 1))" ;;
	esac
}

# The programs of a test that send much, and are to do so through memory. Connections of sshd are used by processes of two
# users, and stay the system's.
senders() {
	case $1 in
	iperf3_tcp | iperf3_bidir) echo iperf3 ;;
	nginx) echo nginx ;;
	redis) echo redis-server redis-benchmark ;;
	postgres) echo postgres ;;
	python) echo python3 ;;
	sockperf) echo sockperf ;;
	openmpi) echo mpi-openmpi ;;
	mpich) echo mpi-mpich ;;
	esac
}

# How many directions of connections a test's senders sent through memory, as they say; none of them has had none. The
# logs begin anew.
through_memory() {
	for node in $(seq 0 "$last"); do
		on "$node" "cat $log; : >$log"
	done >/tmp/said
	for sender in $(senders "$1"); do
		directions=$(grep -c "^telegraphos: $sender [0-9]*: .*through the memory of node" /tmp/said)
		say "$sender: $directions directions through memory"
		[ "$directions" -gt 0 ] || { say "$(grep "^telegraphos: $sender " /tmp/said | tail -n 3)"; return 1; }
	done
}

# What programs are run with in a network, perhaps with options of tg-sockets, and the port of a server of that network's
# own.
with() {
	network=$1
	shift
	[ "$network" != sockets ] || echo "$sockets $*"
}
port() { if [ "$1" = sockets ]; then echo "$(($2 + 1))"; else echo "$2"; fi; }

seconds_of() {
	begun=$(date +%s%N)
	"$@" || return 1
	took=$(($(date +%s%N) - begun))
	seconds=$((took / 1000000000)).$(printf %03d $((took / 1000000 % 1000)))
}

# Every node as seen from every other; the images' sshd listens on tg0 alone, so the others are of their own.
t_ssh() {
	if [ "$1" != tg0 ]; then
		at=$(address "$1" "$last") port=$(port "$1" 2222) with=$(with "$1") also=
		[ "$1" != virtio ] || also="-o ListenAddress=$at"
		on "$last" "[ -e /run/sshd-$1.pid ] || $with /usr/sbin/sshd -p $port $also \
			-f /run/telegraphos-ssh/sshd_config -o PidFile=/run/sshd-$1.pid" || return 1
		until_ok 20 on "$last" test -e "/run/sshd-$1.pid" || return 1
		# The same key, at another place.
		files_by_ssh -o "HostKeyAlias=node$last" -o "HostName=$at" -o "Port=$port"
		return
	fi
	for to in $(seq 0 "$last"); do
		[ "$(ssh "node$to" hostname)" = "node$to" ] || { say "ssh node$to"; return 1; }
	done
	[ "$(ssh node1 ssh "node$last" hostname)" = "node$last" ] || return 1
	with='' files_by_ssh
}

# A login, and a file there and back: run with $with, and with options of ssh's.
# shellcheck disable=SC2086
files_by_ssh() {
	head -c 16777216 /dev/urandom >/tmp/sent || return 1
	seconds_of $with ssh "$@" "node$last" true && echo "login $seconds s"
	seconds_of $with scp "$@" -q /tmp/sent "node$last:/tmp/came" || return 1
	echo "scp_16MiB $seconds s"
	[ "$(ssh "node$last" sha256sum /tmp/came | cut -c 1-64)" = "$(sha256sum /tmp/sent | cut -c 1-64)" ] || return 1
	$with scp "$@" -q "node$last:/tmp/came" /tmp/back && cmp /tmp/sent /tmp/back
}

# Sums of what receivers got, in Mbit/s. Each time with a server of its own.
iperf() {
	server=$(address "$1" 1) port=$((5200 + turn)) with=$(with "$1")
	shift
	on 1 "rm -f /tmp/iperf3.log; $with iperf3 -s -1 -D -p $port --logfile /tmp/iperf3.log" || return 1
	until_ok 20 on 1 "grep -q :$(printf %04X "$port") /proc/net/tcp /proc/net/tcp6" || return 1
	# shellcheck disable=SC2086
	$with iperf3 -c "$server" -p "$port" -t 3 -J "$@" >/tmp/iperf3.json || {
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
t_iperf3_udp() { [ "$1" = sockets ] || iperf "$1" -u -b 0 -l 8K; }
t_iperf3_bidir() { iperf "$1" --bidir; }

# 1000 files of 1 byte to 64 KiB: all that arrive are compared with what was served.
t_nginx() {
	at=$(address "$1" "$last"):$(port "$1" 80)
	# One program makes them: two for each file take minutes in emulation.
	on "$last" '[ -e /tmp/sums ] || {
		mkdir -p /var/www/html/t /var/log/nginx /var/lib/nginx && cd /var/www/html/t &&
		perl -e "open R, q(<), q(/dev/urandom) or die; read R, \$pool, 1048576 or die;
			for \$i (0 .. 999) { open F, q(>), \$i or die; print F substr(\$pool, \$i * 977, \$i * 66 + 1); close F or die }" &&
		sha256sum $(seq 0 999) >/tmp/sums && nginx; }' || return 1
	[ "$1" != sockets ] || on "$last" "[ -e /run/nginx-sockets.pid ] || {
		sed 's/80 default_server/81 default_server/' /etc/nginx/sites-enabled/default >/tmp/site &&
		sed 's,sites-enabled/\*,/tmp/site,; s,/run/nginx.pid,/run/nginx-sockets.pid,; s,/etc/nginx//tmp,/tmp,' \
			/etc/nginx/nginx.conf >/tmp/nginx.conf &&
		$sockets nginx -c /tmp/nginx.conf; }" || return 1
	rm -rf /tmp/t && mkdir /tmp/t && cd /tmp/t || return 1
	for i in $(seq 0 999); do
		printf 'url = "http://%s/t/%s"\noutput = "%s"\n' "$at" "$i" "$i"
	done >/tmp/urls
	# shellcheck disable=SC2046
	seconds_of $(with "$1") curl -sS --fail -K /tmp/urls || return 1
	echo "1000_files $seconds s"
	on "$last" cat /tmp/sums | sha256sum --quiet -c && [ "$(ls | wc -l)" = 1000 ] || return 1
	# One of 64 KiB, which is checked by its length.
	# shellcheck disable=SC2046
	$(with "$1") ab -q -k -n 500 -c 10 "http://$at/t/992" >/tmp/ab 2>&1 || { say "$(tail -n 3 /tmp/ab)"; return 1; }
	grep -q '^Complete requests: *500$' /tmp/ab && grep -q '^Failed requests: *0$' /tmp/ab || return 1
	awk '/^Requests per second/ { print "ab_10_clients", $4, "requests/s" }' /tmp/ab
}

# What the benchmark wrote is counted, and 1000 values are compared.
# shellcheck disable=SC2086
t_redis() {
	at=$(address "$1" "$last") port=$(port "$1" 6379) with=$(with "$1")
	on "$last" "redis-cli -p $port ping >/dev/null 2>&1 || $with redis-server --protected-mode no --save '' \
		--daemonize yes --dir /tmp --logfile /tmp/redis --port $port" >/dev/null || return 1
	cli="$with redis-cli -h $at -p $port" bench="$with redis-benchmark -h $at -p $port"
	until_ok 20 $cli ping || return 1
	$cli flushall >/dev/null || return 1
	seq 1000 | sed 's/.*/set key& value&x&/' | $cli >/tmp/set || return 1
	[ "$(grep -c OK /tmp/set)" = 1000 ] || { say "not all values were set"; return 1; }
	seq 1000 | sed 's/.*/get key&/' | $cli >/tmp/got || return 1
	seq 1000 | sed 's/.*/value&x&/' | cmp - /tmp/got || return 1
	$bench -n 3000 -c 10 -t lpush,get --csv >/tmp/redis || return 1
	[ "$($cli llen mylist)" = 3000 ] || { say "not all pushes are there"; return 1; }
	awk -F '"' '$2 == "LPUSH" || $2 == "GET" { printf "%s %.0f requests/s\n", tolower($2), $4 }' /tmp/redis
	$bench -n 500 -c 1 -t set --csv |
		awk -F '"' '$2 == "SET" { printf "set_one_client_p50 %s ms\n", $10 }'
	# Values that are long enough to go through memory.
	$bench -n 300 -c 2 -d 131072 -t set,get --csv |
		awk -F '"' '$2 == "SET" || $2 == "GET" { printf "%s_128KiB %.0f requests/s\n", tolower($2), $4 }'
}

# A database in memory: each client's transactions are counted, and the sums of its tables agree.
t_postgres() {
	at=$(address "$1" "$last") port=$(port "$1" 5432) with=$(with "$1")
	bin=$(ls -d /usr/lib/postgresql/*/bin)
	on "$last" "[ -e /tmp/postgres-$port ] || {
		mkdir -p /dev/shm/db-$port /run/postgresql && chown postgres /dev/shm/db-$port /run/postgresql &&
		su postgres -s /bin/sh -c '$bin/initdb -A trust -N -D /dev/shm/db-$port' >/dev/null &&
		echo 'host all all 10.84.0.0/15 trust' >>/dev/shm/db-$port/pg_hba.conf &&
		su postgres -s /bin/sh -c '$with $bin/pg_ctl -w -t 120 -D /dev/shm/db-$port -l /tmp/postgres-$port.log \
			-o \"-h 0.0.0.0 -p $port -F\" start' >/dev/null && touch /tmp/postgres-$port; }" || return 1
	db="-h $at -p $port -U postgres"
	# shellcheck disable=SC2086
	$with pgbench $db -i -q postgres >/tmp/pgbench 2>&1 || { say "$(tail -n 3 /tmp/pgbench)"; return 1; }
	# shellcheck disable=SC2086
	$with pgbench $db -c 4 -t 25 -n postgres >/tmp/pgbench 2>&1 || { say "$(tail -n 3 /tmp/pgbench)"; return 1; }
	grep -q 'actually processed: 100/100' /tmp/pgbench || { say "not all transactions"; return 1; }
	awk '/^tps/ { printf "pgbench %.1f transactions/s\n", $3 }' /tmp/pgbench
	sums='select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)'
	# A long answer, which goes through memory.
	# shellcheck disable=SC2086
	seconds_of $with psql $db -qAt -c 'copy pgbench_accounts to stdout' -o /tmp/accounts postgres || return 1
	echo "copy_100000_rows $seconds s"
	# shellcheck disable=SC2086
	[ "$(wc -l </tmp/accounts)" = 100000 ] && [ "$($with psql $db -qAt -c "$sums" postgres)" = t ]
}

# A file of http.server's, and lines that asyncio echoes to 20 connections at once.
t_python() {
	at=$(address "$1" "$last") port=$(port "$1" 8000) with=$(with "$1")
	on "$last" "[ -e /tmp/python-$port ] || { mkdir -p /tmp/www && cd /tmp/www &&
		{ [ -e data ] || head -c 16777216 /dev/urandom >data; } &&
		{ $with python3 -m http.server $port >/tmp/http.log 2>&1 &
		  $with python3 $here/echo.py serve $((port + 100)) >/tmp/echo.log 2>&1 & touch /tmp/python-$port; } }" || return 1
	until_ok 60 curl -sf "http://$at:$port/" || return 1
	seconds_of $with curl -sf -o /tmp/data "http://$at:$port/data" || return 1
	echo "get_16MiB $seconds s"
	[ "$(on "$last" sha256sum /tmp/www/data | cut -c 1-64)" = "$(sha256sum /tmp/data | cut -c 1-64)" ] || return 1
	# shellcheck disable=SC2086
	seconds_of $with python3 "$here/echo.py" ask "$at" "$((port + 100))" || return 1
	echo "echo_20_connections $seconds s"
}

# Short messages to and fro, and a stream of long ones: sockperf counts what is lost, out of order or twice.
t_sockperf() {
	at=$(address "$1" 1) port=$((5300 + turn)) with=$(with "$1")
	on 1 "$with sockperf server --tcp -i 0.0.0.0 -p $port >/tmp/sockperf.log 2>&1 & sleep 3"
	for size in 14 65000; do
		# shellcheck disable=SC2086
		$with sockperf ping-pong --tcp -i "$at" -p "$port" -m "$size" -t 5 >/tmp/sockperf 2>&1 ||
			{ say "$(tail -n 3 /tmp/sockperf)"; return 1; }
		sed 's/\x1b\[[0-9;]*m//g' /tmp/sockperf | awk -v size="$size" '
			/dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0/ { right = 1 }
			/percentile 50/ { print "pingpong_" size "_p50", $NF / 1000, "ms" }
			END { exit !right }' || return 1
	done
	on 1 pkill -f "'[s]ockperf server'"
	return 0
}

# Stressors of sockets of all kinds, within a node: they check what they transfer.
t_stress() {
	[ "$1" != virtio ] || return 0
	# shellcheck disable=SC2046
	seconds_of $(with "$1") stress-ng --sock 1 --sockmany 1 --sockpair 1 --sockfd 1 --sockabuse 1 --epoll 1 --poll 1 \
		--sendfile 1 --splice 1 --verify --no-rand-seed -t 10 >/tmp/stress 2>&1 || { say "$(tail -n 5 /tmp/stress)"; return 1; }
	echo "stressors $seconds s"
}

# CPython's own tests: what passes without tg-sockets passes with it.
t_cpython() {
	case $1 in
	tg0) seconds_of python3 "$here/cpython.py" /tmp/cpython.tg0 || return 1 ;;
	sockets)
		[ -e /tmp/cpython.tg0 ] || python3 "$here/cpython.py" /tmp/cpython.tg0
		# shellcheck disable=SC2046
		seconds_of $(with "$1") python3 "$here/cpython.py" /tmp/cpython.sockets /tmp/cpython.tg0 >/tmp/cpython.lost || return 1
		[ ! -s /tmp/cpython.lost ] || { say "$(cat /tmp/cpython.lost)"; return 1; }
		;;
	virtio) return 0 ;;
	esac
	passed=$(wc -l <"/tmp/cpython.$1")
	say "$passed tests of CPython pass over $1"
	[ "$passed" -gt 500 ] && echo "cpython_tests $seconds s"
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
	# It is the kernel's.
	[ "$1" != sockets ] || return 0
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
	# shellcheck disable=SC2046
	seconds_of mpirun.openmpi --allow-run-as-root --host "$hosts" -np "$nodes" --mca pml ob1 --mca btl tcp,self \
		--mca btl_tcp_if_include "${net%.*}.0/24" $(with "$1" -a 65536) "$shared/mpi-openmpi" "$nodes" >/tmp/mpi || return 1
	echo "whole_job $seconds s"
	mpi_results
}

t_mpich() {
	compile mpich || return 1
	hosts=$(seq -s , 0 "$last" | sed 's/[0-9]*/node&/g')
	device=$1
	[ "$1" != sockets ] || device=tg0
	# shellcheck disable=SC2046
	seconds_of mpiexec.mpich -launcher ssh -hosts "$hosts" -n "$nodes" -genv FI_PROVIDER tcp -genv FI_TCP_IFACE "$device" \
		-genv UCX_TLS tcp,self -genv UCX_NET_DEVICES "$device" $(with "$1" -a 65536) "$shared/mpi-mpich" "$nodes" >/tmp/mpi || return 1
	echo "whole_job $seconds s"
	mpi_results
}

# Soft-RoCE over a network device: rping compares what comes back, and ib_write_bw writes into memory of the other node.
t_rxe() {
	[ "$1" != sockets ] || return 0
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
	[ "$2" != sockets ] || [ "$code" != 0 ] || through_memory "$1" || code=1
	sed "s/^/$2 /" "/tmp/$1.out" >>"/tmp/$1.all"
	return $code
}

# Medians, and the ratio of each round: of tg0 to virtio-net, and of tg-sockets to tg0. Above 1 is in favour of the first.
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
		function ratios(net, over, name,   i, a, b, ratio, low, high) {
			for (i = 1; i <= count[net, name] && i <= count[over, name]; i++) {
				a = value[net, name, i]; b = value[over, name, i]
				if (a <= 0 || b <= 0) continue
				ratio = unit[name] ~ /\// ? a / b : b / a
				if (!low || ratio < low) low = ratio
				if (ratio > high) high = ratio
			}
			return low ? sprintf(", %s %.2f to %.2f times as good as %s", net, low, high, over) : ""
		}
		END {
			nets = split("virtio tg0 sockets", net, " ")
			for (k = 1; k <= names; k++) {
				name = order[k]
				line = sprintf("# %-20s", name)
				for (i = 1; i <= nets; i++) if (count[net[i], name]) line = line sprintf(" %s %s", net[i], median(net[i], name))
				print line " " unit[name] ratios("tg0", "virtio", name) ratios("sockets", "tg0", name)
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

# All users' processes write to it, and those of servers that become another user open the board.
: >"$log" && chmod 666 "$log"
for user in postgres www-data; do
	usermod -aG telegraphos "$user"
done
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
