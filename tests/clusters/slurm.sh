#!/usr/bin/env bash
# A Slurm cluster of two nodes on one machine, for test_slurm.py. As root, with Debian's slurm-wlm and munge:
#
#   cluster.sh start FOLDER     # then SLURM_CONF=FOLDER/slurm.conf sinfo
#   cluster.sh stop FOLDER
#
# The nodes "one" and "two" have a core each. Jobs of the partition "high" preempt those of "low", which are queued again.
set -euo pipefail
command=$1
folder=$(realpath "$2")
export SLURM_CONF=$folder/slurm.conf

start() {
    local host
    host=$(hostname -s)
    mkdir -p "$folder/state"
    install -d -o munge -g munge -m 700 /etc/munge /var/lib/munge /var/log/munge
    install -d -o munge -g munge -m 755 /run/munge
    if [[ ! -f /etc/munge/munge.key ]]; then
        install -o munge -g munge -m 400 <(head -c 1024 /dev/urandom) /etc/munge/munge.key
    fi
    # The launchers meet at the first machine by its name.
    grep -q "one two" /etc/hosts || echo "127.0.0.1 one two" >> /etc/hosts
    pgrep -x munged > /dev/null || runuser -u munge -- /usr/sbin/munged
    cat > "$SLURM_CONF" << CONF
ClusterName=two
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
NodeName=one,two NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=high Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
CONF
    slurmctld -c
    slurmd -N one
    slurmd -N two
    # Until both are idle.
    for _ in $(seq 60); do
        [[ $(sinfo --noheader --partition low --states idle --format %D) == 2 ]] && return
        sleep 0.5
    done
    sinfo >&2
    return 1
}

stop() {
    scancel --state RUNNING || true
    scancel --state PENDING || true
    for file in "$folder"/slurmd-*.pid "$folder/slurmctld.pid"; do
        [[ ! -f $file ]] || kill "$(cat "$file")"
    done
    # Not `sed -i`: in a container the file is mounted.
    grep -v "127.0.0.1 one two" /etc/hosts > "$folder/hosts"
    cat "$folder/hosts" > /etc/hosts
}

"$command"
