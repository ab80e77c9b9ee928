"""Models of the Hugging Face hub: lists, fetches, caches and removes them.

Follows huggingface_hub's own environment variables: HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE,
HF_HUB_DISABLE_PROGRESS_BARS. Only data is fetched: JSON, templates, vocabularies and safetensors
(or ONNX, if a repository has no safetensors); never pickles and never code.
"""
