#!/usr/bin/env bash
# run_mpirun.sh - the run of gpt2_124M.sh on several nodes by mpirun, started again from the last checkpoint until it is done
#
# Run it on the first node, in a folder that has the same path on all of them. mpirun (OpenMPI) must reach the others by ssh without a password.
# HOSTS=a:8,b:8 INTERFACE=ib0 scripts/multi_node/run_mpirun.sh; for one node of 8 GPUs HOSTS=localhost:8
# To stop it with a checkpoint send TERM to this script, not to mpirun, which would kill the ranks while they write.
set -eu
cd "$(dirname "$0")/../.."
hosts=${HOSTS:-node1:8,node2:8}     # host:GPUs,...
INTERFACE=${INTERFACE:-eth0}        # network interface of MPI and NCCL
server_ip=${SERVER_IP:-}            # the first node's address, on which the ranks meet; empty: the first one that the others reach
. scripts/multi_node/gpt2_124M.sh

if [[ ! $hosts =~ ^([^:,]+:[1-9][0-9]*)(,[^:,]+:[1-9][0-9]*)*$ ]]; then echo "run_mpirun.sh: HOSTS='$hosts' is not of the form host:GPUs,host:GPUs..." >&2; exit 2; fi
processes=0
for host in ${hosts//,/ }; do processes=$((processes + ${host#*:})); done
exec scripts/run_until_done.sh mpirun -np "$processes" --host "$hosts" --bind-to none --mca btl_tcp_if_include "$INTERFACE" \
    -x NCCL_SOCKET_IFNAME -x NCCL_NET_GDR_LEVEL -x NCCL_P2P_LEVEL -x NCCL_IB_DISABLE \
    "${run[@]}" ${server_ip:+--server-ip "$server_ip"}
