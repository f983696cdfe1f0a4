"""Where a training step's time goes, by kind of operation: ``icl.fit`` as XLA runs it, and PyTorch, on one thread.

    .venv/bin/python bench/training_profile.py [--shapes tiny32,tiny40,small64] [--top 0]

The shapes, the data and the PyTorch network are those of ``training.py``. Ours is the loop that ``icl.fit`` compiles,
recorded by JAX's profiler. An operation's kind is told by the Python functions it was traced from, which the compiled
program names, and by what it does. A fusion is of the kind of its root. Times are an operation's own: those of a loop
inside a step are without what the loop runs. Floating-point operations are those of the matrix products, from their
shapes. PyTorch is its eager row with fused Adam: each of its operations is a kind by its name, and compiled kernels
have no names to tell kinds by. Recording itself costs time, so the steps are timed without it too.

``--top`` prints so many of our operations besides. PyTorch: .venv/bin/python -m pip install torch==2.13.0
"""

import argparse
import collections
import json
import re
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import machine
import training
import training_costs

STEPS, TRIES = 40, 5
DENSE, WEIGHTS = "dense products", "their weights' gradients"
ATTENTION, SOFTMAX, MOVED = "attention products", "softmax", "heads moved in memory"
GELU, NORM, SUMS = "GELU", "layer norms", "sums, biases, loss"
PROMPTS, ADAM, BETWEEN = "drawing prompts", "Adam", "between operations"
UNTOLD = "not told by the compiler"
KINDS = (DENSE, WEIGHTS, ATTENTION, SOFTMAX, MOVED, GELU, NORM, SUMS, PROMPTS, ADAM, UNTOLD, BETWEEN)
COPIES = ("transpose", "copy", "concatenate", "bitcast", "slice", "reshape")
# The beginnings of PyTorch's names; the first that fits counts.
THEIRS = {
    "aten::addmm": DENSE,
    "aten::mm": DENSE,  # with the weights' gradients
    "aten::_scaled_dot_product": ATTENTION,  # with the softmax between them
    "aten::gelu": GELU,
    "aten::native_layer_norm": NORM,
    "aten::normal_": PROMPTS,
    "aten::randn": PROMPTS,
    "aten::bmm": PROMPTS,  # the labels of the prompts
    "aten::_fused_adam": ADAM,
    "aten::copy_": MOVED,
    "aten::cat": MOVED,
    "aten::add": SUMS,
    "aten::sum": SUMS,
    "aten::mul": SUMS,
}


class Instruction:
    """An instruction of a compiled program: its opcode, result, operands' names, attributes, and who called it."""

    def __init__(self, opcode, shape, rest, frames):
        self.opcode, self.shape = opcode, shape
        arguments, _, self.attributes = rest.partition(")")
        self.operands = re.findall(r"%([\w.\-]+)", arguments)
        self.path = (re.search(r'op_name="([^"]*)"', rest) or ("", ""))[1]
        found = re.search(r"stack_frame_id=(\d+)", rest)
        self.callers = frames.get(int(found[1]), ()) if found else ()


def instructions(text):
    """Name -> instruction, of all computations of a compiled program."""
    frames = callers(text)
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)", line)
        if match:
            dims = re.match(r"\w+\[([\d,]*)\]", match[2])
            shape = tuple(map(int, filter(None, dims[1].split(",")))) if dims else ()
            found[match[1]] = Instruction(match[3], shape, match[4], frames)
    return found


