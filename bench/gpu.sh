#!/bin/sh
# Measure decoding on a GPU: sh bench/gpu.sh OUT [tests] [nvdec] [rates] [table] [keyframe] [long] [growth]
#
# Each part has a time limit and writes JSON to the folder OUT, and all write to OUT/gpu.log. They share the video files,
# which are written in the background first. DECODERS names the decoders of the tables.
set -u
out=$1
shift
parts=${*:-tests nvdec table growth}
files=${FILES:-/tmp/allocembed-files}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
mkdir -p "$out" "$files"
log=$out/gpu.log
: >"$log"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

run() { # NAME SECONDS COMMAND...
    name=$1 limit=$2 began=$(date +%s) before=$(wc -l <"$log")
    shift 2
    timeout "$limit" "$@" >>"$log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || failed="$failed $name"
    echo "== $name: exit $status after $(($(date +%s) - began)) s" | tee -a "$log"
    tail -n +"$((before + 1))" "$log" | grep -v 'Svt\[' | tail -n "${TAIL:-25}" | cut -c 1-400
}

wanted() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

writer=
failed=
if wanted table || wanted keyframe || wanted long || wanted rates || wanted growth; then
    growth=
    gops=
    wanted growth && growth=--growth
    { wanted table || wanted keyframe || wanted long || wanted rates; } && gops="50 250"
    # shellcheck disable=SC2086
    $python bench/files.py "$files" --gop $gops $growth >"$files/log" 2>&1 &
    writer=$!
fi
wanted tests && run tests 110 $python -m pytest -n 0 -q -p no:cacheprovider -o faulthandler_timeout=45 --durations 5 tests/video/test_nvdec_gpu.py
wanted tests && run colours 60 $python -m pytest -n 0 -q -p no:cacheprovider -k on_a_gpu tests/video/test_colours.py
wanted nvdec && run nvdec 120 $python bench/nvdec.py --shape qwen3-vl-2b --out "$out/nvdec.json"
if [ -n "$writer" ]; then
    wait "$writer"
    tee -a "$log" <"$files/log"
fi
wanted rates && run rates 110 $python bench/nvdec_rates.py --files "$files" --seconds 90 --out "$out/nvdec_rates.json"
pipeline="$python bench/pipeline.py --stream-only --compile --rounds 1 --files $files --decoder ${DECODERS:-auto nvdec}"
if wanted table; then
    run table2 170 $pipeline --videos 48 --shape qwen2-vl-2b --seek exact --gop 50 250 --trace 48 --minutes 2.6 \
        --out "$out/pipeline_exact_qwen2-vl-2b.json"
    run table3 110 $pipeline --videos 48 --shape qwen3-vl-2b --seek exact --gop 50 250 --trace 0 --minutes 1.6 \
        --out "$out/pipeline_exact_qwen3-vl-2b.json"
fi
wanted keyframe && run keyframe 110 $pipeline --videos 48 --shape qwen2-vl-2b --seek keyframe --gop 50 250 --trace 0 \
    --minutes 1.6 --out "$out/pipeline_keyframe_qwen2-vl-2b.json"
wanted long && run long 110 $pipeline --videos 192 --shape qwen3-vl-2b --seek exact --gop 250 --trace 0 --minutes 1.6 \
    --out "$out/pipeline_long_qwen3-vl-2b.json"
wanted growth && run growth 170 $python bench/growth_files.py --shape qwen3-vl-2b --compile --files "$files" \
    --minutes 2.5 --out "$out/growth_files.json"
[ -z "$failed" ] || echo "failed:$failed"
[ -z "$failed" ]
