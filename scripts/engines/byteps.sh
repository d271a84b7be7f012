#!/bin/sh
# Builds BytePS's wheel from its source on PyPI, with the patches of byteps/, for a Python that has
# torch.
#
#     scripts/engines/byteps.sh .venv/bin/python FOLDER
#
# For PyTorch on CPUs only: no CUDA, NCCL or RDMA. Takes three to four minutes. ps-lite and
# ZeroMQ 4.1.4 come with the source. docs/byteps.md says what the patches mend.
set -eu
if [ "$1" = variant ]; then echo cpu && exit; fi
version=0.2.5.post15
python=$1
folder=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)/byteps

lacks() {
    echo "BytePS cannot be built here: $1" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] || lacks "it needs Linux"
"$python" -c 'import torch' 2>/dev/null || lacks "$python has no torch; run make env"
"$python" -c 'import setuptools' 2>/dev/null || lacks "$python has no setuptools; run make env"
for tool in make patch tar; do
    command -v "$tool" >/dev/null || lacks "no $tool; apt install $tool"
done
CC=${CC:-gcc}
CXX=${CXX:-g++}
export CC CXX
for flags in -std=c++20 -fopenmp; do
    printf '#include <cstdint>\n' | "$CXX" $flags -fsyntax-only -x c++ - 2>/dev/null ||
        lacks "'$CXX $flags' fails; apt install g++ (11 or later)"
done
printf '#include <Python.h>\n' |
    "$CXX" -fsyntax-only -x c++ -I "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" - 2>/dev/null ||
    lacks "no headers of Python; apt install python3-dev"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
jobs=$(nproc)

"$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary byteps \
    --dest "$scratch" "byteps==$version"
tar -x -z -C "$scratch" -f "$scratch/byteps-$version.tar.gz"
source=$scratch/byteps-$version
for change in "$here"/*.patch; do
    echo "patch: $(basename "$change")"
    patch -p1 -d "$source" <"$change"
done
cp -r "$here/stubs" "$source/3rdparty/stubs"

# setup.py would fetch ZeroMQ from the web and build ps-lite's tests; it leaves out what it finds.
lite=$source/3rdparty/ps-lite
tar -x -z -C "$scratch" -f "$source/zeromq-4.1.4.tar.gz"
(
    cd "$scratch/zeromq-4.1.4"
    ./configure --quiet --prefix="$lite/deps" --disable-shared --enable-static --with-pic \
        --with-libsodium=no --with-libgssapi_krb5=no --without-documentation \
        CXXFLAGS='-O2 -fPIC -Wno-error'
    make -j "$jobs" libzmq.la
    make install-libLTLIBRARIES install-includeHEADERS
)
make -C "$lite" -j "$jobs" ps CFLAGS='-std=c++14 -fPIC -O3 -include cstdint $(INCPATH)'

LDFLAGS='-Wl,-s' \
    BYTEPS_WITHOUT_CUDA=1 BYTEPS_WITHOUT_RDMA=1 \
    BYTEPS_WITHOUT_TENSORFLOW=1 BYTEPS_WITHOUT_MXNET=1 BYTEPS_WITH_PYTORCH=1 \
    "$python" -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
    --wheel-dir "$folder" "$source"
