#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Attaches boards to machines that others start, as `telegraphos-hib --print` says: two domains of libvirt, one of which
# gets its board while it runs, and two machines of virtme-ng. Debian's packages of all of them are unpacked into a
# root of their own, so nothing is installed. In each pair of guests tg-selftest stores from one to the other.
#
#   ci/starters.sh [--profile PROFILE] [--kernel TREE] [packages|units|libvirt|virtme-ng]...      dev, all
#
# In that root our own packages (ci/packaging/build.sh) are made and installed as a user would, so programs and driver are
# theirs: DKMS builds the driver for the kernel that virtme-ng boots. At the end they are removed. `packages` is only
# that. `units` boots a guest from that root with its systemd, installs the packages there, and uses the units. With
# --kernel the guests of libvirt and virtme-ng run the kernel built in TREE (see ci/kernel.sh) and a driver for it.
#
# Needs root: the programs run in a chroot, with mounts and processes of its own, of which nothing is left.
set -euo pipefail

suite=trixie-backports
packages=busybox-static+debhelper+dh-dkms+dkms+dpkg-dev+gcc+kmod+libc6-dev+libvirt-clients+libvirt-daemon+libvirt-daemon-driver-qemu+libxml2-utils
packages+=+linux-headers-cloud-amd64+linux-image-cloud-amd64+make+qemu-system-x86+systemd-sysv+virtiofsd+virtme-ng
# What both guests of a pair run.
selftest='tg-selftest --nodes 2 --only remote-write/ --patience 300'
all=(packages units libvirt virtme-ng)
programs=(telegraphos telegraphos-fabric telegraphos-hib telegraphos-host)

