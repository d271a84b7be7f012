#!/bin/sh
# Sees to the system packages that the set-up needs: installs them where root, else says which.
set -eu
python=${1:-python3}

lacking=""
command -v "$python" >/dev/null 2>&1 || lacking="$lacking python3"
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || lacking="$lacking python3-venv"
command -v git >/dev/null 2>&1 || lacking="$lacking git"
[ -z "$lacking" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $lacking
else
    echo "Please install:$lacking (Debian and Ubuntu: sudo apt-get install$lacking), then try again." >&2
    exit 1
fi
