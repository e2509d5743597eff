#!/bin/sh
# Train monobert-l6 and duobert-l6 on one core: sh tools/models/papers/train.sh START WORK
# START is all-MiniLM-L6-v2, WORK what data.py wrote. The same call resumes what was stopped.
set -eu
export OMP_NUM_THREADS=1
shared=soft=true,hard=false,loss=pointwise,temperature=4.0,draw=list,mine_at=0,dropout=0.0,precision=bf16,budget_tokens=1536
[ -d "$2/monobert-l6" ] || osrerank train mono --init-from "$1" --data examples="$2/train.jsonl" --output "$2/monobert-l6" \
    --recipe "modern,kind=cross-encoder,head=logits2,$shared,negatives=4,depth=12,batch=32,steps=${STEPS:-1000},rate=1.5e-4,warmup=0.06,freeze=embeddings"