# Outside: makes the root and enters a copy of it, and boots a guest from it.
outside() {
    local source target cache kernel guest root part inside=() units=
    source=$(cd "$(dirname "$0")/.." && pwd)
    cd "$source"
    [ "$(id -u)" = 0 ] || { echo "ci/starters.sh needs root: it enters a root of Debian's packages" >&2; exit 2; }
    for part in "$@"; do
        [ "$part" = units ] && units=yes || inside+=("$part")
    done
    target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
    ci/packaging/build.sh --profile "$profile" --stage "$target/packages"
    rm -f "$target"/packages/*.deb
    cargo build --quiet -p telegraphos-guest-tests --bin tg
    cargo build --quiet -p telegraphos-images --example prepare
    cache=${TELEGRAPHOS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/telegraphos}
    { read -r root; } < <("$target/debug/examples/prepare" root "debian:$suite+$packages")
    { read -r kernel; read -r guest; } < <("$target/debug/examples/prepare" "${tree:-6.12}" | grep "^/")
    kernel=${kernel/#"$cache"//cache} guest=${guest/#"$cache"//cache}
    [ -z "$tree" ] || kernel=${kernel/#"$tree"//tree}
    export STARTERS_SOURCE=$source STARTERS_TARGET=$target STARTERS_CACHE=$cache STARTERS_TREE=$tree
    # shellcheck disable=SC2016
    unshare --mount --propagation private --pid --fork --kill-child bash -euc '
        lower=$1; shift
        at=$(mktemp -d)
        mount -t tmpfs tmpfs "$at"
        trap "umount -l $at; rmdir $at" EXIT
        mkdir "$at"/{upper,work,root}
        root=$at/root
        mount -t overlay overlay -o "lowerdir=$lower,upperdir=$at/upper,workdir=$at/work" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs tmpfs "$root/run"
        mkdir -p "$root"/{source,target,cache,packages} "$root/run/lock"
        mount --bind -o ro "$STARTERS_SOURCE" "$root/source"
        mount --bind -o ro "$STARTERS_TARGET" "$root/target"
        mount --bind -o ro "$STARTERS_CACHE" "$root/cache"
        mount --bind "$STARTERS_TARGET/packages" "$root/packages"
        if [ -n "$STARTERS_TREE" ]; then
            # virtme-ng writes into the tree.
            mkdir "$root/tree" "$at"/{tree,tree.work}
            mount -t overlay overlay -o "lowerdir=$STARTERS_TREE,upperdir=$at/tree,workdir=$at/tree.work" "$root/tree"
        fi
        chroot "$root" env -i HOME=/root LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            bash /source/ci/starters.sh --inside "$@"
    ' enter "$root" "$kernel" "$guest" ${inside[@]+"${inside[@]}"}
    if [ -n "$units" ]; then
        echo "=== units"
        cargo build --quiet -p telegraphos-cluster -p telegraphos-host
        "$target/debug/telegraphos" run --nodes 1 --cpus 2 --memory 1G --timeout 900 --net none \
            --root "debian:$suite+$packages" --append telegraphos.init=/sbin/init --user root \
            --share "$source/ci:/mnt/ci:ro" --share "$target/packages:/mnt/packages:ro" \
            -- bash /mnt/ci/starters.sh --guest
    fi
}

fail() {
    echo "FAILED: $*" >&2
    tail -n 40 /tmp/*.log >&2 || true
    exit 1
}

# Waits until a command succeeds.
await() {
    local what=$1 seconds=$2
    shift 2
    for _ in $(seq $((seconds * 2))); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    fail "$what: not within $seconds s"
}

# A fabric and two boards, whose text for a starter is in board0.txt and board1.txt.
boards() {
    local starter=$1 node
    cd "$(mktemp -d)"
    telegraphos-fabric --listen "$PWD/fabric.sock" 2>/tmp/fabric.log &
    started=($!)
    await "the fabric" 10 test -S fabric.sock
    for node in 0 1; do
        telegraphos-hib --socket "$PWD/board$node.sock" --node $node --fabric "$PWD/fabric.sock" --print "$starter" \
            >board$node.txt 2>/tmp/board$node.log &
        started+=($!)
        await "board $node" 10 grep -q "smaller window" board$node.txt
    done
}

stop() {
    kill "${started[@]}"
    wait "${started[@]}" || true
}

# Makes the packages of what ci/packaging/build.sh has staged.
make_packages() {
    mkdir /tmp/packages
    cp -a /packages/telegraphos /tmp/packages
    # Without the check of build dependencies: a C++ compiler is one of every package.
    (cd /tmp/packages/telegraphos && dpkg-buildpackage -d -b -us -uc) >/tmp/build.log 2>&1 || fail "dpkg-buildpackage"
    cp /tmp/packages/*.deb /packages
    rm -rf /tmp/packages
    ls -l /packages/*.deb
}

# Installs the packages; what they bring is there and works.
install_packages() {
    local program unit kernel built
    dpkg -i /packages/telegraphos*.deb >/tmp/dpkg.log 2>&1 || fail "dpkg -i"
    for program in "${programs[@]}"; do
        "$program" --version
        gzip -cd "/usr/share/man/man1/$program.1.gz" | grep -q "^.TH $program 1" || fail "no manual of $program"
        bash -c ". /usr/share/bash-completion/completions/$program && complete -p $program" >/dev/null ||
            fail "no completion of $program"
    done
    for unit in /usr/lib/systemd/system/telegraphos-*.service; do
        # Verified as an instance, where it is a template.
        [ -z "$(systemd-analyze verify --man=no "${unit/@/@0}" 2>&1 | tee /tmp/verify.log)" ] || fail "$unit"
    done
    getent passwd telegraphos >/dev/null || fail "no user telegraphos"
    kernel=$(ls /lib/modules)
    built=$(dkms status -m telegraphos)
    echo "$built"
    [[ $built == *"$kernel"*": installed" ]] || fail "DKMS has no driver for $kernel"
    modinfo -k "$kernel" telegraphos telegraphos_net | grep -E "^(filename|vermagic)" || fail "no module for $kernel"
}

# Removes them; nothing is left.
remove_packages() {
    local left
    dpkg -P telegraphos telegraphos-dkms >/tmp/dpkg.log 2>&1 || fail "dpkg -P"
    left=$(find / -xdev -path /tmp -prune -o -path /source -prune -o -path /tree -prune -o -path /opt/driver -prune -o -path /packages -prune -o -path /target -prune -o -path /cache -prune -o \
        -name '*telegraphos*' -print)
    [ -z "$left" ] || fail "left behind: $left"
}

try_packages() {
    :
}

# What a unit has said since it was installed.
journal() {
    journalctl --no-pager --output cat --unit "$1"
}

# Starts units; `fail` shows the journal if that fails.
start() {
    systemctl start "$@" || { journalctl --no-pager -b >/tmp/journal.log; fail "systemctl start"; }
}

# The fabric has exactly these nodes.
present() {
    runuser -u telegraphos -- telegraphos ctl --control /run/telegraphos/fabric.sock.control --json status |
        grep -qF "\"present\":[$1]"
}

# The options that the board of node $2 has printed in the journal of unit $1 attach it: QEMU, which runs nothing, lists
# the device with its BARs.
attach() {
    local options
    options=$(journal "$1" | sed -n '/-m 1G/{N;s/\\\n//;p}' | grep -F "hib$2.sock" | tail -n 1)
    echo "  qemu-system-x86_64 $options"
    printf 'info pci\nquit\n' | eval "timeout 240 runuser -u telegraphos -- qemu-system-x86_64 -S -display none \
        -nodefaults -no-user-config -accel tcg -machine q35 -monitor stdio $options" >/tmp/qemu.log 2>&1 || fail "QEMU"
    grep -q 'BAR4: 64 bit prefetchable memory' /tmp/qemu.log || fail "QEMU finds no board"
}

# In a guest whose first process is systemd: the servers start under the units, confined as these say, attach to QEMU,
# and are restarted after a crash. Stopped, they leave nothing.
try_units_in_guest() {
    local node pid unit units="telegraphos-fabric telegraphos-hib@0 telegraphos-hib@1"
    await "systemd" 300 systemctl --quiet is-active multi-user.target
    systemctl --version | head -n 1
    dpkg -i /mnt/packages/telegraphos_*.deb >/tmp/dpkg.log 2>&1 || fail "dpkg -i"
    echo 'listen = "/run/telegraphos/fabric.sock"' >/etc/telegraphos/fabric.toml
    for node in 0 1; do
        printf 'socket = "/run/telegraphos/hib%s.sock"\nnode = %s\nfabric = "/run/telegraphos/fabric.sock"\n' \
            $node $node >/etc/telegraphos/hib$node.toml
    done
    # shellcheck disable=SC2086
    start $units
    await "both boards at the fabric" 60 present 0,1
    for unit in $units; do
        pid=$(systemctl show --property MainPID --value "$unit")
        [ "$(stat -c %U "/proc/$pid")" = telegraphos ] || fail "$unit is not of user telegraphos"
        grep -qx "Seccomp:.2" "/proc/$pid/status" || fail "$unit has no system call filter"
        ! nsenter -t "$pid" -m touch /etc/telegraphos/written 2>/dev/null || fail "$unit can write to /etc"
    done
    echo "ok 1 the units start, confined, and both boards are at the fabric"
    attach telegraphos-hib@0 0
    attach telegraphos-hib@1 1
    echo "ok 2 QEMU attaches the boards"
    pid=$(systemctl show --property MainPID --value telegraphos-hib@0)
    kill -KILL "$pid"
    await "a new board" 60 bash -c "[ \"\$(systemctl show -p NRestarts --value telegraphos-hib@0)\" = 1 ]"
    await "the restarted board at the fabric" 60 present 0,1
    attach telegraphos-hib@0 0
    echo "ok 3 a board that was killed is restarted"
    # shellcheck disable=SC2086
    systemctl stop $units
    echo 'BOARDS="-- --config /etc/telegraphos/hib0.toml -- --config /etc/telegraphos/hib1.toml"' \
        >/etc/default/telegraphos-host
    start telegraphos-host
    await "both boards in one process" 60 present 0,1
    attach telegraphos-host 0
    attach telegraphos-host 1
    echo "ok 4 one process has fabric and boards"
    systemctl stop telegraphos-host
    [ -z "$(ls -A /run/telegraphos 2>/dev/null)" ] || fail "left behind: $(ls -A /run/telegraphos)"
    ! systemctl --failed --plain --no-legend | grep telegraphos || fail "a unit has failed"
    rm -r /etc/telegraphos/*.toml
    dpkg -P telegraphos >/tmp/dpkg.log 2>&1 || fail "dpkg -P"
    [ ! -e /etc/telegraphos ] || fail "left behind: /etc/telegraphos"
    echo "ok 5 nothing is left"
}

# Both consoles, of the machines of $1, have KTAP without a failure. On the host, $1.xml is beside the packages.
check() {
    telegraphos report --junit "/packages/$1.xml" "node0=$2" "node1=$3" || fail "the tests between the machines of $1"
}

# $1 of node $2: what it prints between two patterns.
part() {
    sed -n "/<$1[ >]/,/<\/$1>/p" "board$2.txt"
}

domain() {
    local node=$1 path='{"driver":"file","node-name":"root","read-only":true,"filename":"'$guest'"}'
    local disk="<qemu:arg value='-blockdev'/><qemu:arg value='$path'/><qemu:arg value='-device'/>"
    disk+="<qemu:arg value='{\"driver\":\"nvme\",\"drive\":\"root\",\"serial\":\"root\"}'/>"
    local script="mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev"
    script+="; insmod /usr/lib/telegraphos/telegraphos.ko; echo driver loaded"
    script+="; while [ ! -e /dev/telegraphos0 ]; do sleep 0.2; done; $selftest; poweroff -f"
    echo "<domain type='qemu'><name>tg$node</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>
        <os><type arch='x86_64' machine='q35'>hvm</type><kernel>$kernel</kernel>
        <cmdline>console=ttyS0 panic=-1 quiet cryptomgr.notests root=/dev/nvme0n1 rootfstype=ext4 rootwait ro
            init=/bin/sh -- -c \"$script\"</cmdline></os>
        <features><acpi/></features><cpu mode='maximum'/><on_reboot>destroy</on_reboot>
        <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
            <controller type='pci' index='1' model='pcie-root-port'/><controller type='usb' model='none'/>
            <serial type='file'><source path='$PWD/console$node'/></serial><memballoon model='none'/></devices>" |
        tr '\n' ' '
    part memoryBacking "$node"
    # Node 1 has no board at first, and a port with room for it.
    if [ "$node" = 0 ]; then
        part qemu:commandline 0 | sed "s|</qemu:commandline>|$disk&|"
    else
        part qemu:commandline 1 | sed -e "/qemu:arg/d" -e "s|</qemu:commandline>|$disk&|"
        part qemu:override 1 | sed 's/pci\.N/pci.1/'
    fi
    echo "</domain>"
}

try_libvirt() {
    local node device virsh="virsh -q -c qemu:///system"
    cat >/etc/libvirt/qemu.conf <<CONF
user = "root"
group = "root"
security_driver = "none"
stdio_handler = "file"
namespaces = []
cgroup_controllers = []
remember_owner = 0
CONF
    echo "libvirt $(virsh --version), $(qemu-system-x86_64 --version | head -n 1)"
    boards libvirt
    libvirtd 2>/tmp/libvirtd.log &
    started+=($!)
    await "libvirtd" 30 $virsh list
    for node in 0 1; do
        domain $node >tg$node.xml
        virt-xml-validate tg$node.xml
        $virsh create tg$node.xml
    done
    await "the driver in tg1" 240 grep -q "driver loaded" console1
    device=$(sed -n "s/.*<qemu:arg value='{\(.*\)'.*/{\"id\":\"hib\",\"bus\":\"pci.1\",\1/p" board1.txt)
    $virsh qemu-monitor-command tg1 "{\"execute\":\"device_add\",\"arguments\":$device}" | tee plugged
    ! grep -q error plugged || fail "the board cannot be plugged in"
    # shellcheck disable=SC2016
    await "the end of the domains" 400 bash -c '[ -z "$('"$virsh"' list --name | tr -d "\n")" ]'
    check libvirt console0 console1
    stop
}

