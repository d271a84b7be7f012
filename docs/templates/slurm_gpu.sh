# For a GPU cluster with Slurm: copy, fill in, and source on the login node before measuring.
#
#     . ./slurm_gpu.sh
#     .venv/bin/ddlnb measure --model resnet50 --workers 8 --launcher slurm --host "$DDLNB_ADDRESS" \
#         --device cuda --backend nccl --network 100GbIB --out rows.csv
#
# sbatch reads the SBATCH variables instead of options; its manual page lists them all.

export SBATCH_PARTITION=gpu
export SBATCH_ACCOUNT=project
export SBATCH_TIMELIMIT=30          # minutes; with --profile paper as many as your queue allows
export SBATCH_GPUS_PER_TASK=1       # a GPU for each rank: for parameter servers, too
export SBATCH_EXCLUSIVE=user        # a measurement wants no neighbours

# A folder that the login node and the compute nodes share.
export TMPDIR=$HOME/ddlnb-tmp
mkdir -p "$TMPDIR"

# The address of this machine in the network of the compute nodes: the one on the way to node1.
DDLNB_ADDRESS=$(ip -4 route get "$(getent ahostsv4 node1 | awk '{ print $1; exit }')" |
    sed -n 's/.* src \([0-9.]*\).*/\1/p')
export DDLNB_ADDRESS

# Which network the gradients take. The names are of your nodes: `ip link`, `ibv_devices`.
export NCCL_SOCKET_IFNAME=ib0       # for NCCL's set-up, and for its traffic without InfiniBand
export GLOO_SOCKET_IFNAME=ib0       # for gloo
export NCCL_IB_HCA=mlx5_0
# export NCCL_DEBUG=INFO            # says which network it took
