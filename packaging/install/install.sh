#!/bin/sh
# Installs or uninstalls AKS Flex Node. See --help.
#
# No downloaded file is run or unpacked before it is verified: the signature of the checksum list with the key in this
# file, then the package with that list. Signatures are verified with the program that apt uses: gpgv, or sqv on
# Debian 13.
set -eu

# The public key in base64, set by the release build.
key='@KEY@'
releases=https://github.com/Azure/AKSFlexNode/releases
package=aks-flex-node

help() {
    cat <<'END'
usage: install.sh [--version X.Y.Z] [--base-url URL] [--key FILE] [--yes] [--dry-run]
       install.sh --uninstall [--purge] [--yes] [--dry-run]

Verifies the signature and the checksum of the aks-flex-node package, and installs it.

  --version X.Y.Z  install this version (default: the newest)
  --base-url URL   directory with the files of one release (https:// or file://), for example a mirror
  --key FILE       verify with this public key (from `gpg --export`), for releases that you signed
  --yes            do not ask for confirmation
  --dry-run        download and verify, print the changes, and change nothing
  --uninstall      remove the package. On a node, run `aks-flex-node unbootstrap` first
  --purge          with --uninstall: also delete the configuration
  --help           show this help
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
    if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 requires a value." "Run install.sh --help."; fi
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
            *) fail "Unknown option $1." "Run install.sh --help." ;;
        esac
        shift
    done
    case $version in
        '' | [0-9]*) ;;
        *) fail "$version is not a valid version." "Use a version like 1.2.3, without a v." ;;
    esac
    case $version in *[!0-9A-Za-z.+~-]*) fail "$version is not a valid version." "Use a version like 1.2.3." ;; esac
    [ -z "$purge" ] || [ -n "$uninstall" ] || fail "--purge requires --uninstall."
}

# Reads from the terminal, because the script itself may come from standard input.
agree() {
    [ -z "$yes" ] || return 0
    # Only opening the terminal shows whether it exists.
    (: </dev/tty) 2>/dev/null || fail "No terminal for the confirmation." "Check the changes above, then run it again with --yes."
    printf 'Continue? [y/N] ' >/dev/tty
    read -r answer </dev/tty || answer=
    case $answer in y | Y | yes) ;; *) fail "Nothing was changed." ;; esac
}

need_root() {
    [ -n "$dry" ] || [ "$(id -u)" = 0 ] || fail "This script must run as root." "Run it with sudo, or use --dry-run."
}

need_machine() {
    for program in dpkg apt-get; do
        has "$program" || fail "$program was not found." "Debian 12 and 13, Ubuntu 22.04 and 24.04 are supported."
    done
    arch=$(dpkg --print-architecture)
    case $arch in
        amd64 | arm64) ;;
        *) fail "The architecture $arch is not supported." "Supported: amd64 and arm64." ;;
    esac
    for program in curl sha256sum base64; do
        has "$program" || fail "$program was not found." "Run: apt-get install curl coreutils"
    done
    has gpgv || has sqv || fail "Neither gpgv nor sqv was found to verify the signature." "Run: apt-get install gpgv"
}

need_key() {
    if [ -n "$key_file" ]; then
        [ -r "$key_file" ] || fail "The key $key_file cannot be read."
        ! grep -q '^-----BEGIN PGP' "$key_file" || fail "The key $key_file is ASCII-armored." \
            "Run gpg --dearmor $key_file, and use $key_file.gpg."
        cp "$key_file" "$work/key.gpg"
        return
    fi
    case $key in
        @*) fail "This copy of install.sh contains no key." "Use install.sh of a release, or set --key FILE." ;;
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
        *) fail "$base must begin with https:// or file:///." ;;
    esac
}

fetch() {
    curl --fail --silent --show-error --location --proto '=https,file' --proto-redir '=https' --tlsv1.2 \
        --connect-timeout 20 --retry 3 --output "$work/$1" "$base/$1" ||
        fail "$base/$1 could not be downloaded." "Check --base-url, --version and the proxy (https_proxy)."
}

