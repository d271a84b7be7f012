"""For a queue that needs a script of its own: copy into the folder of an IPython profile.

    ipython profile create --parallel mycluster

and say launcher="mycluster". Words in braces are filled in by ipyparallel.
"""

c = get_config()  # noqa: F821

c.Cluster.engine_launcher_class = "slurm"
c.SlurmEngineSetLauncher.batch_template = """#!/bin/sh
#SBATCH --partition=gpu
#SBATCH --account=project
#SBATCH --time=30
#SBATCH --ntasks={n}
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --output={output_file}
module load cuda
export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
srun {program_and_args}
"""
