#!/usr/bin/env python3
"""Trains the MTP head of a small Llama in a GGUF file (q8_0 or f32) further, the model itself frozen.

    python3 models/train_mtp_head.py --model models/ridge-ref-q8_0.gguf --tokens tokens.npz --eval-texts 192 --out FOLDER

The head learns the model's own probabilities, on real text and on text that the model writes behind prompts of it, at the depths that the
engine asks for: the first proposal from the model's hidden state, the further ones from the head's own, with the keys that the engine's
cache has then. Writes FOLDER/mtp.safetensors, which --draft-model and `ridge quantize` take, and FOLDER/result.json: how many proposals
hold before and after.

--tokens is made by models/mtp_tokens.py, from text of Wikipedia, which is CC BY-SA; so is what is trained on it. Two texts are kept out,
for evaluation: models/wikitext-2-excerpt.txt and the beginnings of the last 80 documents. The head of ridge-ref took 8 minutes of one
H100 and 34 GiB of it, 6 of them training. The schedule follows the clock: a new run gives a similar head, not the same bits. Needs torch,
with CUDA but for --smoke and --evaluate, and numpy.
"""
import argparse
import json
import math
import pathlib
import time
from dataclasses import dataclass

import numpy
import torch
from mtp_head import Base, Shape, as_engine_holds, chain, check, head_logits, proposal_loss, read_gguf, read_safetensors, write_safetensors

N_GRAM = 8  # tokens that repeat, as `ridge bench decode` counts them

# Text and evaluation
TEXT_SHARE = 0.16  # of the time, in which the model writes text
N_PROMPT, N_NEW = 100, 128  # tokens of an evaluated text
EVAL_DEPTH = 5  # most proposals of a step

# The loss
DEPTH_WEIGHTS = (1.0, 0.75, 0.5)  # of the proposals that the head learns to make in a row
HARD = 0.3  # the model's likeliest token, against its probabilities
PROMPT_WEIGHT = 0.5  # real text; the model's own counts 1
LOOP_WEIGHT = 0.2  # tokens that repeat eight or more
UNMATCHED_WEIGHT = 0.2  # proposals behind a wrong one
RESTART_SHARE = 0.25  # texts in which the head begins anew somewhere
RATE = 1e-3
LOG_STEPS = 200


# ---- text

def repeated(ids, first):
    """Which tokens [B, n] end eight tokens that stood before in the same row, from column `first` on."""
    out = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    if ids.shape[1] - first <= N_GRAM:
        return out
    factors = torch.tensor([(6364136223846793005 ** (i + 1) + 2 * i) % 2**62 | 1 for i in range(N_GRAM)], device=ids.device)
    keys = (ids[:, first:].long().unfold(1, N_GRAM, 1) * factors).sum(-1)
    ordered, order = keys.sort(dim=1, stable=True)
    again = torch.cat([torch.zeros_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] == ordered[:, :-1]], 1)
    out[:, first + N_GRAM - 1:] = torch.zeros_like(again).scatter(1, order, again)
    return out


@dataclass
class Plan:
    """Rows of one length: real text, and behind it what the model writes."""
    length: int   # rows of hidden states that the head trains on
    batch: int    # texts a step
    at_once: int  # texts generated together
    prompts: dict  # tokens of real text: share of greedy texts


PLANS = [Plan(1024, 32, 4096, {832: 0.6, 640: 0.4, 448: 0.25}), Plan(256, 128, 8192, {128: 0.5, 96: 0.4, 64: 0.3, 16: 0.1})]
SMOKE_PLANS = [Plan(48, 2, 4, {32: 0.5, 24: 0.5}), Plan(32, 4, 4, {16: 0.5})]


