// The table of commands. A new command is one cmd_*.cpp file, its declaration in command.h, and one row here.
#include "cli/command.h"

namespace ridge::cli {

std::span<const Group> groups() {
  static constexpr Group kGroups[] = {
      {"eval", "quality on a text: perplexity, KL divergence"},
      {"bench", "speed, and the machine's ceilings"},
  };
  return kGroups;
}

std::span<const Command> commands() {
  static constexpr Command kCommands[] = {
      {"run", "generate text",
       "Streams text to stdout: the answer to a message, or the continuation of a text. If the model has a chat "
       "template (an instruct model), the prompt is a user's message, else plain text. --raw always means plain text, "
       "--chat always a message. Start-up facts and final statistics go to stderr.",
       "ridge run -m models/stories260K.gguf -p \"Once upon a time\" -n 100\n"
       "ridge run -m instruct.gguf -p \"What is the capital of France?\" --system \"Answer in one word.\"\n"
       "ridge run -m model.gguf -f prompt.txt --raw --kv-quant rotor-3 --temp 0\n"
       "ridge run -m model.gguf -f - -ctk q8_0 -ctv rotor-3 --stop '###' < prompt.txt",
       declare_run},
      {"serve", "answer many requests at once, over HTTP",
       "OpenAI's API (/v1/chat/completions, /v1/completions, /v1/models) and a page for browsers at /, for many "
       "clients at once. One forward pass computes tokens of many requests and parts of prompts, shared prefixes are "
       "computed once, and a request may name its cache format (kv_quant). /kv, /slots and /metrics show the "
       "server's state. docs/serving.md has every field. Ctrl-C ends the server cleanly.",
       "ridge serve -m models/ridge-ref-q8_0.gguf --kv-quant rotor-3\n"
       "ridge serve -m model.gguf --spec-type draft --draft-model small.gguf\n"
       "mpirun -np 2 --bind-to none ridge serve -m model.gguf --tp 2 --device cuda\n"
       "ridge serve -m model.gguf --device cuda --host 0.0.0.0 --api-key-file keys.txt --ctx-size 32768",
       declare_serve},
      {"chat", "talk with a model, or let two talk",
       "A conversation with streamed answers. The cache stays from turn to turn. Ctrl-C stops an answer, Ctrl-D "
       "leaves, /help lists the commands. When stdin is not a terminal, its lines are the messages. With --debate "
       "two system prompts or two models answer each other. Models without a chat template get lines of \"User: ...\" "
       "and \"Assistant: ...\".",
       "ridge chat -m model.gguf --kv-quant rotor-3\n"
       "ridge chat -m model.gguf --debate \"Ann: You love cats.\" \"Bob: You love dogs.\" --topic pets --turns 20\n"
       "ridge chat --debate first.gguf second.gguf --topic \"the best format of a cache\"",
       declare_chat},
      {"top", "watch a server in the terminal, and chat with it",
       "Four pages: chat; requests, queue and throughput; norms and coding errors of the cache by layer and page; "
       "pools "
       "and memory. F1 and F2 (or 1 to 4) turn pages, Tab moves the focus, Esc stops an answer, Ctrl-R resets the "
       "chat, "
       "q or Ctrl-C ends. The server may be on another machine. --once prints the requests page as text, --json what "
       "/props, /slots and /kv say.",
       "ridge top\nridge top http://gpu-box:8080 --api-key-file key.txt\nridge top --once", declare_top},
      {"eval ppl", "perplexity",
       "Perplexity of a text with llama-perplexity's windows: chunks of --ctx-size tokens, the second half scored. "
       "Give --kv LIST to compare cache formats in one run.",
       "ridge eval ppl -m model.gguf -f wiki.test.raw\n"
       "ridge eval ppl -m model.gguf -f wiki.test.raw --path decode --kv f16,q8_0,rotor-3",
       declare_eval_ppl},
      {"eval kld", "KL divergence of KV cache formats from f16",
       "Runs the same weights with the base cache and with every cache of --kv, in lockstep, and prints how far the "
       "distributions differ, with llama-perplexity's statistics. Memory does not grow with the text. When the base is "
       "not in the list it is added as the control row. With int8 activations (q8_0, q4_0 and int4_g128 weights) any "
       "change moves some roundings: an f32 row shows that floor. The table says bits a value as stored and at 4k "
       "tokens with window and sinks, and whether perplexity stays within 0.25 of the base. With --results a cache "
       "whose row is there is not run again, if model, text, windows, path and build are the same: the same command "
       "goes on after Ctrl-C. --save-base writes the base's distributions in llama-perplexity's format, --base FILE "
       "reads such a file (of either program) instead of running the base; its 16 bits have a floor, which the control "
       "row shows.",
       "ridge eval kld -m model.gguf -f wiki.test.raw --path decode --kv f16,q8_0,rotor-3\n"
       "ridge eval kld -m model.gguf -f wiki.test.raw --kv rotor-3:hadamard,rotor-3:planar,q8_0/rotor-3:window=32\n"
       "ridge eval kld -m model.gguf -f wiki.test.raw -c 1024 --kv shelf --results results/kv-matrix.jsonl",
       declare_eval_kld},
      {"eval probe", "what a person would notice of a cache",
       "Next tokens behind 128 to 57344 others (likeliest token, ten likeliest, their log-probabilities, "
       "Jensen-Shannon "
       "divergence), needles, JSON and code, the same text twice, the same text from a kept prefix: each against the "
       "base's own and with limits. PASS, FAIL, NO VERDICT where errors reach a limit, NOT APPLICABLE beyond the "
       "trained context or where the base itself finds nothing. A FAIL ends the command with 3. --only needles has the "
       "share of tokens found (and their NLL in nats) by depth, the chance baseline beside them; --only divergence "
       "the token at which greedy texts first differ.",
       "ridge eval probe -m model.gguf -f wiki.test.raw\n"
       "ridge eval probe -m model.gguf -f wiki.test.raw --kv q8_0,rotor-3 --prompts 32 --results probe.jsonl\n"
       "ridge eval probe -m model.gguf -f wiki.test.raw --only needles -c 2048 --depths 9 --needle 24 --cue 12\n"
       "ridge eval probe -m model.gguf -f wiki.test.raw --only divergence --prompts 64 --prompt-tokens 1024 -n 256",
       declare_eval_probe},
      {"eval logits", "the logits of given token ids, to a file",
       "Runs the ids through the model and writes float32 logits [T, vocab_size] and the ids, as int32 [T], to a "
       "safetensors file, to compare with another implementation of the model. Rows go to the file as they are "
       "computed: "
       "memory does not grow with T. The file appears when it is complete. Refused: more ids than the model's context "
       "has, "
       "ids outside the vocabulary. The cache is f16 unless --kv says otherwise; f32 is exact.",
       "ridge eval logits -m model.gguf --ids golden.safetensors --kv f32 -o logits.safetensors\n"
       "ridge eval logits -m model.gguf --ids ids.json --path decode --kv rotor-3 -o logits.safetensors",
       declare_eval_logits},
      {"bench decode", "prefill and decode speed of models, with percent of memory bandwidth",
       "Flags, tests and row fields are those of llama-bench, with Ridge's own appended. Every value may be a comma "
       "list or a range (512-4096*2); tests are the cross product. Each cache format is compared with the reference "
       "kernels before it is timed: a wrong one gets no speed and the command ends with 3.",
       "ridge bench decode -m synth:qwen2.5-1.5b@weights=q4_0 -p 0 -n 32 -d 0,4096 --kv f16,q8_0,rotor-3\n"
       "ridge bench decode -m model.gguf -ctk f16,q8_0 -ctv f16 -o jsonl --results results/decode.jsonl\n"
       "ridge bench decode -m models/ridge-ref-q8_0.gguf --spec-type lookup --text models/wikitext-2-excerpt.txt -n "
       "128",
       declare_bench_decode},
      {"bench batch", "prefill and decode speed of several sequences at once",
       "Flags and columns are llama-batched-bench's, ours appended. For every number of sequences (-npl) the prompts "
       "run "
       "first; sequences share forward passes. Then every forward pass generates one token of each sequence, greedily, "
       "and computes the logits of every sequence. S_PP and S_TG count the tokens of all sequences. The percentage of "
       "memory bandwidth counts what a pass must read: the weights once and each sequence's cache. --lengths makes the "
       "sequences unequal. --fill puts random rows into the caches instead of running the prompts, so that 64 x 8192 "
       "is "
       "measured in seconds. Caches that do not fit are refused before anything runs. Small batches behind the same "
       "cache rows are first compared with the reference kernels: a wrong one gets no row and the command ends with 3.",
       "ridge bench batch -m synth:qwen2.5-1.5b@weights=int4_g128 -npp 512 -ntg 64 -npl 1,4,16,64 --device cuda\n"
       "ridge bench batch -m model.gguf -npl 16 --lengths 128-8192 --kv f16,rotor-3\n"
       "ridge bench batch -m model.gguf -npp 8192 -ntg 64 -npl 64 --fill -o jsonl --results results/batch.jsonl",
       declare_bench_batch},
      {"bench serve", "a server under load, as its clients see it",
       "Sends streaming completions over HTTP to a running server (--url) or to one started here (-m): from clients "
       "that "
       "wait for their answers, one test for each number of --clients, or as Poisson arrivals (--rate). Prompts are "
       "random token ids of drawn lengths, the same for the same --seed. The table has the time to the first text "
       "(TTFT), between pieces of text (ITL), tokens a second of all clients, requests a second within both limits "
       "(good), "
       "the most bytes of the cache in use, and the server's steps. An answer of another length than asked for ends "
       "the "
       "command with 3. A server started here has an empty cache for every test.",
       "ridge bench serve -m models/ridge-ref-q8_0.gguf --clients 1,8 --prompt-tokens 200-1000 --kv f16,rotor-3\n"
       "ridge bench serve --url http://127.0.0.1:8080 --rate 2 --seconds 60 --shared-prefix 1500 --prefixes 4\n"
       "ridge bench serve -m model.gguf --device cuda --parallel 128 --clients 128 --results results/serve-cuda.jsonl",
       declare_bench_serve},
      {"bench attention", "one layer's decode attention, by shape and cache format",
       "Times one layer's attention of the newest tokens (--new) of each sequence: samples of many calls (on a GPU "
       "replays of a CUDA graph) "
       "over buffers that take turns, so that data comes from memory. Each result is held against softmax in double "
       "first, and again after the timed calls: a wrong one is FAILED, gets no times, and the command ends with 3. "
       "The percentage of memory bandwidth is the bytes of the formats over the read bandwidth of the same run. With "
       "-m and -f nothing is timed: the model's own queries, keys and values go through each cache, and the attention "
       "output and the scores are compared with the exact ones in double precision, as they are and with an outlier "
       "channel (x20) planted in K. --json has every layer.",
       "ridge bench attention --heads 64/8 --seq 4096,32768 --kv f16,rotor-3\n"
       "ridge bench attention --heads 64/8 --batch 8 --seq 8192 --kv f32 --kernel all --device cuda -o jsonl\n"
       "ridge bench attention -m model.gguf -f wiki.test.raw --windows 8 --kv rotor-3:planar:window=0:sinks=0",
       declare_bench_attention},
      {"bench gemv", "matmul with weight matrices (GEMV, GEMM), by shape and batch",
       "Times y = x W for 1 to 64 tokens at a time, measured and checked like `bench attention`, against sums in "
       "double. Bytes are the weights in their format, and the activations once as float32.",
       "ridge bench gemv --shape 28672x4096,4096x14336 --weights int4_g128 --batch 1,8\n"
       "ridge bench gemv --weights i2_s --batch 1 --device cuda -o jsonl --results gemv.jsonl",
       declare_bench_gemv},
      {"bench append", "writing and coding new cache rows",
       "Times writing the K and V rows of new tokens into the cache, measured like `bench attention`. The check "
       "compares the written bytes with the output of the formats' encoders.",
       "ridge bench append --heads 64/8 --kv f16,rotor-3 --batch 1,8\n"
       "ridge bench append --heads 64/8 --kv q8_0 --new 1,32",
       declare_bench_append},
      {"bench collective", "all-reduce over ranks: GPUs of one machine, or CPU ranks over MPI",
       "Every rank gives --bytes of floats and gets the sum. Every rank checks the result before the timing and "
       "again after. GPUs: one process with one thread each, calls in recorded graphs; one-shot writes into the "
       "other GPUs' memory, nccl is NVIDIA's library. CPU: ranks of an MPI job. GB/s is the least that a rank must "
       "send; the link's rate is that of large copies in the same run.",
       "ridge bench collective --device cuda:0,1 --kernel all\n"
       "mpirun -np 2 --bind-to none ridge bench collective --tp 2 --bytes 4096,65536",
       declare_bench_collective},
      {"bench bandwidth", "the ceilings: bandwidth of memory and caches, multiply-adds",
       "Reads, writes and copies of buffers of at least 4 x the last-level cache, reads that fit the caches, and "
       "multiply-adds in registers, with Ridge's own kernels. The read rate is the memory bandwidth that decode is "
       "compared with. A ridge point is the number of operations per byte above which arithmetic is the limit. On a "
       "GPU also the cost of an edge between two kernels of a graph and of a graph's launch.",
       "ridge bench bandwidth\nridge bench bandwidth -t 1 --size 4096\nridge bench bandwidth --device cuda",
       declare_bench_bandwidth},
      {"compare", "is B faster than A here, beyond the noise",
       "Times an op in two formats or by two kernels, and A a second time, in turns. The difference between the two "
       "runs of A, or three times the spread of single samples, is the noise: an effect inside it gets NO VERDICT. "
       "Without --against and --against-kernel B is A too.",
       "ridge compare --op gemv --shape 8960x1536 --weights f16 --against int4_g128\n"
       "ridge compare --op attention --heads 12/2 --seq 32768 --kv f16 --against rotor-3",
       declare_compare},
      {"sweep", "a grid of measurements into a file of rows, resumable",
       "Measures every cell of SPEC, each checked first, and stores a row a cell. The same command again measures what "
       "is missing: after Ctrl-C, after a kill, or with a larger SPEC. Formats that are compared are measured in "
       "turns, the first of them twice: that is the noise floor. At the end, or with --crossovers, sentences say up to "
       "which batch or from which depth one format beats another.",
       "ridge sweep quick --results lab.jsonl\n"
       "ridge sweep regime --dry-run\n"
       "ridge sweep --crossovers --results lab.jsonl --baseline f16",
       declare_sweep},
      {"plan", "memory of a model and its caches, before loading",
       "Counts every byte from the configuration and the headers of tensors: weights as the device holds them, K and "
       "V of --sessions sequences of -c tokens, states, activations, scratch, logits. Each cache format has a "
       "column: whether it fits, the largest context and the most sessions that fit, the bytes that a decode pass "
       "reads, and the tokens a second that memory bandwidth allows. --check loads the model, runs the planned "
       "passes, compares component by component, and ends with 3 if a difference is over 1 %. When no format fits, "
       "the command ends with 5.",
       "ridge plan -m model.gguf -c 32768 --sessions 4\n"
       "ridge plan -m synth:llama-3.1-70b@weights=int4_g128 -c 131072 --memory-gib 80 --kv f16,rotor-3 --roof-gbs "
       "3300\n"
       "ridge plan -m models/ridge-ref-q8_0.gguf -c 4096 --sessions 2 --kv f16,rotor-3 --check",
       declare_plan},
      {"decide", "which cache format pays here, with the evidence",
       "Measures what the file of rows does not have yet: attention of the model's heads up to the context and of "
       "64/8/128, "
       "whole requests (prompt and generated tokens) in turns with f16, perplexity and KL divergence token by token, "
       "the "
       "plan. Then six gates judge every candidate (PASS, FAIL or NO VERDICT), and a record beside the file says "
       "which "
       "format to use from how many tokens on, for run --kv-quant auto. The same command again measures what is "
       "missing. "
       "--search looks for formats by layer and side, --only-quality leaves out all times. docs/deciding.md has the "
       "gates.",
       "ridge decide -m model.gguf -c 16384 -f wiki.test.raw --results lab.jsonl\n"
       "ridge decide -m model.gguf -c 32768 --sessions 8 --candidates rotor-3,q8_0/rotor-3 -f text.txt --results "
       "lab.jsonl\n"
       "ridge decide -m model.gguf -f wiki.test.raw --search wiki.valid.raw --kld-budget 0.002 --results lab.jsonl\n"
       "ridge decide --show decision-0123456789abcdef.json",
       declare_decide},
      {"profile", "where the time of a forward pass goes, op by op",
       "Divides the time of decode passes (with -p: of a prompt's pass) over ops on the CPU and kernels on a GPU: "
       "time, share, declared bytes, GB/s, percent of the read bandwidth measured in the same run, and what limits "
       "each op. Ops and the gaps between them add up to the pass. --trace writes one pass for ui.perfetto.dev.",
       "ridge profile -m synth:qwen2.5-1.5b@weights=q4_0 -d 4096 --kv-quant rotor-3\n"
       "ridge profile -m model.gguf -p 512 --trace step.json",
       declare_profile},
      {"quantize", "convert a model to a GGUF file with another weight format",
       "IN is a Hugging Face directory or a GGUF file, OUT a GGUF file. OUT appears only when it is complete, and a "
       "file "
       "that is there is replaced only with --force. Weights that are compressed already lose twice when they are "
       "rounded "
       "again: that needs --allow-requantize. Their own format, f16 and f32 lose nothing more. Prints the bits a "
       "weight of "
       "all tensors.",
       "ridge quantize path/to/hf-model model-q8_0.gguf --type q8_0\n"
       "ridge quantize model-bf16.gguf model-q4_k_m.gguf --type q4_k_m",
       declare_quantize},
      {"info", "what this build, this machine and a model are",
       "Build, processor, caches, memory, formats and kernels; with -m also the model's facts and the cost of its "
       "cache.",
       "ridge info\nridge info -m model.gguf --json", declare_info},
      {"explain", "which kernel runs an operation here, and why not the others",
       "Lists every kernel of an operation with what it needs, and marks the one that is chosen for the shape and "
       "format.",
       "ridge explain gemv --shape 8960x1536 --format q4_0\n"
       "ridge explain attention --shape 12/2/128 --keys 4096 --format q8_0/rotor-3 --isa avx2",
       declare_explain},
      {"report", "stored rows as figures and one page",
       "Draws CSV, SVG and PNG files and index.html, one page that needs no network: ceilings, roofline, where a step "
       "spends its time, speed by batch and depth, quality against bytes, and the row behind every figure. Measures "
       "nothing and needs no GPU. Rows whose check failed or is not recorded are in no figure; the page counts them. "
       "Needs python3-matplotlib (exit code 6 without).",
       "ridge report -o report\nridge report --results results --results lab.jsonl -o report", declare_report},
      {"doctor", "is this machine fit to measure on",
       "One line a check: ok, a note (worth knowing, or optional) or a problem (figures would be wrong, or a run would "
       "fail), with the remedy. Build, processor, threads, load, clocks, memory, ceilings in the stored rows, GPU and "
       "driver, optional programs. Prints GREEN, or lists the problems and exits with 1.",
       "ridge doctor\nridge doctor --results results --json", declare_doctor},
  };
  return kCommands;
}

}  // namespace ridge::cli
