"""What the XLA programs that a computation executes have in them: counted from their optimised text, loops by trips.

JAX has no public way to see which programs run. So three of its functions are replaced while ``watched()`` lasts, which
a bench may do and the library does not: what executes a program, what would pass it by the next time, and what makes
code of a ``while``. Programs with a loop that XLA does not know the trips of are counted in a run of their own, in
which such loops report how often their body was run.
"""

import contextlib
import math
import re
import time
from collections import Counter, defaultdict

COUNTED = ("programs", "kernels", "bytes", "products", "elementwise", "transcendentals", "lapack")
SIZE = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
QUIET = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast", "while", "call", "conditional"}
SLICES = {"dynamic-slice", "gather", "slice"}
MOVES = {"broadcast", "reshape", "iota", "copy", "transpose", "pad", "concatenate", "reverse", "dynamic-update-slice"}
FREE = QUIET | SLICES | MOVES | {"fusion", "scatter", "custom-call", "bitcast-convert", "rng-bit-generator"}
DEAR = (
    "exponential exponential-minus-one log log-plus-one tanh power sqrt rsqrt sine cosine tan atan2 logistic erf cbrt"
)
TRANSCENDENTALS = set(DEAR.split())
CUBES = {"potrf": 1 / 3, "getrf": 2 / 3, "trsm": 1, "geqrf": 4 / 3, "orgqr": 4 / 3, "syevd": 9, "gesdd": 22, "geev": 25}
FOREVER = 2**31 - 2  # trips, of no loop: what marks those that count themselves
LINE = re.compile(r"\s+(ROOT )?%?(\S+) = (\(.*?\)|\S+) ([a-z\-]+)\((.*)")
SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def shapes(text):
    """Element type and extents of every array in the text of a type."""
    return [(kind, [int(n) for n in extents.split(",") if n]) for kind, extents in SHAPE.findall(text)]


def size(text):
    """Bytes of a type."""
    return sum(SIZE.get(kind, 4) * math.prod(extents) for kind, extents in shapes(text))


def elements(text):
    """Elements of the first array of a type."""
    found = shapes(text)
    return math.prod(found[0][1]) if found else 0


class Instruction:
    """One line of a computation: its name, type, kind, operands and what is written behind them."""

    def __init__(self, root, name, kind, code, rest):
        inside = rest.split("), ", 1)[0]
        self.root, self.name, self.type, self.code, self.rest = bool(root), name, kind, code, rest
        self.operands = re.findall(r"%([^\s,()]+)", inside)
        self.number = int(inside.split(")")[0]) if code == "parameter" else None

    def calls(self, word):
        """The computation that is named after a word."""
        found = re.search(rf"\b{word}=%?([^\s,}}]+)", self.rest)
        return found and found[1]


def computations(text):
    """Name -> instructions of every computation of a program, and the name of the one that is entered."""
    found, entry, name = defaultdict(list), None, None
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = name if line.startswith("ENTRY") else entry
        elif match := LINE.match(line):
            found[name].append(Instruction(*match.groups()))
    return dict(found), entry