def write_texts(base, plan, train, seconds, generator):
    """Texts [N, length + depth] as int16, each token's weight in the loss, and how many tokens the model wrote."""
    begun, n_round, texts, weights, n_repeated, n_written = time.time(), 0, [], [], 0, 0
    draw = lambda *shape: torch.rand(*shape, device=base.device, generator=generator)
    while n_round < len(plan.prompts) or time.time() - begun < seconds:
        n_prompt, greedy_share = list(plan.prompts.items())[n_round % len(plan.prompts)]
        n = plan.length + len(DEPTH_WEIGHTS)
        at = (draw(plan.at_once) * (len(train) - n_prompt)).long()
        prompts = train[at[:, None] + torch.arange(n_prompt, device=base.device)].long()
        prompts[:, 0] = 0  # as a text begins
        warm = torch.tensor([0.3, 0.6, 0.8, 0.8, 1.0], device=base.device)[(draw(plan.at_once) * 5).long()]
        ids = base.generate(prompts, n - n_prompt, torch.where(draw(plan.at_once) < greedy_share, 0.0, warm), generator)
        again = repeated(ids, n_prompt)
        weight = torch.where(again, LOOP_WEIGHT, 1.0)
        weight[:, :n_prompt] = PROMPT_WEIGHT
        texts.append(ids.to(torch.int16))
        weights.append(weight.half())
        n_repeated, n_written = n_repeated + int(again.sum()), n_written + plan.at_once * (n - n_prompt)
        n_round += 1
    print(f"length {plan.length}: {n_written} tokens written in {n_round} rounds, {time.time() - begun:.0f} s; "
          f"{100 * n_repeated / n_written:.0f} % of them repeat", flush=True)
    return (torch.cat(texts), torch.cat(weights)), n_written


# ---- evaluation

@dataclass
class Texts:
    name: str
    temperature: float
    ids: torch.Tensor
    ends: list  # where each text begins to repeat, at its first such token
    looping: list
    repeated_share: float


def eval_texts(base, kept, n_texts, n_new):
    generator = torch.Generator(base.device).manual_seed(7)
    sets = []
    for name, rows in kept.items():
        for temperature in (0.0, 0.8):
            prompts = torch.stack([torch.cat([torch.zeros(1, dtype=torch.long), row[:N_PROMPT - 1]]) for row in rows[:n_texts]]).to(base.device)
            ids = base.generate(prompts, n_new, torch.full((len(prompts),), temperature, device=base.device), generator)
            again = repeated(ids, N_PROMPT)
            share = again[:, N_PROMPT:].float().mean(1)
            ends = torch.where(again.any(1), again.int().argmax(1), ids.shape[1]).tolist()
            sets.append(Texts(name, temperature, ids, ends, (share > 0.3).tolist(), round(share.mean().item(), 3)))
    return sets


def steps_of(chosen, depth):
    """How often each proposal of a step was reached and held, and tokens and steps, of texts decoded with `depth` proposals a step.

    `chosen`: of each text, which proposals hold, by depth and row, and its length.
    """
    reached, held, tokens, steps = [0] * depth, [0] * depth, 0, 0
    for row, n_text in chosen:
        length = N_PROMPT + 1  # the prompt gives the first token
        while length + EVAL_DEPTH <= n_text:
            n_held = 0
            while n_held < depth:
                reached[n_held] += 1
                if not row[n_held][length - 2]:
                    break
                held[n_held] += 1
                n_held += 1
            length, tokens, steps = length + n_held + 1, tokens + n_held + 1, steps + 1
    return reached, held, tokens, steps


@torch.no_grad()
def evaluate(head, base, sets):
    """Three rows a set: all texts, those that do not loop, and all up to where each begins to repeat."""
    rows = []
    for texts in sets:
        n = texts.ids.shape[1] - 1 - EVAL_DEPTH
        hidden = base.hidden(texts.ids)[:, :n]
        starts = torch.zeros(len(hidden), dtype=torch.long, device=base.device)
        holds = []
        for e, state in enumerate(chain(head, base, texts.ids, hidden, EVAL_DEPTH, starts)):
            logits = head_logits(head, base, state)
            holds.append(logits.argmax(-1) == texts.ids[:, e + 2:e + 2 + n])
        holds = torch.stack(holds, 1).tolist()
        full, pairs = texts.ids.shape[1], list(zip(holds, texts.ends, texts.looping))
        for loops, chosen in (("with", [(row, full) for row, _, _ in pairs]), ("none", [(row, full) for row, _, looping in pairs if not looping]),
                              ("front", [(row, end) for row, end, _ in pairs])):
            row = {"text": texts.name, "temperature": texts.temperature, "loops": loops, "texts": len(chosen),
                   "repeated_share": texts.repeated_share}
            reached, held, _, steps = steps_of(chosen, 3)
            if steps:
                row["steps_3"] = steps
                row["holds"] = [round(h / r, 4) if r else None for h, r in zip(held, reached)]
                row["accepted_of_proposed"] = round(sum(held) / (3 * steps), 4)
                for depth in (1, 2, 3, EVAL_DEPTH):
                    _, _, tokens, steps = steps_of(chosen, depth)
                    row[f"tokens_per_step_{depth}"] = round(tokens / steps, 4)
            rows.append(row)
    return rows


