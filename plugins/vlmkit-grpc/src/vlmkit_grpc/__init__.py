"""Models on other machines: ``vlmkit worker`` answers over gRPC, and the runner ``grpc`` asks."""
