"""What PyTorch's own operators take for the operations of the bench. `cargo xtask bench --peers torch` runs
it on the problems of a suite; without the bench it writes a file for `--peers FILE`:

    torchrun --nproc-per-node 4 crates/bench/peers/torch_peers.py --json torch.json
    cargo xtask bench --suite recipes --peers torch.json

Problems are MxNxK as in the bench: N is each rank's own for all-gather + matmul and for column-parallel
linear layers, K is split over the ranks where they reduce. Linear layers have their weight as N x K.
`torch-nccl` is NCCL and cuBLAS one after the other, `torch-fused` the operator over symmetric memory, where
there is one, `torch-matmul` the GEMM alone; an operator that cannot run is null. Of collectives the size is
what a rank brings. float8_e4m3fn has scales by row of A and by column of B, the hardware's own accumulation,
and bfloat16 results.

A time is of device events around one call; before it the device is kept busy while the call is enqueued, and
a barrier on the device aligns the ranks. Each sample is that of the slowest rank; median, p10 and p90 are
over the samples, as in the bench. Operators are interleaved in rounds, and what keeps the device busy is the
operator itself: a GPU's clock falls under long GEMMs and rises again while it idles, which it does not do in
the bench's rounds. Inputs change with every call.
"""

import argparse
import json
import os
import sys

# NVLink multicast only where it was asked for, as in Warpweave itself: symmetric memory of PyTorch takes it
# wherever it is.
if os.environ.get("WARPWEAVE_MULTICAST") != "1":
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
GATHER = ["1024x1024x1024"]
GATHER += [
    f"{m}x{n}x{k}" for n, k in ((1792, 4096), (3584, 8192), (6656, 16384)) for m in (4096, 8192, 16384)
]
GATHER += ["32768x8192x16384"]
REDUCE = ["8192x8192x8192", "8192x8192x32768", "4096x4096x14336"]
GATHERS = ["all-gather-matmul", "column-parallel-linear"]
REDUCTIONS = ["matmul-reduce-scatter", "matmul-all-reduce", "row-parallel-linear"]
SETS = 2
# Milliseconds of calls before each that is timed; the bench's rounds leave a device about as little rest.
LEAD = 10.0
# Cycles for which the device is kept busy while the host enqueues the last: about a third of a millisecond.
SLEEP = 600_000