def show(title, rows):
    print(f"\n{title}\n{'text':24} temp loops texts |  1st   2nd   3rd | of 3 | tokens a step at 1, 2, 3, {EVAL_DEPTH} proposals")
    for row in rows:
        if "holds" not in row:
            continue
        shares = " ".join("  -  " if share is None else f"{share:.3f}" for share in row["holds"])
        steps = " ".join(f"{row[f'tokens_per_step_{depth}']:.3f}" for depth in (1, 2, 3, EVAL_DEPTH))
        print(f"{row['text']:24} {row['temperature']:4} {row['loops']:5} {row['texts']:5} | {shares} | "
              f"{row['accepted_of_proposed']:.2f} | {steps}", flush=True)


# ---- training

class Trainer:
    """Head, optimizer, and texts with their weights, a pair a plan."""

    def __init__(self, base, head, plans, pools, generator):
        self.base, self.plans, self.pools, self.generator = base, plans, pools, generator
        self.head = {name: tensor.to(base.device).clone().requires_grad_() for name, tensor in head.items()}
        matrices = [p for p in self.head.values() if p.dim() == 2]
        vectors = [p for p in self.head.values() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}],
                                           lr=RATE, betas=(0.9, 0.95), fused=base.device == "cuda")

    def losses(self, i):
        """Of a batch of plan i: the loss, and per depth [right where it counts, what counts]."""
        base, (texts, weights), n, batch, n_depths = self.base, self.pools[i], self.plans[i].length, self.plans[i].batch, len(DEPTH_WEIGHTS)
        draw = lambda: torch.rand(batch, device=base.device, generator=self.generator)
        chosen = (draw() * len(texts)).long()
        ids, weight = texts[chosen].long(), weights[chosen].float()
        with torch.no_grad():
            hidden = base.hidden(ids)
            target = base.logits(hidden)
        starts = torch.where(draw() < RESTART_SHARE, (draw() * n).long(), 0)
        matched, loss, counts = torch.ones(batch, n, device=base.device), 0, []
        for e, state in enumerate(chain(self.head, base, ids, hidden[:, :n], n_depths, starts)):
            weight_here = weight[:, e + 1:e + 1 + n]
            one, proposals, right = proposal_loss(state, target[:, e + 1:e + 1 + n],
                                                  weight_here * (UNMATCHED_WEIGHT + (1 - UNMATCHED_WEIGHT) * matched),
                                                  self.head["shared_head_norm.weight"], base.embedding, HARD, base.s.eps, base.dtype)
            loss = loss + DEPTH_WEIGHTS[e] * one / (batch * n)
            exact = weight_here * matched
            counts.append(torch.stack([(exact * right).sum(), exact.sum()]))
            if e + 1 < n_depths:
                matched = matched * (proposals == ids[:, e + 2:e + 2 + n])
        return loss, torch.stack(counts)

    def step(self, i, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, counts = self.losses(i)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.head.values()), 1.0)
        self.optimizer.step()
        return loss.detach(), counts.detach()

    def train(self, seconds, most_steps):
        """Steps and seconds that it took."""
        begun, step, totals = time.time(), 0, [0, 0]
        while (elapsed := time.time() - begun) < seconds and step < most_steps:
            done = max(elapsed / seconds, step / most_steps)
            rate = RATE * min(1.0, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
            loss, counts = self.step(step % len(self.plans), rate)
            totals = [totals[0] + loss, totals[1] + counts]
            step += 1
            if step % LOG_STEPS == 0:
                mean = totals[0].item() / LOG_STEPS  # waits for the device, so the clock above is right within a few steps
                if not math.isfinite(mean):
                    raise SystemExit(f"the loss is {mean} at step {step}")
                shares = (totals[1][:, 0] / totals[1][:, 1]).tolist()
                print(f"step {step} {time.time() - begun:.0f} s rate {rate:.2e} loss {mean:.4f} right "
                      f"{' '.join(f'{share:.4f}' for share in shares)}", flush=True)
                totals = [0, 0]
        return step, time.time() - begun


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file, q8_0 or f32, with a head")
    parser.add_argument("--tokens", type=pathlib.Path, required=True, help="of models/mtp_tokens.py")
    parser.add_argument("--head", type=pathlib.Path, help="safetensors to begin with; else the head in the GGUF file")
    parser.add_argument("--golden", type=pathlib.Path, help="golden.json of the model, to check the forward pass by")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=8, help="all of it: text, training, evaluation")
    parser.add_argument("--eval-texts", type=int, default=64, help="prompts of the held-out text")
    parser.add_argument("--evaluate", action="store_true", help="evaluate the head, and train nothing")
    parser.add_argument("--smoke", action="store_true", help="everything in small, on any machine: says nothing about a head")
    return parser.parse_args()


