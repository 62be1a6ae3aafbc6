#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Attaches boards to machines that others start, as `telegraphos-hib --print` says: two domains of libvirt, one of which
# gets its board while it runs, and two machines of virtme-ng. Debian's packages of all of them are unpacked into a
# root of their own, so nothing is installed. In each pair of guests tg-selftest stores from one to the other.
#
#   ci/starters.sh [packages|libvirt|virtme-ng]...      all by default
#
# In that root our own packages (packaging/build.sh) are installed as a user would, so programs and driver are theirs:
# DKMS builds the driver for the kernel that virtme-ng boots. At the end they are removed. `packages` is only that.
#
# Needs root: the programs run in a chroot, with mounts and processes of its own, of which nothing is left.
set -euo pipefail

suite=trixie-backports
packages=busybox-static+dkms+gcc+kmod+libc6-dev+libvirt-clients+libvirt-daemon+libvirt-daemon-driver-qemu+libxml2-utils
packages+=+linux-headers-cloud-amd64+linux-image-cloud-amd64+make+qemu-system-x86+virtiofsd+virtme-ng
# What both guests of a pair run, and what their consoles then say.
selftest='tg-selftest --nodes 2 --only remote-write/ --patience 300'
passed='^# Totals: pass:[1-9][0-9]* fail:0 '
all=(packages libvirt virtme-ng)
programs=(telegraphos telegraphos-fabric telegraphos-hib telegraphos-host)

# Outside: makes the root and enters a copy of it.
outside() {
    local source target cache kernel guest root
    source=$(cd "$(dirname "$0")/.." && pwd)
    cd "$source"
    [ "$(id -u)" = 0 ] || { echo "ci/starters.sh needs root: it enters a root of Debian's packages" >&2; exit 2; }
    # The profile of the tests: that of releases takes minutes to build, and makes the same packages.
    packaging/build.sh --profile dev
    cargo build --quiet -p telegraphos-guest-tests --bin tg-selftest
    cargo build --quiet -p telegraphos-images --example prepare
    target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
    cache=${TELEGRAPHOS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/telegraphos}
    { read -r root; } < <("$target/debug/examples/prepare" root "debian:$suite+$packages")
    { read -r kernel; read -r guest; } < <("$target/debug/examples/prepare" 6.12 | grep "^$cache/")
    export STARTERS_SOURCE=$source STARTERS_TARGET=$target STARTERS_CACHE=$cache
    # shellcheck disable=SC2016
    exec unshare --mount --propagation private --pid --fork --kill-child bash -euc '
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
        mkdir -p "$root"/{source,target,cache} "$root/run/lock"
        mount --bind -o ro "$STARTERS_SOURCE" "$root/source"
        mount --bind -o ro "$STARTERS_TARGET" "$root/target"
        mount --bind -o ro "$STARTERS_CACHE" "$root/cache"
        chroot "$root" env -i HOME=/root LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            bash /source/ci/starters.sh --inside "$@"
    ' enter "$root" "/cache${kernel#"$cache"}" "/cache${guest#"$cache"}" "$@"
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

# Installs the packages; what they bring is there and works.
install_packages() {
    local program unit kernel built
    dpkg -i /target/packages/telegraphos*.deb >/tmp/dpkg.log 2>&1 || fail "dpkg -i"
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
    left=$(find / -xdev -path /tmp -prune -o -path /source -prune -o -path /target -prune -o -path /cache -prune -o \
        -name '*telegraphos*' -print)
    [ -z "$left" ] || fail "left behind: $left"
}

try_packages() {
    :
}

# Both consoles say that everything passed.
check() {
    local console
    for console in "$@"; do
        grep -E "^(not )?ok |^# Totals" "$console" | tr -d '\r' | tail -n 3 | sed "s/^/  $(basename "$console"): /"
        tr -d '\r' <"$console" | grep -Eq "$passed" || fail "$console: expected a line $passed"
    done
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
    check console0 console1
    stop
}

try_virtme-ng() {
    local image node line pids=()
    echo "$(vng --version), $(qemu-system-x86_64 --version | head -n 1)"
    image=$(ls /boot/vmlinuz-*-cloud-amd64)
    boards virtme-ng
    for node in 0 1; do
        line=$(sed -n 's/^  vng /vng /p' board$node.txt)
        [ -n "$line" ] || fail "board $node prints no line for virtme-ng"
        # The line as it is printed, with what is to be booted and run. virtme-ng needs a terminal; the root of its
        # guests is this one.
        python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(["sh", "-c", sys.argv[1]])))' \
            "$line --disable-kvm --run $image --user root --exec 'modprobe telegraphos && \
            until [ -e /dev/telegraphos0 ]; do sleep 0.2; done; /target/debug/$selftest'" \
            >/tmp/vng$node.log 2>&1 </dev/null &
        pids+=($!)
    done
    wait "${pids[@]}" || fail "virtme-ng"
    check /tmp/vng0.log /tmp/vng1.log
    stop
}

if [ "${1:-}" != --inside ]; then
    for word in "$@"; do
        [[ " ${all[*]} " == *" $word "* ]] || { echo "unknown: $word; expected: ${all[*]}" >&2; exit 2; }
    done
    outside "$@"
fi
kernel=$2 guest=$3
shift 3
[ $# -gt 0 ] || set -- "${all[@]}"
echo "=== packages"
install_packages
for word in "$@"; do
    [ "$word" = packages ] || echo "=== $word"
    "try_$word"
done
remove_packages
