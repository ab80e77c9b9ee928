"""Contracts of the kinds that vlmkit-torch owns: inherit one in your plugin's tests. Public.

Needs pytest. See ``docs/how-to/torch-plugins.md``.
"""

from vlmkit_torch.testing.attention_contract import TorchAttentionContract
from vlmkit_torch.testing.weights_contract import TorchWeightsContract

__all__ = ["TorchAttentionContract", "TorchWeightsContract"]
