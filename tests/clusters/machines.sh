#!/usr/bin/env bash
# Two network namespaces that reach only each other, as two machines; for test_two_machines.py. As root, with iproute2:
#
#   machines.sh start                 # bert-one: 10.77.0.1; bert-two: 10.77.0.2
#   machines.sh on bert-one COMMAND
#   machines.sh lose bert-two         # it is off the network, and all that runs there is killed
#   machines.sh find bert-two         # it is on the network again
#   machines.sh stop
set -euo pipefail

start() {
    ip netns add bert-one
    ip netns add bert-two
    # Each knows the other's name.
    for name in one two; do
        mkdir -p "/etc/netns/bert-$name"
        printf '127.0.0.1 localhost\n10.77.0.1 bert-one\n10.77.0.2 bert-two\n' > "/etc/netns/bert-$name/hosts"
    done
    ip link add veth-one netns bert-one type veth peer name veth-two netns bert-two
    local number=1
    for name in one two; do
        ip -n "bert-$name" address add "10.77.0.$number/24" dev "veth-$name"
        ip -n "bert-$name" link set "veth-$name" up
        ip -n "bert-$name" link set lo up
        number=$((number + 1))
    done
}

on() {
    local machine=$1
    shift
    # shellcheck disable=SC2016
    exec ip netns exec "$machine" unshare --uts bash -c 'hostname "$0" && exec "$@"' "$machine" "$@"
}

kill_all() {
    ip netns pids "$1" | xargs --no-run-if-empty kill -KILL
}

lose() {
    ip -n "$1" link set "veth-${1#bert-}" down
    kill_all "$1"
}

find() {
    ip -n "$1" link set "veth-${1#bert-}" up
}

stop() {
    for name in one two; do
        kill_all "bert-$name"
        ip netns delete "bert-$name"
        rm -r "/etc/netns/bert-$name"
    done
}

"$@"
