#!/bin/sh
# Builds Horovod's wheel from its source on PyPI for a Python that has torch.
#
#     scripts/engines/horovod.sh .venv/bin/python FOLDER
#
# With gloo always, with MPI where mpicxx and mpirun are, for PyTorch on CPUs only. One line is mended:
# Horovod looks up the interface it was told (HOROVOD_GLOO_IFACE) for one of its connections and the
# host's name for the other, which is 127.0.0.1 on many machines and on every emulated node. The
# wheel's version ends in +iface. Takes 3 to 7 minutes on two cores.
#     scripts/engines/horovod.sh variant     # prints mpi or gloo: what it would be built with
set -eu

# Some distributions have mpicxx without MPI's headers.
has_mpi() {
    command -v mpirun >/dev/null && printf '#include <mpi.h>\n' | mpicxx -fsyntax-only -x c++ - 2>/dev/null
}
if [ "$1" = variant ]; then
    if has_mpi; then echo mpi; else echo gloo; fi
    exit
fi

version=0.28.1
python=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)

lacks() {
    echo "Horovod cannot be built here: $1" >&2
    exit 1
}

"$python" -c 'import torch' 2>/dev/null || lacks "$python has no torch; run make env"
"$python" -c 'import setuptools' 2>/dev/null || lacks "$python has no setuptools; run make env"
DDLNB_CXX=${CXX:-c++}
export DDLNB_CXX
command -v "$DDLNB_CXX" >/dev/null || lacks "no C++ compiler '$DDLNB_CXX'; apt install g++"
command -v make >/dev/null || lacks "no make; apt install make"
printf '#include <Python.h>\n' |
    "$DDLNB_CXX" -fsyntax-only -x c++ -I "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" - 2>/dev/null ||
    lacks "no headers of Python; apt install python3-dev"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
if ! command -v cmake >/dev/null; then
    # Not into the environment of $python: only this build needs it.
    "$python" -m venv "$scratch/cmake"
    "$scratch/cmake/bin/python" -m pip install --quiet cmake || lacks "no cmake; apt install cmake"
    PATH="$scratch/cmake/bin:$PATH"
    export PATH
fi

if has_mpi; then
    export HOROVOD_WITH_MPI=1
else
    echo "without MPI: there is no mpirun, or mpicxx does not find mpi.h"
    export HOROVOD_WITHOUT_MPI=1
fi
case $(uname -m) in
    x86_64) flags='-mavx -mf16c -mfma' ;;
    *) flags='' ;;
esac

"$python" -m pip download --quiet --no-cache-dir --no-deps --no-build-isolation \
    --no-binary horovod --dest "$scratch" "horovod==$version"
tar -xzf "$scratch/horovod-$version.tar.gz" -C "$scratch"
source="$scratch/horovod-$version"
mend() { # FILE PATTERN REPLACEMENT
    grep -q "$2" "$source/$1" || lacks "its source is not the expected one: no '$2' in $1"
    sed -i "s/$2/$3/" "$source/$1"
}
line='assert(global_context.IsEnabled());' # the first of the function that makes the second mesh
mend horovod/common/gloo/gloo_context.cc "$line" "$line gloo_iface_ = global_context.gloo_iface_;"
mend horovod/__init__.py "'$version'" "'$version+iface'"

# Horovod does not ask for <cstdint>, which newer compilers want; its own gloo is CMake 2's.
TMPDIR=$scratch \
    CXX="$here/horovod/cxx" \
    CXXFLAGS='-include cstdint' \
    LDFLAGS='-Wl,-s' \
    CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    HOROVOD_BUILD_ARCH_FLAGS="$flags" \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 \
    "$python" -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
    --wheel-dir "$folder" "$source"
