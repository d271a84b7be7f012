#!/bin/sh
# Sees to the system packages that the set-up needs: installs them where root, else says which.
# Without those of the second list only the engines that have to be built are left out.
set -eu
python=${1:-python3}

lacking=""
command -v "$python" >/dev/null 2>&1 || lacking="$lacking python3"
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || lacking="$lacking python3-venv"
command -v git >/dev/null 2>&1 || lacking="$lacking git"

useful=""
command -v c++ >/dev/null 2>&1 || useful="$useful g++"
command -v patch >/dev/null 2>&1 || useful="$useful patch"
"$python" -c 'import pathlib, sysconfig; assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()' \
    >/dev/null 2>&1 || useful="$useful python3-dev"
[ -z "$lacking$useful" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $lacking $useful
elif [ -n "$lacking" ]; then
    echo "Please install:$lacking$useful (Debian and Ubuntu: sudo apt-get install$lacking$useful), then try again." >&2
    exit 1
else
    echo "Horovod and BytePS will be left out; to have them: sudo apt-get install$useful, then make engines" >&2
fi
