"""Peer baseline: Hugging Face Qwen2 (random weights) under PyTorch FSDP2, as well tuned as its users get it.
torchrun --nproc_per_node=N torch_fsdp2.py --size 7b --seq 4096 --micro 2 --accum 1 --ac none|full --compile 0|1
Prints one JSON line from rank 0: tokens/s/GPU, model TFLOP/s/GPU (6N + causal attention), peak memory."""
import argparse, json, os, time, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention import sdpa_kernel, SDPBackend
from transformers import Qwen2Config, AutoModelForCausalLM
S = {"0.5b": (896, 24, 14, 2, 4864, 151936, True), "1.5b": (1536, 28, 12, 2, 8960, 151936, True),
     "3b": (2048, 36, 16, 2, 11008, 151936, True), "7b": (3584, 28, 28, 4, 18944, 152064, False),
     "14b": (5120, 48, 40, 8, 13824, 152064, False), "32b": (5120, 64, 40, 8, 27648, 152064, False)}
p = argparse.ArgumentParser()
p.add_argument("--size", default="1.5b"); p.add_argument("--seq", type=int, default=4096); p.add_argument("--micro", type=int, default=2)
p.add_argument("--accum", type=int, default=1); p.add_argument("--ac", default="none"); p.add_argument("--compile", type=int, default=1); p.add_argument("--steps", type=int, default=8)
p.add_argument("--warm", type=int, default=3); p.add_argument("--sdpa", default="cudnn"); p.add_argument("--pure", type=int, default=0)
a = p.parse_args()
rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); W = dist.get_world_size()
size, _, depth = a.size.partition("/")  # 32b/16: 16 of its blocks
h, L, nh, kv, inter, vocab, tie = S[size]; L = int(depth or L)
cfg = Qwen2Config(hidden_size=h, num_hidden_layers=L, num_attention_heads=nh, num_key_value_heads=kv, intermediate_size=inter,
                  vocab_size=vocab, tie_word_embeddings=tie, max_position_embeddings=32768, use_cache=False)
torch.manual_seed(0)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16 if a.pure else torch.float32, attn_implementation="sdpa")
N = sum(x.numel() for x in model.parameters())
layers = model.model.layers
for i in range(len(layers)):
    if a.ac == "full": layers[i] = checkpoint_wrapper(layers[i], preserve_rng_state=False)
    if a.compile: layers[i].compile()
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for l in layers: fully_shard(l, mp_policy=mp)
fully_shard(model, mp_policy=mp)
opt = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
model.train()
flops_tok = 6 * (N - (0 if tie else vocab * h)) + 6 * L * h * a.seq   # causal: 12*L*h*seq/2
be = {"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}[a.sdpa]
import torch.nn.functional as F
def step():
    for _ in range(a.accum):
        ids = torch.randint(0, vocab, (a.micro, a.seq), device="cuda")
        with sdpa_kernel(be):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss; (loss / a.accum).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step(); opt.zero_grad(); return loss
try:
    for _ in range(a.warm): step()
    torch.cuda.synchronize(); dist.barrier(); t = []
    for _ in range(a.steps):
        t0 = time.time(); l = step(); torch.cuda.synchronize(); t.append(time.time() - t0)
    t.sort(); s = t[len(t)//2]; tok = a.accum * a.micro * a.seq / s
    if rank == 0: print("RESULT", json.dumps(dict(peer="hf+fsdp2", **vars(a), gpus=W, params=N, step_s=round(s, 4), min_s=round(t[0], 4), tok_s_gpu=round(tok), tflops_gpu=round(tok*flops_tok/1e12, 1), peak_gib=round(torch.cuda.max_memory_allocated()/2**30, 1), reserved_gib=round(torch.cuda.max_memory_reserved()/2**30,1), loss=round(l.item(), 3))), flush=True)
except torch.cuda.OutOfMemoryError as e:
    if rank == 0: print("RESULT", json.dumps(dict(peer="hf+fsdp2", **vars(a), gpus=W, oom=True)), flush=True)
dist.destroy_process_group()
