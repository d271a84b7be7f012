#!/bin/sh
# Sees to the system packages that the set-up needs: installs them where root, else says which.
# Without those of the second list the engines that have to be built are left out; without those of
# the third Horovod is built without MPI, and there is no launcher mpi. Tests compare the network
# simulator with SimGrid where the system's Python has it.
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
mpi=""
printf '#include <mpi.h>\n' | mpicxx -fsyntax-only -x c++ - >/dev/null 2>&1 || mpi=" libopenmpi-dev"
command -v mpiexec >/dev/null 2>&1 || mpi="$mpi openmpi-bin"
simgrid=""
[ ! -x /usr/bin/python3 ] || /usr/bin/python3 -c 'import simgrid' >/dev/null 2>&1 || simgrid=" python3-simgrid"
[ -z "$lacking$useful$mpi$simgrid" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq || [ -z "$lacking$useful$mpi" ]
    # shellcheck disable=SC2086
    [ -z "$lacking$useful" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $lacking $useful
    # shellcheck disable=SC2086
    [ -z "$mpi" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $mpi ||
        echo "MPI was not installed; all else works without it" >&2
    if [ -n "$simgrid" ] && apt-cache show python3-simgrid >/dev/null 2>&1; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-simgrid ||
            echo "SimGrid was not installed; tests that compare with it are skipped" >&2
    fi
elif [ -n "$lacking" ]; then
    echo "Please install:$lacking$useful (Debian and Ubuntu: sudo apt-get install$lacking$useful), then try again." >&2
    exit 1
else
    [ -z "$useful" ] || echo "Horovod and BytePS will be left out; to have them: sudo apt-get install$useful, then make engines" >&2
    [ -z "$mpi" ] || echo "MPI will be left out; to have it: sudo apt-get install$mpi, then make engines" >&2
fi
