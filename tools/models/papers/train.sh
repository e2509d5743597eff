#!/bin/sh
# Train monobert-l6 and duobert-l6 on one core: sh tools/models/papers/train.sh START WORK
# START is all-MiniLM-L6-v2, WORK what data.py wrote. The same call resumes what was stopped.
set -eu
export OMP_NUM_THREADS=1
shared=soft=true,hard=false,loss=pointwise,draw=list,mine_at=0,dropout=0.0,precision=bf16,budget_tokens=768,freeze=embeddings,batch=32
[ -d "$2/monobert-l6" ] || osrerank train mono --init-from "$1" --data examples="$2/train.jsonl" --output "$2/monobert-l6" \
    --recipe "modern,kind=cross-encoder,head=logits2,$shared,temperature=4.0,negatives=4,depth=12,rate=1.5e-4,warmup=0.06,steps=${MONO_STEPS:-600}"
[ -d "$2/duobert-l6" ] || osrerank train duo --init-from "$2/monobert-l6" --data examples="$2/train.jsonl" --output "$2/duobert-l6" \
    --recipe "modern,third_row=frozen,$shared,temperature=3.0,negatives=2,depth=10,rate=1e-4,warmup=0.06,steps=${DUO_STEPS:-400}"