def callers(text):
    """Stack frame -> the functions of it and of its callers, innermost first."""

    def table(title, pattern):
        start = text.index(f"\n{title}\n") + len(title) + 2
        return {int(m[1]): m for m in re.finditer(pattern, text[start : text.index("\n\n", start)], re.MULTILINE)}

    functions = table("FunctionNames", r'^(\d+) "(.*)"$')
    places = table("FileLocations", r"^(\d+) \{.*?function_name_id=(\d+)")
    frames = table("StackFrames", r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?")

    def walk(frame):
        while frame in frames:
            yield functions[int(places[int(frames[frame][2])][2])][2]
            frame = int(frames[frame][3] or 0) - 1  # parents are counted from one more than frames are

    return {frame: tuple(walk(frame)) for frame in frames}


def kind(name, one, known):
    """The kind of an instruction of the loop's body."""
    functions = one.callers
    within = next((f for f in functions if f.split(".")[0] in ("Attention", "LayerNorm", "Perceptron", "Dense")), "")
    if any("sample" in function for function in functions) or "Interleaved.tokens" in functions:
        return PROMPTS
    if not functions:
        return UNTOLD
    if not any(function.startswith("losses_at") for function in functions):
        return ADAM  # and whether the member goes on
    if one.path.endswith("dot_general"):
        if "product" not in functions:
            return ATTENTION
        rows = max(known[operand].shape[0] for operand in one.operands if known[operand].shape)
        return DENSE if one.shape[0] == rows else WEIGHTS
    if within.startswith("Attention"):
        pattern = "Attention._pattern" in functions and not name.startswith(COPIES)
        return SOFTMAX if pattern else MOVED
    if within.startswith("LayerNorm"):
        return NORM
    if within.startswith("Perceptron"):
        return GELU
    return SUMS


def products(known):
    """Kind -> floating-point operations of the matrix products of a step."""
    found = collections.Counter()
    for name, one in known.items():
        if one.opcode == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
            left, count = known[one.operands[0]].shape, 2
            for size in (*one.shape, *(left[int(i)] for i in contracted[1].split(","))):
                count *= size
            found[kind(name, one, known)] += count
    return found


def recorded(run, known):
    """Name -> seconds that an operation took itself in ``run(STEPS)``, on the thread that runs the known ones."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run(STEPS))
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    lines = [
        [(e.start_ns, -e.duration_ns, e.name) for e in line.events] for plane in data.planes for line in plane.lines
    ]
    thread = max(lines, key=lambda events: sum(name in known for *_, name in events))
    own, open_until = collections.Counter(), []
    for start, negative, name in sorted(thread):
        while open_until and open_until[-1][0] <= start:
            open_until.pop()
        if open_until:
            own[open_until[-1][1]] += negative * 1e-9
        own[name] -= negative * 1e-9
        open_until.append((start - negative, name))
    return own


def ours(shape):
    """Kind -> milliseconds of a step and its products' operations; milliseconds without recording; operations."""
    import jax

    _, _, rows, _ = training.ours(shape, 1)
    program, _, run = training_costs.loop_of(training_costs.first_plan(lambda: rows[training.ALONE](1)))
    known = instructions(program.as_text())
    alone = timed(lambda steps: jax.block_until_ready(run(steps)))
    by_kind, single = collections.Counter(), {}
    for name, seconds in recorded(run, known).items():
        one = known.get(name)
        its = BETWEEN if one is None else kind(name, one, known)
        by_kind[its] += 1e3 * seconds / STEPS
        if one is not None:
            single[name] = (its, one.shape, 1e6 * seconds / STEPS)
    return by_kind, products(known), alone, sorted(single.items(), key=lambda item: -item[1][2])


def theirs(shape):
    """Kind -> milliseconds of a step of PyTorch, and milliseconds of a step that is not recorded."""
    import torch

    torch.set_num_threads(1)
    model, *_ = training.ours(shape, 1)
    run = training.rival(shape, model, False)[1]["torch eager, fused Adam"]
    alone = timed(run)
    tries = []
    for _ in range(TRIES):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run(STEPS)
        found = collections.Counter()
        for entry in profile.key_averages():
            its = next((its for begins, its in THEIRS.items() if entry.key.startswith(begins)), BETWEEN)
            found[its] += entry.self_cpu_time_total * 1e-3 / STEPS
        tries.append(found)
    return min(tries, key=lambda found: sum(found.values())), alone


def timed(run):
    """Milliseconds of CPU time of a step, the least of some tries."""
    run(2)
    found = []
    for _ in range(TRIES):
        begun = time.process_time()
        run(STEPS)
        found.append(1e3 * (time.process_time() - begun) / STEPS)
    return min(found)


def measure(name):
    """Both sides of one shape, in one process."""
    shape = training.SHAPES[name][0]
    by_kind, operations, alone, single = ours(shape)
    other, other_alone = theirs(shape)
    return {
        "ours": by_kind,
        "products": operations,
        "alone": alone,
        "single": single,
        "theirs": other,
        "theirs alone": other_alone,
    }


def table(name, found, top):
    """Print the kinds of one shape."""
    mine, their = (sum(found[side].values()) for side in ("ours", "theirs"))
    print(f"\n{name}: ms of a step, recorded {mine:.2f}, not recorded {found['alone']:.2f};", end=" ")
    print(f"torch eager, fused Adam {their:.2f}, {found['theirs alone']:.2f}")
    print(f"{'kind':<26} {'ms':>7} {'share':>6} {'MFLOP':>7} {'GFLOP/s':>8} {'torch ms':>9}")
    for one in KINDS:
        ms, count = found["ours"].get(one, 0.0), found["products"].get(one, 0)
        rate = f"{count / 1e6:>7.0f} {count / 1e6 / ms:>8.0f}" if count >= 1e6 and ms else f"{'':>7} {'':>8}"
        print(f"{one:<26} {ms:>7.2f} {ms / mine:>6.0%} {rate} {found['theirs'].get(one, 0.0):>9.2f}")
    for operation, (its, shape, microseconds) in found["single"][:top]:
        print(f"    {operation:<30} {its:<26} {shape!s:<20} {microseconds:>7.0f} us")


def main():
    """Print a table of every shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="tiny32,tiny40,small64", help=f"of {', '.join(training.SHAPES)}")
    parser.add_argument("--top", type=int, default=0, help="how many of our operations are named, longest first")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        threads, *rest = json.loads(arguments.child)
        machine.pin(threads)
        print(json.dumps(measure(*rest)))
        return 0
    if find_spec("torch") is None:
        print("PyTorch is missing: .venv/bin/python -m pip install torch==2.13.0", file=sys.stderr)
        return 2
    print(machine.described("jax", "torch"))
    for name in arguments.shapes.split(","):
        table(name, machine.child(__file__, 1, name), arguments.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
