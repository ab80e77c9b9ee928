"""The architecture of the demo model: a small LLaVA.

Builds the transformers model and the throw-away heads that teach the vision tower. Nothing here
trains or reads files.
"""

from picture import GRID, INK, LABEL_SIZES, SIDE
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

VISION_WIDTH = 192
VISION_LAYERS = 4
TEXT_WIDTH = 192
TEXT_LAYERS = 4
HEADS = 6
CONTEXT = 1024


def build_model(vocabulary: int, image: int, end: int, pad: int) -> LlavaForConditionalGeneration:
    """Build the model with random weights (seed torch first).

    Args:
        vocabulary: number of tokens.
        image: id of the image placeholder.
        end: id that ends an answer.
        pad: id of padding.
    """
    vision = CLIPVisionConfig(
        hidden_size=VISION_WIDTH, intermediate_size=4 * VISION_WIDTH, projection_dim=VISION_WIDTH,
        num_hidden_layers=VISION_LAYERS, num_attention_heads=HEADS, image_size=SIDE,
        patch_size=SIDE // GRID, hidden_act="quick_gelu", initializer_factor=1.0,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=vocabulary, hidden_size=TEXT_WIDTH, intermediate_size=512,
        num_hidden_layers=TEXT_LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=end, pad_token_id=pad, initializer_range=0.05,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=image, image_seq_length=GRID**2,
        vision_feature_layer=-1, vision_feature_select_strategy="default",
        projector_hidden_act="gelu", tie_word_embeddings=True,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config)


class PatchHeads(nn.Module):
    """Linear heads that classify each patch; used in training, not packaged.

    Halfway up the tower, another head draws the ink of each patch. So the tower learns shapes long
    before their names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(VISION_WIDTH)
        self.heads = nn.ModuleList(nn.Linear(VISION_WIDTH, n) for n in LABEL_SIZES.values())
        self.ink_norm = nn.LayerNorm(VISION_WIDTH)
        self.ink = nn.Linear(VISION_WIDTH, INK**2)

    def forward(
        self, half: Tensor, last: Tensor, labels: Tensor, ink: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Score the features of two layers, each ``[images, patches, hidden]``.

        Args:
            half: features half way up the tower.
            last: features at its top.
            labels: ``[images, 5, patches]``, 0 for background.
            ink: ``[images, patches, 49]`` between 0 and 1.

        Returns:
            The summed loss (things and background weigh the same), and for each head the share of
            correct patches on things.
        """
        drawn = self.ink(self.ink_norm(half.float()))
        ink_loss = nn.functional.binary_cross_entropy_with_logits(drawn, ink)
        numbers = {"ink": ink_loss.item()}
        features = self.norm(last.float())
        seen = labels[:, 0] > 0
        weight = seen / seen.sum().clamp(min=1) + 0.5 * ~seen / (~seen).sum().clamp(min=1)
        total = 10.0 * ink_loss
        for i, (name, head) in enumerate(zip(LABEL_SIZES, self.heads, strict=True)):
            logits = head(features).transpose(1, 2)
            loss = nn.functional.cross_entropy(logits, labels[:, i], reduction="none")
            total = total + (2.0 if name == "name" else 1.0) * (loss * weight).sum()
            numbers[name] = (logits.argmax(1) == labels[:, i])[seen].float().mean().item()
        return total, numbers