def operations(instruction, types):
    """Products, elementwise operations, transcendentals and those of LAPACK of one instruction."""
    code, out = instruction.code, elements(instruction.type)
    if code == "dot":
        extents = shapes(types[instruction.operands[0]])[0][1]
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)[1]
        return Counter(products=2 * out * math.prod(extents[int(axis)] for axis in contracted.split(",") if axis))
    if code == "convolution":
        extents = shapes(types[instruction.operands[1]])[0][1]
        return Counter(products=2 * out * math.prod(extents) // max(extents))
    if code == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', instruction.rest)[1]
        cube = next((value for name, value in CUBES.items() if name in target), 0)
        arrays = [extents for _, extents in shapes(instruction.type) if len(extents) > 1]
        if not cube or not arrays:
            return Counter()
        *batch, rows, columns = arrays[0]
        order = shapes(types[instruction.operands[0]])[0][1][-1] if "trsm" in target else min(rows, columns)
        return Counter(lapack=cube * math.prod(batch) * rows * columns * order)
    if code in ("reduce", "reduce-window", "map"):
        return Counter(elementwise=elements(types[instruction.operands[0]]))
    if code == "sort":
        return Counter(elementwise=out * max(1.0, math.log2(max(shapes(instruction.type)[0][1] or [1]))))
    return (
        Counter() if code in FREE else Counter({("transcendentals" if code in TRANSCENDENTALS else "elementwise"): out})
    )


def traffic(instruction, types, fused):
    """Bytes that a kernel reads and writes: of an array that it takes a slice of, the slice alone."""
    out = size(instruction.type)
    read = [size(types.get(name, "")) for name in instruction.operands]
    if instruction.code in SLICES:
        return 2 * out
    if instruction.code == "dynamic-update-slice":
        return 2 * read[1]
    within = {one.name: one for one in fused}
    for one in fused:
        if one.code != "parameter" or one.number >= len(read):
            continue
        users = [user for user in fused if one.name in user.operands]
        own = [user for user in users if user.operands[0] == one.name]
        slices = [user for user in own if user.code in SLICES]
        updates = [user for user in own if user.code == "dynamic-update-slice"]
        if users and len(slices) + len(updates) == len(users):  # a row that is kept or replaced is read and written
            read[one.number] = min(read[one.number], sum(size(user.type) for user in slices))
            out -= sum(size(user.type) - size(within[user.operands[1]].type) for user in updates)
    return max(out, 0) + sum(read)


class Content:
    """What one program has in it.

    Attributes:
        fixed: Counts of what is run a known number of times when the program is.
        loops: Counts of one trip of each loop that reports its trips, one entry a copy of the loop.
        unknown: Loops whose trips nobody knows.
    """

    def __init__(self, text):
        self.found, entry = computations(text)
        self.fixed, self.loops, self.unknown = Counter(programs=1), defaultdict(list), 0
        self._walk(entry, 1, self.fixed)
        del self.found

    def _walk(self, name, times, into):
        block = self.found.get(name, ())
        types = {one.name: one.type for one in block}
        for one in block:
            if one.code == "while":
                trips = re.search(r'known_trip_count":\s*\{"n":\s*"(\d+)"', one.rest)
                marks = re.findall(r"counted_loop_(\d+)", one.rest)
                if trips:
                    self._loop(one, times * int(trips[1]), into)
                elif marks:
                    self.loops[int(marks[-1])].append(Counter())
                    self._loop(one, 1, self.loops[int(marks[-1])][-1])
                else:
                    self.unknown += 1
                    self._loop(one, times, into)
            elif one.code == "call":
                self._walk(one.calls("to_apply"), times, into)
            elif one.code == "conditional":
                branches = re.findall(r"(?:branch_computations=\{|_computation=)([^},]*)", one.rest)
                for branch in re.findall(r"%?([^\s,%]+)", ",".join(branches)):
                    self._walk(branch, times, into)
            elif one.code not in QUIET:
                fused = self.found.get(one.calls("calls"), []) if one.code == "fusion" else []
                inside = {inner.name: inner.type for inner in fused}
                into["kernels"] += times
                into["bytes"] += times * traffic(one, types, fused)
                for inner, known in [(one, types)] + [(inner, inside) for inner in fused]:
                    for kind, count in operations(inner, known).items():
                        into[kind] += times * count

    def _loop(self, one, times, into):
        self._walk(one.calls("condition"), times, into)
        self._walk(one.calls("body"), times, into)


class Watch:
    """Programs that were executed.

    Attributes:
        runs: Executions of each.
        seconds: CPU seconds within programs.
        compiling: CPU seconds of compilation.
        trips: Trips of each loop that reports them.
    """

    def __init__(self):
        self.runs, self.programs, self.trips = Counter(), {}, Counter()
        self.seconds = self.compiling = 0.0

    def counts(self):
        """Counts of all that was executed, and of loops whose trips are unknown."""
        total, unknown = Counter(), 0
        copies, trip = Counter(), defaultdict(list)
        for key, times in self.runs.items():
            content = self._content(self.programs[key])
            unknown += content.unknown
            for kind, count in content.fixed.items():
                total[kind] += times * count
            for mark, bodies in content.loops.items():
                copies[mark] += times * len(bodies)
                trip[mark] += [(times, body) for body in bodies]
        for mark, bodies in trip.items():
            for times, body in bodies:
                for kind, count in body.items():
                    total[kind] += count * self.trips[mark] * times / copies[mark]
        return {kind: float(total[kind]) for kind in COUNTED}, unknown

    @staticmethod
    def _content(program):
        return Content("\n".join(module.to_string() for module in program.hlo_modules()))


@contextlib.contextmanager
def watched(report=False):
    """A ``Watch`` of all programs executed meanwhile; with ``report``, loops of unknown length tell their trips."""
    import jax
    import jax.extend

    try:
        from jax._src import compiler, pjit
        from jax._src.interpreters import mlir, pxla
        from jax._src.lax.control_flow import loops

        run, fast, compiled = pxla.ExecuteReplicated.__call__, pjit._get_fastpath_data, compiler.compile_or_get_cached
        lowered = loops._while_lowering
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"jax {jax.__version__} runs programs in another way than 0.10.2: {error}") from None
    watch = Watch()

    def execute(self, *arguments):
        key = id(self.xla_executable)
        watch.programs[key] = self.xla_executable
        watch.runs[key] += 1
        begun = time.process_time()
        out = jax.block_until_ready(run(self, *arguments))
        watch.seconds += time.process_time() - begun
        return out

    def compile_timed(*arguments, **options):
        begun = time.process_time()
        out = compiled(*arguments, **options)
        watch.compiling += time.process_time() - begun
        return out

    marks = iter(range(10**9))

    def note(mark, trips):
        watch.trips[mark] += int(trips)

    def lower(ctx, *arguments, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts):
        options = {"cond_nconsts": cond_nconsts, "body_nconsts": body_nconsts}
        limits = [one.invars[1] for one in cond_jaxpr.jaxpr.eqns if one.primitive.name == "lt"]
        limits = [
            int(one.val) for one in limits if isinstance(one, jax.extend.core.Literal) and one.aval.dtype == "int32"
        ]
        bounded, own = len(limits) == len(cond_jaxpr.jaxpr.eqns) == 1, FOREVER in limits
        if bounded or own or cond_jaxpr.effects or body_jaxpr.effects:
            return lowered(ctx, *arguments, cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr, **options)
        mark = next(marks)

        def counting(*all_arguments):
            befores, afters = all_arguments[:cond_nconsts], all_arguments[cond_nconsts:]
            constants, start = afters[:body_nconsts], afters[body_nconsts:]

            def goes_on(state):
                more = jax.core.eval_jaxpr(cond_jaxpr.jaxpr, cond_jaxpr.consts, *befores, *state[1])[0]
                return (state[0] < FOREVER) & more.any()

            def step(state):
                more = jax.core.eval_jaxpr(cond_jaxpr.jaxpr, cond_jaxpr.consts, *befores, *state[1])[0]
                after = jax.core.eval_jaxpr(body_jaxpr.jaxpr, body_jaxpr.consts, *constants, *state[1])
                if more.shape:
                    after = [_where(more, new, old) for new, old in zip(after, state[1], strict=True)]
                return state[0] + 1, tuple(after)

            with jax.named_scope(f"counted_loop_{mark}"):
                trips, end = jax.lax.while_loop(goes_on, step, (jax.numpy.int32(0), tuple(start)))
            jax.debug.callback(lambda count: note(mark, count), trips)
            return list(end)

        return mlir.lower_fun(counting, multiple_results=True)(ctx, *arguments)

    jax.clear_caches()
    pxla.ExecuteReplicated.__call__, pjit._get_fastpath_data = execute, lambda *_: None
    compiler.compile_or_get_cached = compile_timed
    if report:
        mlir.register_lowering(loops.while_p, lower)
    try:
        yield watch
        jax.effects_barrier()
    finally:
        pxla.ExecuteReplicated.__call__, pjit._get_fastpath_data = run, fast
        compiler.compile_or_get_cached = compiled
        if report:
            mlir.register_lowering(loops.while_p, lowered)
        jax.clear_caches()


