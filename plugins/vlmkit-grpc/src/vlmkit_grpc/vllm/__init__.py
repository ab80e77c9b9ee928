"""The services that vllm-router asks of its workers; off unless ``worker.vllm_services`` is set."""
