#!/bin/sh
# A Slurm of one node on this machine, to try the launcher "slurm": for tests, not for work.
#
#     scripts/launchers/slurm_one_node.sh install          # the missing packages, as root
#     scripts/launchers/slurm_one_node.sh start [FOLDER]   # prints the variable to export
#     scripts/launchers/slurm_one_node.sh stop  [FOLDER]
#
# munged, slurmctld and slurmd run as the calling user, listen on the loopback only, and keep keys,
# configuration, logs and state in FOLDER (default: ddlnb-slurm-UID in TMPDIR), which stop removes.
# Only install installs anything, on Debian or Ubuntu. The node claims 64 CPUs, however many there
# are: ranks share them.
set -eu
umask 077
action=${1:-}
folder=${2:-${TMPDIR:-/tmp}/ddlnb-slurm-$(id -u)}
PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF="$folder/slurm.conf"

fail() {
    echo "slurm_one_node.sh: $*" >&2
    exit 1
}

missing_packages() {
    command -v munged >/dev/null || echo munge
    for program in slurmctld slurmd sbatch; do
        command -v $program >/dev/null || { echo slurm-wlm && break; }
    done
}

install_packages() {
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    [ "$(id -u)" = 0 ] || fail "not root; as root: apt-get install $packages"
    command -v apt-get >/dev/null || fail "no apt-get: install what is called $packages on Debian"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $packages >&2
}

# Two ports that nobody listens on.
free_ports() {
    python3 -c '
import socket
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in listeners))'
}

write_configuration() {
    # shellcheck disable=SC2046
    set -- $(free_ports)
    name=$(uname -n | cut -d. -f1)
    user=$(id -un)
    cat >"$SLURM_CONF" <<CONF
ClusterName=ddlnb
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$1
SlurmdPort=$2
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/state/slurmctld.pid
SlurmdPidFile=$folder/state/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
MpiDefault=none
NodeName=$name NodeAddr=127.0.0.1 CPUs=64 State=UNKNOWN
PartitionName=all Nodes=$name Default=YES MaxTime=60 State=UP
CONF
}

# In the foreground, and put aside by us: so its number is known at once, whatever becomes of it.
launch() {
    setsid "$1" -D >"$folder/$1.out" 2>&1 </dev/null &
    echo $! >"$folder/$1.pid"
}

wait_for() {
    tries=0
    until eval "$2"; do
        tries=$((tries + 1))
        is_running "$1" && [ $tries -lt 100 ] ||
            fail "$1 did not start: $(tail -n 3 "$folder/$1.out")"
        sleep 0.2
    done
}

# In a folder for everybody another user may have put a folder of this name, or a link: what it
# says is not ours, and no process is ended for it.
require_own() {
    [ ! -e "$folder" ] && [ ! -L "$folder" ] && return
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] ||
        fail "$folder is not a folder of $(id -un); remove it or give another"
}

# A dead process that nobody has asked about yet does not count.
is_alive() {
    kill -0 "$1" 2>/dev/null && ! grep -qs '^State:.Z' "/proc/$1/status"
}

is_running() {
    [ -s "$folder/$1.pid" ] && is_alive "$(cat "$folder/$1.pid")"
}

start() {
    if is_running munged && is_running slurmctld && is_running slurmd; then
        return
    fi
    stop
    [ ${#folder} -le 80 ] || fail "the folder $folder is too long a name for a socket: give another"
    packages=$(missing_packages | tr '\n' ' ')
    [ -z "$packages" ] || fail "needs ${packages}(sudo apt-get install $packages)"
    trap 'stop' EXIT
    trap 'exit 1' INT TERM HUP
    mkdir "$folder" "$folder/state" "$folder/spool"
    chmod 711 "$folder" # munge wants its socket reachable; the files in it are private
    write_configuration
    head -c 1024 /dev/urandom >"$folder/munge.key"
    munged --key-file "$folder/munge.key" --socket "$folder/munge.socket" \
        --pid-file "$folder/munged.pid" --log-file "$folder/munged.log" \
        --seed-file "$folder/munged.seed" || fail "munged did not start"
    launch slurmctld
    wait_for slurmctld "timeout 2 scontrol ping >/dev/null 2>&1"
    launch slurmd
    wait_for slurmd '[ "$(timeout 2 sinfo --noheader --format=%t 2>/dev/null)" = idle ]'
    trap - EXIT INT TERM HUP
}

stop() {
    if is_running slurmctld; then
        timeout 5 scancel --user="$(id -un)" --full 2>/dev/null || true
        tries=0
        while [ -n "$(timeout 5 squeue --noheader 2>/dev/null)" ] && [ $tries -lt 50 ]; do
            tries=$((tries + 1))
            sleep 0.2
        done
    fi
    for daemon in slurmd slurmctld munged; do
        is_running $daemon || continue
        pid=$(cat "$folder/$daemon.pid")
        kill "$pid"
        tries=0
        while is_alive "$pid"; do
            tries=$((tries + 1))
            [ $tries -lt 50 ] || kill -9 "$pid"
            sleep 0.1
        done
    done
    rm -rf "$folder"
}

case $action in
install) install_packages ;;
start)
    require_own
    start
    echo "export SLURM_CONF=$SLURM_CONF"
    ;;
stop)
    require_own
    stop
    ;;
*) fail "say install, start or stop, and a folder if the default is not right" ;;
esac
