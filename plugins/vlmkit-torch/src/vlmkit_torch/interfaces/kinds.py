"""The kinds that vlmkit-torch owns."""

from vlmkit.plugins.kinds import Kind
from vlmkit_torch.interfaces.torch_attention import AttentionBackend
from vlmkit_torch.interfaces.torch_weights import WeightReader

DISTRIBUTION = "vlmkit-torch"

TORCH_ATTENTION: Kind[AttentionBackend] = Kind(
    "torch_attention",
    AttentionBackend,
    "one",
    "what writes keys and values of vlmkit-torch's cache, and attends over it",
    "vlmkit_torch.testing:TorchAttentionContract",
    "vlmkit_torch.testing.projects:ATTENTION",
)
TORCH_WEIGHTS: Kind[WeightReader] = Kind(
    "torch_weights",
    WeightReader,
    "one",
    "what reads the quantized weights of a checkpoint for vlmkit-torch",
    "vlmkit_torch.testing:TorchWeightsContract",
    "vlmkit_torch.testing.projects:WEIGHTS",
    serves="named",
)
KINDS = (TORCH_ATTENTION, TORCH_WEIGHTS)
