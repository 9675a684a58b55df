"""DeepGEMM's GEMM of e4m3 with scales by block, timed as the example tile_sweep of warpweave-gemm times ours.

python3 deepgemm.py FOLDER [--zeros] MxNxK ...

FOLDER has DeepGEMM's package deep_gemm (commit fea9309) with CUTLASS's headers in its include folder; CUDA 13 needs
-DPFN_cuTensorMapEncodeTiled=PFN_cuTensorMapEncodeTiled_v12000 among the flags of jit/compiler.py. Compiling takes some
seconds a shape. Prints the median of a launch in microseconds, over graphs of 24 launches on weights in turns, after
rests, and the chosen tile.
"""
import statistics, sys, time

import torch

LAUNCHES, ROUNDS, REST = 24, 5, 0.08
WEIGHTS, MOST_WEIGHTS = 200_000_000, 8

words = [word for word in sys.argv[1:] if word != "--zeros"]
if len(words) < 2:
    sys.exit(__doc__)
sys.path.insert(0, words[0])
import deep_gemm
from deep_gemm.jit_kernels.gemm import get_best_configs


def operand(rows, columns):
    """Uniform in [-1, 1), or zeros; made in parts, since f32 takes four times the memory."""
    values = torch.zeros((rows, columns), device="cuda", dtype=torch.float8_e4m3fn)
    if "--zeros" not in sys.argv:
        for part in values.split(1024):
            part.copy_(torch.rand(part.shape, device="cuda") * 2 - 1)
    return values


def scales(rows, columns):
    return torch.rand((rows, columns), device="cuda") / 2 + 0.5


def median_us(launch):
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(LAUNCHES):
            launch(turn)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(ROUNDS + 1):
        time.sleep(REST)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / LAUNCHES)
    # The first only wakes the GPU up.
    return statistics.median(times[1:])


torch.manual_seed(1)
for word in words[1:]:
    m, n, k = map(int, word.split("x"))
    a = operand(m, k), deep_gemm.get_col_major_tma_aligned_tensor(scales(m, k // 128))
    copies = min(max(WEIGHTS // (n * k), 1), MOST_WEIGHTS)
    weights = [(operand(n, k), scales((n + 127) // 128, k // 128)) for _ in range(copies)]
    c = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    us = median_us(lambda turn: deep_gemm.gemm_fp8_fp8_bf16_nt(a, weights[turn % copies], c))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    block_m, block_n = get_best_configs(m, n, k, 1, sms)[1:3]
    print(f"{word}: {us:.2f} us, tile {block_m}x{block_n}", flush=True)
