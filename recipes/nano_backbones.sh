#!/usr/bin/env bash
# Train nano backbones at the same time on one GPU. Alone, each waits for its host half of the time.
#
#     recipes/nano_backbones.sh [OUT] [MINUTES] [more options of nano_backbone.py]
#
# Models that exist in OUT are trained further; use another --seed then, to get other worlds. The shipped files:
#
#     recipes/nano_backbones.sh out 8.4
#     recipes/nano_backbones.sh out 7.5 --reading-share 0 --seed 1
#
# FAMILIES says which, separated by blanks: FAMILIES=gemma recipes/nano_backbones.sh out 9
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out}
minutes=${2:-9}
shift $(($# < 2 ? $# : 2))
read -r -a families <<<"${FAMILIES:-qwen3 qwen2}"
workers=$((($(nproc) - 2) / ${#families[@]}))
pids=()
for family in "${families[@]}"; do
    mkdir -p "$out/nano-$family"
    init=()
    if [[ -e "$out/nano-$family/model.safetensors" ]]; then init=(--init "$out/nano-$family"); fi
    PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTORCH_ALLOC_CONF=expandable_segments:True \
        python3 recipes/nano_backbone.py --family "$family" --minutes "$minutes" --workers "$workers" \
        --out "$out/nano-$family" "${init[@]}" "$@" >>"$out/nano-$family/log.txt" 2>&1 &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
tail -n 25 "$out"/nano-*/log.txt
exit "$failed"
