#!/bin/sh
# Builds and installs the engines that PyPI offers as source only, into the environment of a Python.
#
#     scripts/install_engines.sh .venv/bin/python [wheels]
#
# With the word `wheels` they are built and kept, but not installed. Each engine has a script
# scripts/engines/NAME.sh that puts a wheel into the folder it is given. A wheel is kept under the
# user's cache and built again only when Python, torch or the recipe change. `NAME.sh variant` tells
# what else a build depends on. An engine that cannot be built here is reported and left out:
# `ddlnb doctor` says what is missing.
set -u
python=$1
here=$(cd "$(dirname "$0")" && pwd)
cache=${DDLNB_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/ddlnb/wheels}

versions=$("$python" -c 'import sys, platform, torch; print(sys.implementation.cache_tag, platform.machine(), torch.__version__)') || exit 1
folder_of() { # SCRIPT: of its wheel
    name=$(basename "$1" .sh)
    recipe=$({ cat "$1"; find "$here/engines/$name" -type f -print0 2>/dev/null | sort -z | xargs -0r cat; } |
        sha256sum | cut -c1-12)
    echo "$cache/$name-$(echo "$versions $(sh "$1" variant)" | tr ' +' '--')-$recipe"
}

build() { # SCRIPT: puts its wheel into its folder, which appears when the build has succeeded
    name=$(basename "$1" .sh)
    folder=$(folder_of "$1")
    ls "$folder"/*.whl >/dev/null 2>&1 && return
    echo "Building the engine $name; this takes some minutes, once. Log: $folder.log"
    mkdir -p "$cache"
    rm -rf "$folder.building"
    mkdir "$folder.building"
    if sh "$1" "$python" "$folder.building" >"$folder.log" 2>&1; then
        mv -T "$folder.building" "$folder"
    else
        echo "The engine $name was not built; all else works without it. The end of the log:" >&2
        tail -n 5 "$folder.log" >&2
        rm -rf "$folder.building"
    fi
}

if [ "${2:-}" = build ]; then
    build "$3"
    exit
fi
# Two at a time: long stretches of a build, such as configuring and linking, use one core.
printf '%s\n' "$here"/engines/*.sh | xargs -P 2 -I '{}' sh "$0" "$python" build '{}'
[ "${2:-}" != wheels ] || exit 0
for script in "$here"/engines/*.sh; do
    folder=$(folder_of "$script")
    ls "$folder"/*.whl >/dev/null 2>&1 || continue
    "$python" -m pip install --quiet --no-deps --no-index --force-reinstall "$folder"/*.whl
done
