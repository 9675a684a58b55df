"""What `warpweave-example-llama bench` measures, by PyTorch with NCCL: the same shapes, random weights,
greedy decode in CUDA graphs. Its file joins the tables and plots of the bench:

    torchrun --nproc-per-node 4 examples/llama/peers/torch_llama.py --json torch.json
    warpweave-example-llama bench --device cuda --ranks 4 --shape 8b --peer torch.json --report DIR

A time is the median over rounds of the slowest rank's. Attention is PyTorch's scaled_dot_product_attention:
compare communication by the NCCL way of the bench itself, and whole steps by this.
"""

import argparse
import json
import os
import statistics
import time

# NVLink multicast only where it was asked for, as in Warpweave itself.
if os.environ.get("WARPWEAVE_MULTICAST") != "1":
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.nn.functional as F

WAY = "PyTorch with NCCL"
# Llama 3.1 8B.
VOCABULARY, HIDDEN, WIDTH, LAYERS, HEADS, KEY_HEADS, HEAD, THETA = 128256, 4096, 14336, 32, 32, 8, 128, 5e5


class Llama:
    """A rank's part of the model."""

    def __init__(self, layers, world):
        def matrix(rows, columns):
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5

        self.heads, self.key_heads = HEADS // world, KEY_HEADS // world
        q, width = self.heads * HEAD, WIDTH // world
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.embedding, self.head = matrix(VOCABULARY, HIDDEN), matrix(VOCABULARY // world, HIDDEN)
        self.layers = [
            (
                matrix(q + 2 * self.key_heads * HEAD, HIDDEN),
                matrix(HIDDEN, q),
                matrix(2 * width, HIDDEN),
                matrix(HIDDEN, width),
            )
            for _ in range(layers)
        ]
        self.frequencies = THETA ** (-torch.arange(0, HEAD, 2, device="cuda").float() / HEAD)

    def normalized(self, x):
        return F.rms_norm(x, (HIDDEN,), self.norm, 1e-5)

    def rotated(self, x, positions):
        """Rotates [batch, heads, tokens, head] to [batch, tokens] positions."""
        angles = positions[:, None, :, None] * self.frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, tokens, positions, caches, mask):
        """The most probable next token of each of [batch, tokens]; without caches a prompt, else one token
        each."""
        batch, length = tokens.shape
        residual = F.embedding(tokens, self.embedding)
        for index, (qkv, o, gate_up, down) in enumerate(self.layers):
            heads = F.linear(self.normalized(residual), qkv).view(batch, length, -1, HEAD).transpose(1, 2)
            q, k, v = heads.split((self.heads, self.key_heads, self.key_heads), 1)
            q, k = self.rotated(q, positions), self.rotated(k, positions)
            if caches is not None:
                places = positions[:, None, :, None].expand_as(k)
                keys, values = caches[index]
                k, v = keys.scatter_(2, places, k), values.scatter_(2, places, v)
            causal = caches is None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
            residual = residual + self.reduced(F.linear(y.transpose(1, 2).reshape(batch, length, -1), o))
            gate, up = F.linear(self.normalized(residual), gate_up).chunk(2, -1)
            residual = residual + self.reduced(F.linear(F.silu(gate) * up, down))
        logits = F.linear(self.normalized(residual[:, -1]), self.head)
        gathered = logits.new_empty(dist.get_world_size() * batch, logits.shape[1])
        dist.all_gather_into_tensor(gathered, logits)
        return gathered.view(-1, batch, logits.shape[1]).transpose(0, 1).reshape(batch, -1).argmax(-1)

    def reduced(self, x):
        dist.all_reduce(x)
        return x

    def prefill(self, length):
        tokens = (torch.arange(length, device="cuda") * 37 % VOCABULARY)[None]
        positions = torch.arange(length, device="cuda")[None]
        return lambda: self.forward(tokens, positions, None, None)

    def decode(self, batch, context, capacity, steps):
        """One captured step, replayed."""
        tokens = torch.arange(batch, device="cuda")[:, None]
        positions = torch.full((batch, 1), context, device="cuda")
        shape = (batch, self.key_heads, capacity, HEAD)
        caches = [
            [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv"] for _ in self.layers
        ]
        at = torch.arange(capacity, device="cuda")

        def step():
            tokens.copy_(self.forward(tokens, positions, caches, (at <= positions)[:, None, None])[:, None])
            positions.add_(1)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            step()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def run():
            positions.fill_(context)
            for _ in range(steps):
                graph.replay()

        # The graph has their addresses.
        run.operands = tokens, caches, at
        return run


def median(run, rounds):
    """Seconds of the slowest rank, the first run left out."""
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        slowest = torch.tensor([time.perf_counter() - began], device="cuda", dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times.append(slowest.item())
    return statistics.median(times[1:])


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--prefill", type=numbers, default=[512, 4096, 16384])
    parser.add_argument("--decode", type=numbers, default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl")
    figures = []
    with torch.inference_mode():
        model = Llama(options.layers, dist.get_world_size())
        for length in options.prefill:
            seconds = median(model.prefill(length), options.rounds)
            figures.append({"way": WAY, "phase": "prefill", "size": length, "seconds": seconds})
        for batch in options.decode:
            run = model.decode(batch, options.context, options.context + options.steps + 4, options.steps)
            seconds = median(run, options.rounds) / options.steps
            figures.append({"way": WAY, "phase": "decode", "size": batch, "seconds": seconds})
    if dist.get_rank() == 0:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
    dist.destroy_process_group()


main()