def main():
    begun = time.time()
    options = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not (options.smoke or options.evaluate):
        raise SystemExit("no CUDA device: only --smoke and --evaluate run without one")
    torch.manual_seed(1)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length of a cache
    options.out.mkdir(parents=True, exist_ok=True)
    plans, n_texts, n_new, most_steps = (SMOKE_PLANS, 4, 16, 6) if options.smoke else (PLANS, options.eval_texts, N_NEW, 1_000_000)

    metadata, tensors = read_gguf(options.model)
    s = Shape(metadata)
    start_head = read_safetensors(options.head) if options.head else s.head_of(tensors)
    with numpy.load(options.tokens) as file:
        train, held, wiki = (torch.from_numpy(file[name].astype(numpy.int32)) for name in ("train", "held", "wiki"))
    train, held = train.to(device), held.long()
    places = [i * (len(held) - N_PROMPT) // n_texts for i in range(n_texts)]
    kept = {"held-out text": [held[p:p + N_PROMPT] for p in places], "beginnings of articles": list(wiki.long())}
    exact = Base(s, tensors, device, torch.float32)
    base = Base(s, tensors, device, torch.bfloat16)
    on_device = lambda head: {name: tensor.to(device) for name, tensor in head.items()}
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{machine}, {len(train)} tokens, {len(held)} held out, ready after {time.time() - begun:.0f} s", flush=True)

    check(exact, on_device(start_head), kept, options.golden)
    at = time.time()
    sets = eval_texts(exact, kept, n_texts, n_new)
    before = evaluate(on_device(as_engine_holds(start_head)), exact, sets)
    show("before", before)
    row = {"kind": "mtp_head", "model": metadata.get("general.name", ""), "device": machine, "torch": torch.__version__, "before": before}
    if options.evaluate:
        (options.out / "result.json").write_text(json.dumps(row) + "\n")
        return
    for_evaluation = 2 * (time.time() - at) + 10

    generator = torch.Generator(device).manual_seed(1)
    budget = 60 * options.minutes
    written = [write_texts(base, plan, train, budget * TEXT_SHARE / len(plans), generator) for plan in plans]
    if device == "cuda":
        torch.cuda.empty_cache()
    trainer = Trainer(base, start_head, plans, [pool for pool, _ in written], generator)
    steps, seconds = trainer.train(max(budget - for_evaluation - (time.time() - begun), 30), most_steps)
    facts = {"model": row["model"], "module": "mtp (next-n)", "licence": "CC-BY-SA-4.0"}
    write_safetensors(options.out / "mtp.safetensors", trainer.head, facts)

    after = evaluate(on_device(as_engine_holds(read_safetensors(options.out / "mtp.safetensors"))), exact, sets)
    show("after", after)
    tokens = sum(plans[i % len(plans)].length * plans[i % len(plans)].batch for i in range(steps))
    row |= {"steps": steps, "train_seconds": round(seconds), "tokens": tokens, "written_tokens": sum(n for _, n in written), "after": after,
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else None}
    (options.out / "result.json").write_text(json.dumps(row) + "\n")
    print(f"\n{steps} steps, {tokens} tokens, {seconds:.0f} s of training, {time.time() - begun:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
