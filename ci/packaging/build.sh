#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Makes two Debian packages: `telegraphos`, the host's programs with manual pages, completions and units of systemd, and
# `telegraphos-dkms`, the source of the driver, which DKMS builds for each kernel of a guest.
#
#   ci/packaging/build.sh [--profile PROFILE] [--stage] [DIR]      into DIR, target/packages by default
#
# PROFILE is cargo's: release by default. Needs cargo and, for Debian's tools, `apt-get install debhelper dh-dkms`; no
# root. With --stage only DIR/telegraphos is made, in which `dpkg-buildpackage -b -us -uc` makes the packages elsewhere.
set -euo pipefail
umask 022

profile=release stage=
while :; do
    case ${1:-} in
        --profile) profile=${2:?"--profile needs a name"}; shift 2 ;;
        --stage) stage=yes; shift ;;
        -*) echo "ci/packaging/build.sh: unknown option $1; expected --profile PROFILE or --stage" >&2; exit 2 ;;
        *) break ;;
    esac
done
cd "$(dirname "$0")/../.."
if [ -z "$stage" ] && ! dpkg-query -W debhelper dh-dkms dpkg-dev >/dev/null 2>&1; then
    echo "ci/packaging/build.sh: tools are missing; run as root: apt-get install debhelper dh-dkms dpkg-dev" >&2
    exit 2
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$(mkdir -p "${1:-$target/packages}" && cd "${1:-$target/packages}" && pwd)
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tree=$out/telegraphos
share=$tree/usr/share

cargo build --quiet --locked --profile "$profile" \
    -p telegraphos-cluster -p telegraphos-device -p telegraphos-fabric -p telegraphos-host -p telegraphos-lab
rm -rf "$tree"
mkdir -p "$tree"/{man,module,etc/default} "$tree"/usr/{bin,lib/systemd/system} \
    "$share"/{bash-completion/completions,fish/vendor_completions.d,zsh/vendor-completions}
cp -r ci/packaging/debian CHANGELOG.md "$tree"
manuals=$(mktemp -d)
trap 'rm -rf "$manuals"' EXIT
cargo run --quiet --locked --profile "$profile" -p telegraphos-lab --example manuals -- "$manuals" >/dev/null
for name in telegraphos telegraphos-fabric telegraphos-hib telegraphos-host; do
    # Stripped here: debug information of the profile of tests is hundreds of megabytes.
    install -s "$built/$name" "$tree/usr/bin/$name"
    install -m 644 "$manuals/bash/$name.bash" "$share/bash-completion/completions/$name"
done
# Which the command starts for `bench` and `sim`; their pages are the command's.
install -s "$built/telegraphos-lab" "$tree/usr/bin/telegraphos-lab"
install -m 644 "$manuals"/fish/*.fish -t "$share/fish/vendor_completions.d"
install -m 644 "$manuals"/zsh/_* -t "$share/zsh/vendor-completions"
install -m 644 "$manuals"/man1/*.1 -t "$tree/man"
install -m 644 ci/packaging/systemd/*.service -t "$tree/usr/lib/systemd/system"
install -m 644 ci/packaging/telegraphos-host.default "$tree/etc/default/telegraphos-host"
install -m 644 guest-driver/module/{Kbuild*,Makefile,*.c,*.h} -t "$tree/module"
cp -r guest-driver/uapi "$tree"
# The date of the last change, so that the same source makes the same packages.
when=$(git log -1 --format=%cD 2>/dev/null || LC_ALL=C date -R)
cat >"$tree/debian/changelog" <<CHANGELOG
telegraphos ($version-1) unstable; urgency=medium

  * changelog.gz beside this file says what is new.

 -- The Telegraphos authors <telegraphos@localhost>  $when
CHANGELOG
if [ -z "$stage" ]; then
    (cd "$tree" && dpkg-buildpackage --build=binary --unsigned-source --unsigned-changes) >"$out/build.log" 2>&1 ||
        { tail -n 40 "$out/build.log" >&2; echo "ci/packaging/build.sh: see $out/build.log" >&2; exit 3; }
    rm -rf "$tree"
    ls -l "$out"/telegraphos*_"$version"-1_*.deb
fi
