#!/bin/bash
# Llama 3 8B on two nodes of 8 H100.
GPUS_PER_NODE=8
NUM_NODES=2
TP=4
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port 6000
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --swiglu
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
    --disable-bias-linear
    --vocab-size 128256
    --moe-pad-expert-input-to-capacity
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} \
    --micro-batch-size 1 --global-batch-size 128 --bf16 \
    --lr 3e-4 --lr-decay-style cosine --train-iters 1000 --log-interval 1
