//! Checks that every flag of llama.cpp is a flag of ours or has advice.

use std::ffi::OsString;

use crate::args::typed::ready;

/// Flags of llama-cli and llama-server, as their documentation lists them.
const BOTH: &str = "\
    -h --help --usage --version -cl --cache-list --completion-bash -t --threads -tb --threads-batch -C --cpu-mask -Cr \
    --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch \
    --poll-batch -c --ctx-size -n --predict --n-predict -b --batch-size -ub --ubatch-size --keep --swa-full -fa --flash-attn \
    --perf --no-perf -e --escape --no-escape --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx \
    --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo --kv-offload -nkvo --no-kv-offload --repack \
    -nr --no-repack --no-host -ctk --cache-type-k -ctv --cache-type-v -dt --defrag-thold --rpc --mlock --mmap --no-mmap -dio \
    --direct-io -ndio --no-direct-io -lm --load-mode -lzm --lazy-mode --numa -dev --device --list-devices -ot \
    --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe --moe-cache-mib -ncffn --n-cpu-ffn -ngl --gpu-layers --n-gpu-layers \
    -sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors \
    --override-kv --op-offload --no-op-offload --lora --lora-scaled --control-vector --control-vector-scaled \
    --control-vector-layer-range -m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft \
    --hf-token --log-disable --log-file --log-colors -v --verbose --log-verbose --offline -lv --verbosity --log-verbosity \
    --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --spec-draft-type-k -ctkd --cache-type-k-draft \
    --spec-draft-type-v -ctvd --cache-type-v-draft --samplers -s --seed --sampler-seq --sampling-seq --ignore-eos --temp \
    --temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p \
    --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length \
    --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat \
    --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file -bs \
    --backend-sampling -ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram --context-shift --no-context-shift -r \
    --reverse-prompt -sp --special --warmup --no-warmup -np --parallel -mm --mmproj -mmu --mmproj-url --mmproj-auto \
    --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image-min-tokens \
    --image-max-tokens --chat-template-kwargs --jinja --no-jinja --reasoning-format -rea --reasoning --reasoning-effort \
    --reasoning-budget --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve --chat-template \
    --chat-template-file --skip-chat-parsing --no-skip-chat-parsing --log-prompts-dir --spec-draft-hf -hfd -hfrd \
    --hf-repo-draft --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft \
    --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict \
    --cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd \
    --cpu-mask-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft \
    --spec-draft-poll-batch --poll-batch-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe \
    -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-draft-n-max \
    --spec-draft-n-min --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min --spec-draft-backend-sampling \
    --no-spec-draft-backend-sampling --spec-draft-sampling --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld \
    --gpu-layers-draft --n-gpu-layers-draft --spec-draft-model -md --model-draft --spec-type --spec-ngram-mod-n-min \
    --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m \
    --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits \
    --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max \
    --draft-min --draft-n-min --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-default \
    --gpt-oss-20b-default --vision-gemma-4b-default";

/// Flags of llama-cli alone.
const CLI: &str = "\
    -p --prompt -f --file -bf --binary-file --server-base --verbose-prompt --display-prompt --no-display-prompt -co --color \
    -sys --system-prompt --show-timings --no-show-timings -sysf --system-prompt-file -cnv --conversation -no-cnv \
    --no-conversation -st --single-turn -mli --multiline-input --image --audio --video --simple-io";

/// Flags of llama-server alone.
const SERVER: &str = "\
    -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --kv-unified-per-slot -cms --checkpoint-min-step -kvu --kv-unified \
    -no-kvu --no-kv-unified --cache-idle-slots --no-cache-idle-slots --spm-infill --pooling -cb --cont-batching -nocb \
    --no-cont-batching --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir -a --alias --tags \
    --embd-normalize --host --port --reuse-port --path --cors-origins --cors-methods --cors-headers --cors-credentials \
    --no-cors-credentials --api-prefix --ui-config --webui-config --ui-config-file --webui-config-file --ui-mcp-proxy \
    --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy --tools --tools-runtime --mcp-servers-config --mcp-servers-json \
    -ag --agent -no-ag --no-agent --ui --webui --no-ui --no-webui --embedding --embeddings --rerank --reranking --api-key \
    --api-key-file --ssl-key-file --ssl-cert-file -to --timeout --sse-ping-interval --threads-http --cache-prompt \
    --no-cache-prompt --cache-reuse --metrics --props --slots --no-slots --slot-save-path --media-path --models-dir \
    --models-preset --models-max --models-autoload --no-models-autoload --prefill-assistant --no-prefill-assistant -sps \
    --slot-prompt-similarity --lora-init-without-apply --sleep-idle-seconds --log-jsonl --no-log-jsonl --spec-synth-len \
    --spec-synth-rates";

#[test]
fn every_flag_of_llama_cpp_is_known() {
    let mut cli = crate::args::command();
    cli.build();
    let mut unknown = Vec::new();
    for (command, own) in [("run", CLI), ("serve", SERVER)] {
        for flag in BOTH.split(' ').chain(own.split(' ')) {
            let typed = ["bilayer", command, flag, "1"].map(OsString::from).to_vec();
            if let Err(error) = ready(typed, &cli, &mut Vec::new())
                && error.into_line().contains("has no flag")
            {
                unknown.push(format!("{command} {flag}"));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
}
