#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Tests a kernel tree: applies patches, configures and builds it, boots two guests with it, runs tg-selftest in both at
# once, and writes JUnit.
#
#   ci/kernel.sh [--debug] [--results DIR] TREE [PATCH]... [-- WORD...]
#
#   ci/kernel.sh ~/linux                                  what is there, changes of yours included
#   ci/kernel.sh ~/linux 0001-my-change.patch             a patch that is already applied is left alone
#   ci/kernel.sh --debug ~/linux -- --only register/      with lockdep, KASAN and kmemleak; a part of the tests
#
# TREE keeps its .config, with what ci/kernel.config (and with --debug ci/debug.config) needs besides; without one it
# gets the smallest. It is built in place, so the next time only what has changed. DIR (kernel-results by default) gets
# junit.xml, selftest.ktap and logs. Needs what building a kernel needs (make, gcc, flex, bison, bc, libelf-dev).
#
# Exit code: that of `telegraphos run` (docs/run.md); 1 for a report of the kernel's own checks; 2 for a tree or a patch
# that does not fit.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
debug= results=kernel-results
while :; do
    case ${1:-} in
        --debug) debug=yes; shift ;;
        --results) results=${2:?"--results needs a directory"}; shift 2 ;;
        -*) echo "ci/kernel.sh: unknown option $1; expected --debug or --results DIR" >&2; exit 2 ;;
        *) break ;;
    esac
done
tree=${1:?"usage: ci/kernel.sh [--debug] [--results DIR] TREE [PATCH]... [-- WORD...]"}
shift
[ -e "$tree/scripts/kconfig/merge_config.sh" ] || { echo "ci/kernel.sh: $tree is no tree of Linux's source" >&2; exit 2; }
tree=$(cd "$tree" && pwd)
for tool in make gcc flex bison bc; do
    command -v $tool >/dev/null || missing+=" $tool"
done
[ -z "${missing:-}" ] ||
    { echo "ci/kernel.sh: missing:$missing; run as root: apt-get install make gcc flex bison bc libelf-dev" >&2; exit 2; }
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if patch --dry-run --force --reverse -d "$tree" -p1 <"$1" >/dev/null; then
        echo "$1 is applied already"
    else
        patch --forward -d "$tree" -p1 <"$1" || { echo "ci/kernel.sh: $1 does not fit $tree" >&2; exit 2; }
    fi
    shift
done
[ $# -eq 0 ] || shift

fragments=("$here/kernel.config")
# Emulated guests with these checks need minutes for what takes seconds.
options=() patience=180 needed=()
if [ -n "$debug" ]; then
    fragments+=("$here/debug.config")
    needed=(PROVE_LOCKING KASAN DEBUG_KMEMLEAK FAILSLAB FAIL_PAGE_ALLOC FAULT_INJECTION_USERCOPY DETECT_HUNG_TASK)
    options=(--memory 1G --boot-timeout 900 --hang-timeout 900) patience=1800
fi
(
    cd "$tree"
    [ -e .config ] || make -s tinyconfig
    scripts/kconfig/merge_config.sh -m .config "${fragments[@]}" >/dev/null
    make -s olddefconfig
    # olddefconfig silently drops options that the configuration cannot have: the run would then show nothing.
    for option in ${needed[@]+"${needed[@]}"}; do
        grep -qx "CONFIG_$option=y" .config || missing+=" $option"
    done
    [ -z "${missing:-}" ] || { echo "ci/kernel.sh: the configuration of $tree lacks:$missing" >&2; exit 2; }
    make -s -j"$(nproc)" bzImage modules
)

mkdir -p "$results/logs"
results=$(cd "$results" && pwd)
telegraphos=${TELEGRAPHOS:-}
if [ -z "$telegraphos" ]; then
    cargo build --manifest-path "$here/../Cargo.toml" --release
    telegraphos=${CARGO_TARGET_DIR:-$here/../target}/release/telegraphos
fi
# In each guest: the tests and a hostile user; in the first one, with --debug, what takes its board away, while the other one
# answers frames: allocations that fail, and a board that goes and comes amid registrations. Then what the kernel found
# meanwhile. kmemleak reports what two looks find.
# shellcheck disable=SC2016
guest='grep -q debugfs /proc/mounts || mount -t debugfs none /sys/kernel/debug
tg-selftest "$@"
code=$?
tg-hostile || code=1
leaks=/sys/kernel/debug/kmemleak
if [ "$(hostname)" = node0 ] && [ -e /sys/kernel/debug/failslab ]; then
    # With lockdep each of the many queues of a network device that ends waits for RCU.
    echo 1 >/sys/kernel/rcu_expedited
    # The filter by functions came to x86-64 with 6.2.
    if [ -e /sys/kernel/debug/failslab/require-start ]; then
        tg-faults || code=1
    else
        echo "# tg-faults: this kernel cannot restrict failures to the driver"
    fi
    # Without tg0, whose queues take long to end yet.
    rmmod telegraphos_net
    tg-race --storms 1000 --seconds 600 --only storm || code=1
fi
if [ -e $leaks ]; then
    for look in 1 2; do echo scan >$leaks; sleep 6; done
    ! grep "\[telegraphos" $leaks || { cat $leaks; code=1; }
    echo "# kmemleak: $(grep -c ^unreferenced $leaks) in all, of telegraphos $(grep -c "\[telegraphos" $leaks)"
fi
reports="BUG: |WARNING: |KASAN: |UBSAN: |INFO: task .* blocked|possible .* detected|suspicious RCU|Oops"
# Without memory for the files of an interrupt in /proc the kernel continues, and warns when it has none to remove.
! dmesg | grep -E "$reports" | grep -v "remove_proc_entry+0x" || { dmesg; code=1; }
exit $code'
code=0
"$telegraphos" run --nodes 2 --kernel "$tree" --user root --lab --log-dir "$results/logs" ${options[@]+"${options[@]}"} \
    --junit "$results/junit.xml" --ktap "$results/selftest.ktap" -- sh -c "$guest" sh --patience $patience "$@" || code=$?
echo "$results/junit.xml"
exit "$code"