class Clock:
    """Times calls, all ranks aligned on the device before each."""

    def __init__(self, group):
        pad = symmetric_memory.empty(1024, device="cuda", dtype=torch.float32)
        self.aligned = symmetric_memory.rendezvous(pad, group)

    def sample(self, call, lead=1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(lead):
            call()
        torch.cuda._sleep(SLEEP)
        self.aligned.barrier()
        start.record()
        call()
        end.record()
        end.synchronize()
        slowest = torch.tensor([start.elapsed_time(end)], device="cuda", dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()

    def rounds(self, contenders, load, count):
        """The spread of each of the contenders, by name, with input set `i` loaded before its i-th call; None
        of those that cannot run."""
        able = {}
        for name, call in contenders.items():
            try:
                for i in range(3):
                    load(i)
                    call()
                able[name] = call
            except (RuntimeError, AttributeError, ValueError) as error:
                # Shapes, types and versions are the same on every rank, and so is what they forbid.
                tell(f"{name}: {error}")
        lead = {name: max(1, round(LEAD / self.sample(call))) for name, call in able.items()}
        samples = {name: [] for name in able}
        for i in range(count):
            for name, call in able.items():
                load(i)
                samples[name].append(self.sample(call, min(lead[name], 50)))
        return {name: spread(samples[name]) if name in able else None for name in contenders}


def tell(text):
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def spread(times):
    ordered = torch.tensor(sorted(times), dtype=torch.float64)
    low, middle, high = (torch.quantile(ordered, q).item() for q in (0.1, 0.5, 0.9))
    return {"median": middle, "p10": low, "p90": high, "samples": len(times)}


def values(rows, columns, dtype):
    """Uniform in -1 to 1, in any type."""
    return (torch.rand(rows, columns, device="cuda") * 2 - 1).to(dtype)


def scales(*sizes):
    return torch.rand(*sizes, device="cuda") + 0.5


def result_type(dtype):
    return torch.bfloat16 if dtype.itemsize == 1 else dtype


def part(matmul):
    """The GEMM alone, marked as a part of the operation."""
    return {"torch-matmul": matmul and {**matmul, "part": True}}


def gather(clock, group, sizes, dtype, count, linear):
    """All-gather + matmul: A by rows, B whole on each rank, stored transposed where it is the weight of a
    linear layer. Nothing where the rows cannot be shared evenly."""
    m, n, k = sizes
    world = dist.get_world_size()
    if m % world:
        return {}
    a = symmetric_memory.empty(m // world, k, device="cuda", dtype=dtype)
    symmetric_memory.rendezvous(a, group)
    sets = [values(m // world, k, dtype) for _ in range(SETS)]
    b = values(n, k, dtype).t() if linear or dtype.itemsize == 1 else values(k, n, dtype)
    whole = torch.empty(m, k, device="cuda", dtype=dtype)
    c = torch.empty(m, n, device="cuda", dtype=result_type(dtype))
    share, all_scales, of_b = scales(m // world, 1), scales(m, 1), scales(1, n)
    fast = {"out_dtype": c.dtype, "use_fast_accum": True}

    def separate():
        dist.all_gather_into_tensor(whole, a)
        torch.matmul(whole, b, out=c)

    def scaled():
        torch._scaled_mm(whole, b, all_scales, of_b, out=c, **fast)

    def separate_scaled():
        dist.all_gather_into_tensor(whole.view(torch.uint8), a.view(torch.uint8))
        dist.all_gather_into_tensor(all_scales, share)
        scaled()

    if dtype.itemsize == 1:
        fused = torch.ops.symm_mem.fused_all_gather_scaled_matmul
        contenders = {
            "torch-nccl": separate_scaled,
            "torch-fused": lambda: fused(
                a, [b], share, [of_b], 0, group.group_name, [None], [None], [c.dtype], [True]
            ),
            "torch-matmul": scaled,
        }
    else:
        contenders = {
            "torch-nccl": separate,
            "torch-fused": lambda: torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group.group_name),
            "torch-matmul": lambda: torch.matmul(whole, b, out=c),
        }
    times = clock.rounds(contenders, lambda i: a.copy_(sets[i % SETS]), count)
    return {**times, **part(times["torch-matmul"])}


def reduce(clock, group, sizes, dtype, count):
    """Matmul + reduce-scatter and matmul + all-reduce: A by columns, B by rows, stored transposed as a linear
    layer's weight. Nothing where rows and columns cannot be shared evenly."""
    m, n, k = sizes
    world = dist.get_world_size()
    if m % world or k % world:
        return {}
    sets = [values(m, k // world, dtype) for _ in range(SETS)]
    x = torch.empty_like(sets[0])
    w = values(n, k // world, dtype).t()
    c = torch.empty(m, n, device="cuda", dtype=result_type(dtype))
    rows = torch.empty(m // world, n, device="cuda", dtype=c.dtype)
    of_x, of_w = scales(m, 1), scales(1, n)

    def matmul():
        if dtype.itemsize == 1:
            torch._scaled_mm(x, w, of_x, of_w, out_dtype=c.dtype, use_fast_accum=True, out=c)
        else:
            torch.matmul(x, w, out=c)

    def fused():
        if dtype.itemsize > 1:
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "sum", 0, group.group_name)
        operator = torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter
        more = {"out_dtype": c.dtype, "use_fast_accum": True}
        return operator(x, w, of_x, of_w, "sum", 0, 0, group.group_name, [m, n], **more)

    def scatter():
        matmul()
        dist.reduce_scatter_tensor(rows, c)

    def all_reduce():
        matmul()
        dist.all_reduce(c)

    contenders = {"scatter": scatter, "fused": fused, "all": all_reduce, "matmul": matmul}
    times = clock.rounds(contenders, lambda i: x.copy_(sets[i % SETS]), count)
    alone = part(times["matmul"])
    both = {"torch-nccl": times["all"], **alone}
    return {
        "matmul-reduce-scatter": {"torch-nccl": times["scatter"], "torch-fused": times["fused"], **alone},
        "matmul-all-reduce": both,
        "row-parallel-linear": both,
    }


def collect(clock, group, size, dtype, count):
    """Collectives of a size: NCCL's, and all-reduces over symmetric memory, in place."""
    world = dist.get_world_size()
    number = int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)
    # Whole vectors of 16 bytes for each rank.
    number = max(number // (16 * world), 1) * 16 * world // dtype.itemsize
    symmetric = symmetric_memory.empty(number, device="cuda", dtype=dtype)
    symmetric_memory.rendezvous(symmetric, group)
    sets = [torch.rand_like(symmetric) * 2 - 1 for _ in range(SETS)]
    plain, share = torch.empty_like(sets[0]), torch.empty_like(sets[0][: number // world])
    gathered = torch.empty(world * number, device="cuda", dtype=dtype)

    def load(i):
        plain.copy_(sets[i % SETS])
        symmetric.copy_(sets[i % SETS])

    over_symmetric = torch.ops.symm_mem
    contenders = {
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, plain),
        "all_reduce": lambda: dist.all_reduce(plain),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, plain),
        "one_shot_all_reduce": lambda: over_symmetric.one_shot_all_reduce(symmetric, "sum", group.group_name),
        "two_shot_all_reduce": lambda: over_symmetric.two_shot_all_reduce_(
            symmetric, "sum", group.group_name
        ),
    }
    return clock.rounds(contenders, load, count)


def start():
    """Joins the other ranks, which torchrun has started, or `cargo xtask bench`, whose variables have other
    names."""
    if "WARPWEAVE_RANK" in os.environ:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ[name] = os.environ["WARPWEAVE_" + name]
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = os.environ["WARPWEAVE_STORE"].rsplit(":", 1)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", required=True, metavar="FILE", help="where rank 0 writes")
    parser.add_argument(
        "--gather", nargs="*", default=GATHER, metavar="MxNxK", help="problems of all-gather + matmul"
    )
    parser.add_argument(
        "--reduce", nargs="*", default=REDUCE, metavar="MxNxK", help="problems of reductions over the ranks"
    )
    parser.add_argument(
        "--problem",
        nargs=3,
        action="append",
        metavar=("KIND", "SIZES", "DTYPE"),
        help="in the place of these lists: an operation and MxNxK, or `collectives` and bytes as 64K; "
        "others are passed over",
    )
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32", "float8_e4m3fn"]
    )
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()

    problems = options.problem or [
        *(("all-gather-matmul", shape, options.dtype) for shape in options.gather),
        *((kind, shape, options.dtype) for shape in options.reduce for kind in REDUCTIONS),
    ]
    known = [problem for problem in problems if problem[0] in ("collectives", *GATHERS, *REDUCTIONS)]
    if not known:
        sys.exit("PyTorch has no operator for " + ", ".join(sorted({kind for kind, _, _ in problems})))

    start()
    group = dist.group.WORLD
    symmetric_memory.enable_symm_mem_for_group(group.group_name)
    clock, world, found, reduced = Clock(group), dist.get_world_size(), [], {}
    for kind, shape, name in known:
        dtype = getattr(torch, name)
        sizes = None if kind == "collectives" else tuple(map(int, shape.split("x")))
        if kind == "collectives":
            times = collect(clock, group, shape, dtype, options.iterations)
        elif kind in GATHERS:
            times = gather(clock, group, sizes, dtype, options.iterations, kind == "column-parallel-linear")
        else:
            # All of them are timed in the same rounds.
            if (shape, name) not in reduced:
                reduced[shape, name] = reduce(clock, group, sizes, dtype, options.iterations)
            times = reduced[shape, name].get(kind, {})
        found.append({"kind": kind, "world": world, "shape": shape, "dtype": name, "ms": times})
        medians = (f"{name} {time['median']:.4f} ms" for name, time in times.items() if time)
        tell(" ".join((kind, shape, name, *medians)))
    if dist.get_rank() == 0:
        with open(options.json, "w") as out:
            json.dump(
                {"torch": torch.__version__, "nccl": torch.cuda.nccl.version(), "rows": found}, out, indent=1
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
