"""The kernels that compute our exports on this CPU.

Operators and session options are read from the graph. ONNX Runtime selects instructions by the
flags of the CPU. The result names the widest ones that this CPU has and for which ONNX Runtime 1.31
has a kernel.
"""

from pathlib import Path

LAYERS = ("MatMulIntegerToFloat", "MatMulNBits", "MatMul")
INSTRUCTIONS = {  # widest first: the flags that are all required, as Linux names them
    "AMX": {"amx_tile", "amx_int8"},
    "AVX-512 VNNI": {"avx512_vnni"},
    "AVX-VNNI-INT8": {"avx_vnni_int8"},
    "AVX-512": {"avx512bw", "avx512dq", "avx512vl"},
    "AVX-VNNI": {"avx_vnni"},
    "AVX2": {"avx2"},
    "I8MM": {"i8mm"},
    "NEON": {"asimddp"},
}
NOT_FOR = {  # kernels that ONNX Runtime does not have
    "unsigned weights": {"AMX", "AVX-512 VNNI", "AVX-VNNI"},
    "signed weights": {"AVX-VNNI-INT8"},
    "blocks": {"AMX", "AVX-VNNI-INT8"},
    "single precision": {"AMX", "AVX-512 VNNI", "AVX-VNNI-INT8", "AVX-VNNI", "I8MM"},
}


def name(folder: Path) -> str:
    """Return the kernel of the linear layers of an export: operator, form and instructions."""
    from vlmkit_onnx.folder import graph_header
    from vlmkit_onnx.sessions import session
    from vlmkit_onnx.settings import ComputeSettings

    file = folder / "decoder.onnx"
    header = graph_header.read_header(file)
    operator = next(layer for layer in LAYERS if layer in header.op_types)
    if form := session.check(file, ComputeSettings()):
        return f"{operator} with {form.name}, {widest(form.name)}"
    if header.packed:
        sizes = {f"{p.num_bits} bits in blocks of {p.block_size}" for p in header.packed}
        return f"{operator} with {' and '.join(sorted(sizes))}, {widest('blocks')}"
    return f"{operator} in single precision, {widest('single precision')}"


def widest(form: str) -> str:
    """Return the widest instructions of this CPU for a form of kernels."""
    flags = cpu_flags()
    for instructions, needed in INSTRUCTIONS.items():
        if needed <= flags and instructions not in NOT_FOR[form]:
            return instructions
    return "instructions not known" if not flags else "baseline instructions"


def cpu_flags() -> set[str]:
    """Return the flags of this CPU as Linux names them; empty on other systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())
