"""Writes the code of the services anew: ``python -m vlmkit_grpc.protocol.generate [FOLDER]``.

It needs grpcio-tools. A test compares its result with the committed code.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = "vlmkit_grpc/protocol"


def generate(folder: Path) -> None:
    """Write the modules of the messages and services below a folder of sources."""
    from grpc_tools import protoc

    source = HERE.parents[1]
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={source}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            *[f"{source}/{PACKAGE}/{name}.proto" for name in ("worker", "encoder", "vllm")],
        ]
    )
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1])