check_signature() {
    # gpgv itself accepts expired and revoked keys: only its status tells.
    if has gpgv; then
        gpgv --quiet --status-fd 1 --homedir "$work" --keyring "$work/key.gpg" "$work/SHA256SUMS.asc" "$work/SHA256SUMS" \
            >"$work/status" 2>"$work/output" && grep -q '^\[GNUPG:\] GOODSIG ' "$work/status"
    else
        sqv --keyring "$work/key.gpg" "$work/SHA256SUMS.asc" "$work/SHA256SUMS" >"$work/output" 2>&1
    fi || {
        cat "$work/output" >&2
        ! grep -q 'EXPKEYSIG\|REVKEYSIG\|EXPSIG' "$work/status" 2>/dev/null || fail "The key of $base/SHA256SUMS.asc is expired or revoked." \
            "Nothing was installed. Use install.sh of a newer release."
        fail "The signature of $base/SHA256SUMS is invalid." "Nothing was installed. Try again, and report the problem if it persists."
    }
}

# Finds the package of this architecture in the checksum list.
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
    [ -z "$version" ] || [ "$version" = "$offered" ] || fail "Found version $offered, expected $version." "$base contains another release."
}

check_package() {
    printf '%s  %s\n' "$sum" "$work/$deb" | sha256sum --check --status - ||
        fail "The checksum of $deb does not match." "Nothing was installed. The download may be damaged. Try again."
}

# Non-interactive, without progress output.
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get "$@" --yes --quiet -o Dpkg::Use-Pty=0; }

# Sets `state` and the installed version, also of an incomplete installation. dpkg keeps the configuration of a removed
# package.
look() {
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=not-installed
    before=''
    case $state in
        not-installed | config-files) ;;
        *) before=$(dpkg-query -W -f '${Version}' "$package") ;;
    esac
}

# Converts the version to dpkg's format, in which 1.3.0~rc1 is older than 1.3.0.
compare_with_installed() {
    look
    spelled=$(printf '%s' "$offered" | sed 's/\([0-9]\)\(a\|b\|rc\)\([0-9]\)/\1~\2\3/')
    if [ "$state $before" = "installed $spelled" ]; then
        say "$package $offered is already installed."
        exit 0
    fi
    [ -z "$before" ] || dpkg --compare-versions "$spelled" ge "$before" || fail \
        "$before is installed, and $offered is older." \
        "To downgrade: aks-flex-node unbootstrap, install.sh --uninstall, then install $offered."
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
    say "Verified the signature and the checksum of $deb."
    compare_with_installed
    say "This will${dry:+ (not with --dry-run)}:"
    say "  - install $package $offered${before:+ (installed: $before)} with apt-get"
    has python3 || say "  - install python3 from the packages of this system"
    say "  - start no service: the machine becomes a node when you run the join command"
    [ -z "$dry" ] || exit 0
    agree
    # apt reads packages as the user _apt. The files are not secret, and only root can change them.
    chmod 0755 "$work"
    chmod 0644 "$work/$deb"
    # Keeps changed configuration files without asking.
    apt_get install --no-install-recommends \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$work/$deb" ||
        fail "apt-get could not install the package. See the messages above."
    say "Installed: $package $offered. Next: aks-flex-node --help"
}

uninstall() {
    need_root
    has apt-get || fail "apt-get was not found."
    look
    case $state${purge:+ purge} in
        not-installed* | config-files) say "$package is not installed." && exit 0 ;;
    esac
    verb=remove
    [ -z "$purge" ] || verb=purge
    say "This will${dry:+ (not with --dry-run)}:"
    say "  - $verb $package${before:+ $before} with apt-get"
    [ -z "$purge" ] || say "  - delete /etc/$package with your configuration"
    say "  - keep python3 and all other packages"
    [ -z "$dry" ] || exit 0
    agree
    apt_get "$verb" "$package" || fail "apt-get could not remove the package. See the messages above."
    say "Removed: $package."
}

# The shell reads the whole script before it runs, so an incomplete download does nothing.
main() {
    read_options "$@"
    if [ -n "$uninstall" ]; then uninstall; else install; fi
}
main "$@"
