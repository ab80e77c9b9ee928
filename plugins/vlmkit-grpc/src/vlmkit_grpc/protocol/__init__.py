"""The gRPC services of a worker: ``worker.proto``, and the code that grpcio-tools makes of it."""
