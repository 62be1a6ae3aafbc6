#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Makes two Debian packages: `telegraphos`, the host's programs with manual pages, completions and units of systemd, and
# `telegraphos-dkms`, the source of the driver, which DKMS builds for each kernel of a guest.
#
#   packaging/build.sh [--profile PROFILE] [DIR]      into DIR, target/packages by default
#
# PROFILE is cargo's: release by default. Needs cargo and dpkg-dev; no root.
set -euo pipefail
umask 022

profile=release
if [ "${1:-}" = --profile ]; then
    profile=${2:?"--profile needs a name"}
    shift 2
fi
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$(mkdir -p "${1:-$target/packages}" && cd "${1:-$target/packages}" && pwd)
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
programs=(telegraphos telegraphos-fabric telegraphos-hib telegraphos-host)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
maintainer='The Telegraphos authors <telegraphos@localhost>'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# DEBIAN/control of the tree at $1, with fields from standard input, and the package of it.
package() {
    local tree=$1 size
    size=$(du -sk --exclude DEBIAN "$tree" | cut -f 1)
    mkdir -p "$tree/DEBIAN"
    {
        cat
        printf 'Version: %s\nMaintainer: %s\nInstalled-Size: %s\n' "$version" "$maintainer" "$size"
    } >"$tree/DEBIAN/control"
    (cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    (cd "$tree" && find etc -type f -printf '/%p\n' 2>/dev/null || true) >"$tree/DEBIAN/conffiles"
    dpkg-deb --root-owner-group --build "$tree" "$out" >/dev/null
}

# Changelog and licences, where Debian has them.
documents() {
    local doc=$1/usr/share/doc/$2
    install -d "$doc"
    gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
    cat "${@:3}" >"$doc/copyright"
}

host_programs() {
    local tree=$work/telegraphos name depends
    cargo build --quiet --locked --profile "$profile" \
        -p telegraphos-cluster -p telegraphos-device -p telegraphos-fabric -p telegraphos-host
    cargo run --quiet --locked --profile "$profile" -p telegraphos-cluster --example manuals -- "$work/manuals" >/dev/null
    install -d "$tree"/usr/{bin,share/man/man1,share/bash-completion/completions,share/fish/vendor_completions.d} \
        "$tree"/usr/{share/zsh/vendor-completions,lib/systemd/system,lib/sysusers.d} "$tree"/etc/{default,telegraphos}
    for name in "${programs[@]}"; do
        install -s "$built/$name" "$tree/usr/bin/$name"
        install -m 644 "$work/manuals/bash/$name.bash" "$tree/usr/share/bash-completion/completions/$name"
        install -m 644 "$work/manuals/fish/$name.fish" -t "$tree/usr/share/fish/vendor_completions.d"
        install -m 644 "$work/manuals/zsh/_$name" -t "$tree/usr/share/zsh/vendor-completions"
    done
    gzip -9n "$work"/manuals/man1/*.1
    install -m 644 "$work"/manuals/man1/*.gz -t "$tree/usr/share/man/man1"
    install -m 644 packaging/systemd/*.service -t "$tree/usr/lib/systemd/system"
    install -m 644 packaging/systemd/telegraphos.sysusers "$tree/usr/lib/sysusers.d/telegraphos.conf"
    install -m 644 packaging/debian/telegraphos-host.default "$tree/etc/default/telegraphos-host"
    documents "$tree" telegraphos LICENSE-MIT LICENSE-APACHE
    # dpkg-shlibdeps reads a source package's control file.
    mkdir -p "$work/source/debian"
    echo "Source: telegraphos" >"$work/source/debian/control"
    depends=$(cd "$work/source" && dpkg-shlibdeps -O "${programs[@]/#/-e$tree/usr/bin/}" 2>/dev/null)
    install -D -m 755 packaging/debian/telegraphos.postinst "$tree/DEBIAN/postinst"
    install -m 755 packaging/debian/telegraphos.postrm "$tree/DEBIAN/postrm"
    package "$tree" <<CONTROL
Package: telegraphos
Architecture: $(dpkg --print-architecture)
Section: net
Priority: optional
Depends: ${depends#shlibs:Depends=}, passwd
Recommends: qemu-system-x86 (>= 1:10.1.1)
Description: virtual cluster of machines that store into each other's memory
 Boards for virtual machines of an unmodified QEMU, the switch between them, and
 the command that boots whole clusters.
CONTROL
}

driver() {
    local tree=$work/telegraphos-dkms
    local source=$tree/usr/src/telegraphos-$version
    install -d "$source"/{module,uapi}
    install -m 644 guest-driver/module/{Kbuild,Makefile,LICENSE,*.c,*.h} -t "$source/module"
    install -m 644 guest-driver/uapi/*.h -t "$source/uapi"
    sed "s/@VERSION@/$version/" packaging/dkms/dkms.conf >"$source/dkms.conf"
    documents "$tree" telegraphos-dkms guest-driver/module/LICENSE
    mkdir -p "$tree/DEBIAN"
    local script
    for script in postinst prerm; do
        sed "s/@VERSION@/$version/" "packaging/dkms/$script" >"$tree/DEBIAN/$script"
        chmod 755 "$tree/DEBIAN/$script"
    done
    package "$tree" <<CONTROL
Package: telegraphos-dkms
Architecture: all
Section: kernel
Priority: optional
Depends: dkms (>= 3.0), kmod
Recommends: linux-headers-generic | linux-headers-amd64 | linux-headers-cloud-amd64
Description: Linux driver of the Telegraphos board, as source for DKMS
 The driver of the board and its Ethernet device, for guests. DKMS builds both
 for each installed kernel, 6.1 or newer.
CONTROL
}

host_programs
driver
ls -l "$out"/telegraphos*_"$version"_*.deb
