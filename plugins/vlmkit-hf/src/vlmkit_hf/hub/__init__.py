"""Models of the Hugging Face hub: what is fetched of one, where it is kept, what can go wrong.

Follows huggingface_hub's own environment variables: HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE,
HF_HUB_DISABLE_PROGRESS_BARS. Only data is fetched: JSON, templates, vocabularies and safetensors
(or ONNX, where a repository has no safetensors); never pickles and never code.
"""