def _where(more, new, old):
    import jax.numpy as jnp

    return jnp.where(more.reshape(more.shape + (1,) * (new.ndim - more.ndim)), new, old)


def check():
    """Leave with one line if a nested loop, whose trips only running it tells, is not counted as it is by hand."""
    import jax
    import jax.numpy as jnp

    dim, members, narrow = 30, jnp.array([1.0, 3.0, 300.0]), jnp.ones((30, 10))

    def turn(one, row=0.0):
        return jnp.tanh(one @ narrow @ narrow.T + row)

    def triangle(matrix, last):
        def outer(index, start):
            return jax.lax.fori_loop(0, index, lambda _, one: turn(one), start)

        return jax.lax.fori_loop(0, last, outer, matrix)

    def doubled(start):
        return jax.lax.while_loop(lambda one: one < 1000, lambda one: 2 * one, start)

    def known(matrix, rows):
        return jax.lax.scan(lambda one, row: (turn(one, row), None), matrix, rows[:, None, :])[0]

    def kept(first, rows):
        def write(index, rows):
            return rows.at[index].set(jnp.where(index < first, rows[index], jnp.tanh(rows[index - 1])))

        return jax.lax.fori_loop(1, len(rows), write, rows)

    with watched(report=True) as watch:
        matrix = jnp.eye(dim)
        jax.jit(triangle)(matrix, 5)
        for _ in range(2):
            jax.jit(known)(matrix, jnp.ones((7, dim)))
        jax.jit(jax.vmap(doubled))(members)
    counts, unknown = watch.counts()
    found = counts["products"], counts["transcendentals"], sorted(watch.trips.values()), unknown
    right = 24 * 4 * 10 * dim**2, 24 * dim**2, [5, 10, 10], 0  # 24 turns: 0 + 1 + 2 + 3 + 4, and 7 twice
    grown = []  # bytes of twice the rows, over those of the rows: one is read and written at a time, not all of them
    for loop, start in ((known, jnp.eye(dim)), (kept, 5)):
        read = []
        for length in (1000, 2000):
            with watched() as watch:
                jax.jit(loop)(start, jnp.ones((length, dim)))
            read.append(watch.counts()[0]["bytes"])
        grown.append(read[1] / read[0])
    if found != right or not all(1.8 < ratio < 2.2 for ratio in grown):
        counted = f"{found} and bytes that grow by {grown}, expected {right} and 2"
        raise SystemExit(f"programs are counted as {counted}: this jax compiles in another way")
