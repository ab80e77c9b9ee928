"""KV cache events over ZMQ in vLLM's format: a monitor for routers that know each cache."""
