"""What errors of gRPC mean, in words of vlmkit; their own texts are not shown."""

import grpc

_REASONS = {
    grpc.StatusCode.UNAVAILABLE: "it cannot be reached",
    grpc.StatusCode.UNAUTHENTICATED: "it refuses the secret",
    grpc.StatusCode.DEADLINE_EXCEEDED: "it did not answer in time",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "it has too many calls, or a message is too large",
    grpc.StatusCode.UNIMPLEMENTED: "it has no such service, or another version of vlmkit",
    grpc.StatusCode.INVALID_ARGUMENT: "it refuses a message",
    grpc.StatusCode.FAILED_PRECONDITION: "it is another one than before",
    grpc.StatusCode.CANCELLED: "the connection is closed",
}


def reason_of(error: grpc.RpcError) -> str:
    """Return why a call failed."""
    code = error.code()
    return _REASONS.get(code, f"the call failed with {code.name}")
