#!/bin/sh
# An SSH server on the loopback of this machine, to try the launcher "ssh": for tests, not for work.
#
#     scripts/launchers/ssh_loopback.sh install          # the missing packages, as root
#     scripts/launchers/ssh_loopback.sh start [FOLDER]   # prints the variable to export
#     scripts/launchers/ssh_loopback.sh stop  [FOLDER]
#
# The server lets in the calling user only, with a key made for it. Its keys, its configuration and
# that of the client are in FOLDER (default: ddlnb-ssh-UID in TMPDIR), which stop removes; ~/.ssh is
# neither read nor written. The client's configuration calls the server "loopback":
# Ranks(4, launcher="ssh", hosts=["loopback"]). Only install installs anything, on Debian or Ubuntu.
set -eu
umask 077
action=${1:-}
folder=${2:-${TMPDIR:-/tmp}/ddlnb-ssh-$(id -u)}
PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "ssh_loopback.sh: $*" >&2
    exit 1
}

missing_packages() {
    command -v ssh >/dev/null || echo openssh-client
    command -v sshd >/dev/null || echo openssh-server
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

write_configurations() {
    port=$(python3 -c 'import socket
print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
    ssh-keygen -q -t ed25519 -N "" -C "" -f "$folder/host_key"
    ssh-keygen -q -t ed25519 -N "" -C "" -f "$folder/user_key"
    cp "$folder/user_key.pub" "$folder/authorized_keys"
    echo "[127.0.0.1]:$port $(cat "$folder/host_key.pub")" >"$folder/known_hosts"
    cat >"$folder/sshd_config" <<CONF
ListenAddress 127.0.0.1:$port
PidFile none
HostKey $folder/host_key
AuthorizedKeysFile $folder/authorized_keys
AllowUsers $(id -un)
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
AllowTcpForwarding no
AllowAgentForwarding no
MaxStartups 100
CONF
    cat >"$folder/ssh_config" <<CONF
Host loopback 127.0.0.1
    HostName 127.0.0.1
    Port $port
    User $(id -un)
    IdentityFile $folder/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile $folder/known_hosts
    GlobalKnownHostsFile none
CONF
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
    [ -s "$folder/sshd.pid" ] && is_alive "$(cat "$folder/sshd.pid")"
}

start() {
    if is_running; then
        return
    fi
    stop
    packages=$(missing_packages | tr '\n' ' ')
    [ -z "$packages" ] || fail "needs ${packages}(sudo apt-get install $packages)"
    trap 'stop' EXIT
    trap 'exit 1' INT TERM HUP
    mkdir "$folder"
    write_configurations
    # The folder into which sshd locks itself before a login; the package's service makes it.
    [ "$(id -u)" != 0 ] || mkdir -p -m 755 /run/sshd
    # In the foreground, and put aside by us: so its number is known at once.
    setsid "$(command -v sshd)" -D -f "$folder/sshd_config" -E "$folder/sshd.log" >/dev/null 2>&1 </dev/null &
    echo $! >"$folder/sshd.pid"
    tries=0
    until ssh -F "$folder/ssh_config" -o BatchMode=yes loopback true 2>"$folder/ssh.log" </dev/null; do
        tries=$((tries + 1))
        is_running && [ $tries -lt 50 ] ||
            fail "no login: $(tail -q -n 2 "$folder/ssh.log" "$folder/sshd.log")"
        sleep 0.2
    done
    trap - EXIT INT TERM HUP
}

stop() {
    if is_running; then
        pid=$(cat "$folder/sshd.pid")
        # Open sessions are children of the server, and would outlive it.
        children=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null || true)
        # shellcheck disable=SC2086
        kill "$pid" $children 2>/dev/null || true
        tries=0
        while is_alive "$pid"; do
            tries=$((tries + 1))
            [ $tries -lt 50 ] || kill -9 "$pid"
            sleep 0.1
        done
    fi
    rm -rf "$folder"
}

case $action in
install) install_packages ;;
start)
    require_own
    start
    echo "export DDLNB_SSH_CONFIG=$folder/ssh_config"
    ;;
stop)
    require_own
    stop
    ;;
*) fail "say install, start or stop, and a folder if the default is not right" ;;
esac
