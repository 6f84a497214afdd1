#!/bin/sh
# Slurm: answers a large file of requests in parts, one for each task of an array:
#
#   sbatch --array=0-15 slurm-array.sh model.gguf requests.jsonl results
#
# Task N takes every 16th line from line N on. A task that is requeued goes on where it ended. Without Slurm it is one task.
#SBATCH --job-name=bilayer
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
set -eu

model=$1 requests=$2 results=$3
task=${SLURM_ARRAY_TASK_ID:-0}
first=${SLURM_ARRAY_TASK_MIN:-0}
count=${SLURM_ARRAY_TASK_COUNT:-1}

mkdir -p "$results"
[ ! -e "$results/answers-$task.jsonl" ] || exit 0
part=$results/requests-$task.jsonl
awk -v n="$count" -v k="$((task - first))" 'NR % n == (k + 1) % n' "$requests" > "$part.new"
mv "$part.new" "$part"
exec bilayer batch -m "$model" -t "${SLURM_CPUS_PER_TASK:-2}" "$part" "$results/answers-$task.jsonl"