try_virtme-ng() {
    local image node line load="modprobe telegraphos" pids=()
    echo "$(vng --version), $(qemu-system-x86_64 --version | head -n 1)"
    image=$(ls /boot/vmlinuz-*-cloud-amd64)
    if [ -e /tree ]; then
        image=/tree/arch/x86/boot/bzImage
        mkdir /opt/driver
        cp -r /usr/src/telegraphos-*/{module,uapi} /opt/driver
        make -C /opt/driver/module KDIR=/tree modules >/tmp/driver.log 2>&1 || fail "the driver for $image"
        load="insmod /opt/driver/module/telegraphos.ko"
    fi
    boards virtme-ng
    for node in 0 1; do
        line=$(sed -n 's/^  vng /vng /p' board$node.txt)
        [ -n "$line" ] || fail "board $node prints no line for virtme-ng"
        # The line as it is printed, with what is to be booted and run. virtme-ng needs a terminal; the root of its
        # guests is this one.
        python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", sys.argv[1]])))' \
            "$line --disable-kvm --run $image --user root --exec '$load && \
            until [ -e /dev/telegraphos0 ]; do sleep 0.2; done; /target/debug/tg $selftest'" \
            >/tmp/vng$node.log 2>&1 </dev/null &
        pids+=($!)
        # It prepares the modules of a tree in the tree: one machine at a time.
        await "machine $node" 60 bash -c "[ \$(cat /proc/[0-9]*/comm | grep -c ^qemu-system) -gt $node ]"
    done
    wait "${pids[@]}" || fail "virtme-ng"
    check virtme-ng /tmp/vng0.log /tmp/vng1.log
    stop
}

case ${1:-} in
    --guest)
        try_units_in_guest
        exit
        ;;
    --inside) ;;
    *)
        profile=dev tree=
        while :; do
            case ${1:-} in
                --profile) profile=${2:?"--profile needs a name"} ;;
                --kernel) tree=$(cd "${2:?"--kernel needs a directory"}" && pwd) ;;
                *) break ;;
            esac
            shift 2
        done
        for word in "$@"; do
            [[ " ${all[*]} " == *" $word "* ]] || { echo "unknown: $word; expected: ${all[*]}" >&2; exit 2; }
        done
        [ $# -gt 0 ] || set -- "${all[@]}"
        outside "$@"
        exit
        ;;
esac
kernel=$2 guest=$3
shift 3
echo "=== packages"
make_packages
install_packages
for word in "$@"; do
    [ "$word" = packages ] || echo "=== $word"
    "try_$word"
done
remove_packages
