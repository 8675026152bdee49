#!/usr/bin/env bash
# Pre-training on several machines by torchrun; started once on each of them, with the same words on all:
#
#   MACHINES=4 FIRST=10.0.0.1 recipes/cluster/pretrain_torchrun.sh --config recipes/configs/pretrain/bert_large.yaml \
#       --store /shared/store --output_dir /shared/runs/bert_large
#
# Run it in the repository's root. Store and output_dir must be where all machines see them. In the environment:
#   MACHINES   their number (1)
#   FIRST      address of one of them, at which all meet (localhost)
#   PORT       there (29500)
#   PROCESSES  of a machine (gpu: one a GPU)
#   RESTARTS   how often all processes are started again when one is lost (0); they go on from the last checkpoint
#   PYTHON     the interpreter (.venv/bin/python)
set -euo pipefail

# torchrun gives a process 30 seconds to end when it is told to stop; a step and a checkpoint may take longer.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-600}
# With the shared store of torch 2.13 a machine that rejoins waits for an address that nobody tells it, until all time out.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}
exec "${PYTHON:-.venv/bin/python}" -m torch.distributed.run \
    --nnodes "${MACHINES:-1}" --nproc-per-node "${PROCESSES:-gpu}" --max-restarts "${RESTARTS:-0}" \
    --rdzv-backend c10d --rdzv-endpoint "${FIRST:-localhost}:${PORT:-29500}" --rdzv-id "${JOB:-bert-recipes}" \
    --rdzv-conf join_timeout=1800 \
    recipes/pretrain.py "$@"
