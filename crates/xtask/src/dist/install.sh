#!/bin/sh
# Installs Bilayer from a release: sh install.sh [--static] [--version X.Y.Z] [--from URL-OR-FOLDER] [--prefix FOLDER]
#
# Downloads the archive for this machine and SHA256SUMS, compares the checksum, and copies the program, its manual pages
# and completions below the prefix (default: ~/.local; no root needed). Nothing is changed if the checksum is wrong.
# --static takes the build that needs no C library and computes on the CPU only.
set -eu

version=0.1.0
base=
prefix=${HOME:-}/.local
kind=

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --static) kind=-static ;;
        --version | --from | --prefix)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --version) version=$2 ;;
                --from) base=$2 ;;
                --prefix) prefix=$2 ;;
            esac
            shift
            ;;
        *) fail "$1: unknown; flags are --static, --version X.Y.Z, --from URL-OR-FOLDER, --prefix FOLDER" ;;
    esac
    shift
done
[ -n "$base" ] || base=https://github.com/bilayer/bilayer/releases/download/v$version

[ "$(uname -s)" = Linux ] || fail "there are archives for Linux only; elsewhere: cargo install --path ."
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no archive for $(uname -m)" ;;
esac
# Without glibc, or with one that is too old, only the static build runs.
if [ -z "$kind" ]; then
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //') || glibc=
    major=${glibc%%.*}
    minor=${glibc#*.}
    minor=${minor%%.*}
    if [ -z "$glibc" ] || [ "$major" -lt 2 ] || { [ "$major" -eq 2 ] && [ "$minor" -lt 28 ]; }; then
        echo "install.sh: glibc 2.28 or later not found; taking the static build, which computes on the CPU only" >&2
        kind=-static
    fi
fi

name=bilayer-$version-$machine-linux$kind
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM

get() {
    case $base in
        *://*)
            if command -v curl >/dev/null 2>&1; then
                curl --fail --silent --show-error --location --output "$folder/$1" "$base/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$folder/$1" "$base/$1"
            else
                fail "curl or wget is needed"
            fi
            ;;
        *) cp "$base/$1" "$folder/$1" ;;
    esac || fail "$base/$1 cannot be had"
}

get SHA256SUMS
get "$name.tar.gz"
wanted=$(sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p" "$folder/SHA256SUMS")
[ -n "$wanted" ] || fail "SHA256SUMS does not have $name.tar.gz"
if command -v sha256sum >/dev/null 2>&1; then
    found=$(sha256sum "$folder/$name.tar.gz")
elif command -v shasum >/dev/null 2>&1; then
    found=$(shasum -a 256 "$folder/$name.tar.gz")
else
    fail "sha256sum or shasum is needed"
fi
[ "${found%% *}" = "$wanted" ] || fail "the checksum of $name.tar.gz is ${found%% *}, not $wanted: nothing was installed"

gzip -dc "$folder/$name.tar.gz" | tar -xf - -C "$folder"
place() {
    mkdir -p "$2"
    # Under another name first, so that a program that runs stays whole.
    cp "$1" "$2/.$3.new"
    mv -f "$2/.$3.new" "$2/$3"
}
from=$folder/$name
place "$from/bilayer" "$prefix/bin" bilayer
for page in "$from"/man/*.1; do
    place "$page" "$prefix/share/man/man1" "${page##*/}"
done
place "$from/completions/bilayer.bash" "$prefix/share/bash-completion/completions" bilayer
place "$from/completions/_bilayer" "$prefix/share/zsh/site-functions" _bilayer
place "$from/completions/bilayer.fish" "$prefix/share/fish/vendor_completions.d" bilayer.fish
for text in LICENSE-MIT LICENSE-APACHE THIRD-PARTY-LICENSES.txt; do
    place "$from/$text" "$prefix/share/doc/bilayer" "$text"
done
"$prefix/bin/bilayer" --version || fail "$prefix/bin/bilayer does not run"
case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) echo "install.sh: $prefix/bin is not on the PATH" >&2 ;;
esac
