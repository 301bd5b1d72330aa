#!/bin/sh
# Installs AKS Flex Node on a machine that has curl, or takes it away again: see --help.
#
# Nothing that was downloaded is run or unpacked before it was checked: the list of checksums by its signature, with the
# key in this file, and the package by that list. What signatures are checked with is what apt itself brings: gpgv, or
# sqv on Debian 13.
set -eu

# The release fills this in: the public key, as base64.
key='@KEY@'
releases=https://github.com/Azure/AKSFlexNode/releases
package=aks-flex-node

help() {
    cat <<'END'
usage: install.sh [--version X.Y.Z] [--base-url URL] [--key FILE] [--yes] [--dry-run]
       install.sh --uninstall [--purge] [--yes] [--dry-run]

Installs the aks-flex-node package after its signature and its checksum were checked.

  --version X.Y.Z  this version, rather than the newest
  --base-url URL   the folder with the files of one release (https:// or file://), such as a mirror of yours
  --key FILE       check with this public key (as `gpg --export` writes it), for releases that you signed yourself
  --yes            do not ask
  --dry-run        download and check, say what would be done, and change nothing
  --uninstall      remove the package; a machine that is a node leaves first: `aks-flex-node unbootstrap`
  --purge          with --uninstall: what it was configured with goes, too
  --help           show this
END
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf '  %s\n' "$2" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

value_of() {
    if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 takes a value." "See install.sh --help."; fi
    printf '%s' "$2"
}

read_options() {
    version='' base='' key_file='' yes='' dry='' uninstall='' purge=''
    while [ $# -gt 0 ]; do
        case $1 in
            --version)
                version=$(value_of "$@")
                shift
                ;;
            --base-url)
                base=$(value_of "$@")
                shift
                ;;
            --key)
                key_file=$(value_of "$@")
                shift
                ;;
            --yes | -y) yes=1 ;;
            --dry-run) dry=1 ;;
            --uninstall) uninstall=1 ;;
            --purge) purge=1 ;;
            --help | -h) help && exit 0 ;;
            *) fail "$1 is not an option." "See install.sh --help." ;;
        esac
        shift
    done
    case $version in
        '' | [0-9]*) ;;
        *) fail "$version is not a version." "Versions look like 1.2.3, without a v." ;;
    esac
    case $version in *[!0-9A-Za-z.+~-]*) fail "$version is not a version." "Versions look like 1.2.3." ;; esac
    [ -z "$purge" ] || [ -n "$uninstall" ] || fail "--purge goes with --uninstall."
}

# Asked on the terminal, because the script itself may come from standard input.
agree() {
    [ -z "$yes" ] || return 0
    # Whether there is a terminal is only known by opening it.
    (: </dev/tty) 2>/dev/null || fail "There is no terminal to ask on." "Look at what it says above, then run it again with --yes."
    printf 'Go on? [y/N] ' >/dev/tty
    read -r answer </dev/tty || answer=
    case $answer in y | Y | yes) ;; *) fail "Nothing was changed." ;; esac
}

need_root() {
    [ -n "$dry" ] || [ "$(id -u)" = 0 ] || fail "This takes root." "Run it with sudo, or look first with --dry-run."
}

need_machine() {
    for program in dpkg apt-get; do
        has "$program" || fail "This machine has no $program." "Debian 12 and 13, Ubuntu 22.04 and 24.04 are supported."
    done
    arch=$(dpkg --print-architecture)
    case $arch in
        amd64 | arm64) ;;
        *) fail "There is no package for $arch." "It is made for amd64 and arm64." ;;
    esac
    for program in curl sha256sum base64; do
        has "$program" || fail "$program is missing." "apt-get install curl coreutils"
    done
    has gpgv || has sqv || fail "Neither gpgv nor sqv is here to check the signature." "apt-get install gpgv"
}

need_key() {
    if [ -n "$key_file" ]; then
        [ -r "$key_file" ] || fail "The key $key_file cannot be read."
        ! grep -q '^-----BEGIN PGP' "$key_file" || fail "The key $key_file is written as text." \
            "gpgv reads the other form: gpg --dearmor $key_file makes $key_file.gpg."
        cp "$key_file" "$work/key.gpg"
        return
    fi
    case $key in
        @*) fail "This copy of install.sh has no key in it." "Take the one that comes with a release, or give --key FILE." ;;
    esac
    printf '%s' "$key" | base64 -d >"$work/key.gpg"
}

set_base() {
    if [ -z "$base" ] && [ -n "$version" ]; then
        base=$releases/download/v$version
    elif [ -z "$base" ]; then
        base=$releases/latest/download
    fi
    base=${base%/}
    case $base in
        https://* | file:///*) ;;
        *) fail "$base is neither https:// nor file:///." ;;
    esac
}

fetch() {
    curl --fail --silent --show-error --location --proto '=https,file' --proto-redir '=https' --tlsv1.2 \
        --connect-timeout 20 --retry 3 --output "$work/$1" "$base/$1" ||
        fail "$base/$1 could not be downloaded." "Is that the right --base-url or --version, and is there a proxy to set (https_proxy)?"
}

check_signature() {
    if has gpgv; then
        gpgv --quiet --homedir "$work" --keyring "$work/key.gpg" "$work/SHA256SUMS.asc" "$work/SHA256SUMS" 2>"$work/said"
    else
        sqv --keyring "$work/key.gpg" "$work/SHA256SUMS.asc" "$work/SHA256SUMS" >"$work/said" 2>&1
    fi || {
        cat "$work/said" >&2
        fail "The signature of $base/SHA256SUMS is not right." "Nothing was installed. Take it from its source again; if it stays, tell its maker."
    }
}

# The one line of the list that is this machine's package.
find_package() {
    found=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]\(${package}_[0-9A-Za-z.+~-]*_$arch\.deb\)\$/\1 \2/p" "$work/SHA256SUMS")
    case $found in
        '') fail "The release has no package for $arch." ;;
        *"
"*) fail "The release has more than one package for $arch." ;;
    esac
    sum=${found% *}
    deb=${found#* }
    offered=${deb#"${package}_"}
    offered=${offered%_"$arch".deb}
    [ -z "$version" ] || [ "$version" = "$offered" ] || fail "This is version $offered, not $version." "What stands at $base is another release."
}

check_package() {
    printf '%s  %s\n' "$sum" "$work/$deb" | sha256sum --check --status - ||
        fail "The checksum of $deb is not right." "Nothing was installed. It was damaged on its way; try again."
}

# Without questions, and without a hundred lines of progress where nobody sees them move.
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get "$@" --yes --quiet -o Dpkg::Use-Pty=0; }

# Which version is here, be it only half-way; of one that was removed, dpkg may still know the configuration.
look() {
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=not-installed
    before=''
    case $state in
        not-installed | config-files) ;;
        *) before=$(dpkg-query -W -f '${Version}' "$package") ;;
    esac
}

# dpkg's own spelling of the offered version: to it, 1.3.0~rc1 comes before 1.3.0.
compare_with_installed() {
    look
    spelled=$(printf '%s' "$offered" | sed 's/\([0-9]\)\(a\|b\|rc\)\([0-9]\)/\1~\2\3/')
    if [ "$state $before" = "installed $spelled" ]; then
        say "$package $offered is installed already; there is nothing to do."
        exit 0
    fi
    [ -z "$before" ] || dpkg --compare-versions "$spelled" ge "$before" || fail \
        "$before is installed, and $offered is older." \
        "To go back: aks-flex-node unbootstrap, install.sh --uninstall, then install $offered."
}

install() {
    need_root
    need_machine
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    need_key
    set_base
    fetch SHA256SUMS
    fetch SHA256SUMS.asc
    check_signature
    find_package
    say "Downloading $base/$deb"
    fetch "$deb"
    check_package
    say "Checked: $deb, by its signature and its checksum."
    compare_with_installed
    say "This will${dry:+ (but --dry-run changes nothing)}:"
    say "  - install $package $offered${before:+, where $before is installed}, with apt-get"
    has python3 || say "  - install python3, from this system's own packages"
    say "  - start nothing: the machine becomes a node when you say so"
    [ -z "$dry" ] || exit 0
    agree
    # apt reads packages as a user of its own; what is here is no secret, and root's alone to change.
    chmod 0755 "$work"
    chmod 0644 "$work/$deb"
    # A file of configuration that somebody changed stays as it is; the new one is put beside it, and nothing is asked.
    apt_get install --no-install-recommends \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$work/$deb" ||
        fail "apt-get could not install it; its reason stands above."
    say "Installed: $package $offered. Next: aks-flex-node --help"
}

uninstall() {
    need_root
    has apt-get || fail "This machine has no apt."
    look
    case $state${purge:+ purge} in
        not-installed* | config-files) say "$package is not installed." && exit 0 ;;
    esac
    verb=remove
    [ -z "$purge" ] || verb=purge
    say "This will${dry:+ (but --dry-run changes nothing)}:"
    say "  - $verb $package${before:+ $before}, with apt-get"
    [ -z "$purge" ] || say "  - delete /etc/$package, with your configuration"
    say "  - leave python3 and everything else as it is"
    [ -z "$dry" ] || exit 0
    agree
    apt_get "$verb" "$package" || fail "apt-get could not remove it; its reason stands above."
    say "Removed: $package."
}

# All of it is read before any of it runs, so that half a download does nothing.
main() {
    read_options "$@"
    if [ -n "$uninstall" ]; then uninstall; else install; fi
}
main "$@"
