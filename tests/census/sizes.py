"""The small value of each size, by its name in configurations."""

WIDTH, HEADS, KV_HEADS, HEAD, INNER = 64, 4, 2, 16, 96
LAYERS, MOST_LAYERS = 3, 4
WINDOW = 32  # tokens: more than the shortest prompt has, and fewer than the longest
LONGEST = 4096

_NAMES = (
    (
        WIDTH,
        """
        hidden_size d_model n_embd embed_dim d_embed emb_dim out_hidden_size
        text_hidden_size projection_dim projector_output_dim output_dim output_proj_dims
        adapter_out_dim image_token_embed_dim encoder_hidden_size embedding_size
        word_embed_proj_dim vision_hidden_size vision_output_dim vocab_hidden_size
        embedding_dim dim_model attention_hidden_size lru_width hidden_dim
        """,
    ),
    (
        HEADS,
        """
        num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads
        decoder_attention_heads swa_num_attention_heads num_sliding_attention_heads
        resampler_n_heads resampler_heads linear_num_value_heads num_query_groups
        """,
    ),
    (
        KV_HEADS,
        """
        num_key_value_heads num_kv_heads n_head_kv swa_num_key_value_heads kv_n_heads
        linear_num_key_heads num_key_value_heads_global num_global_key_value_heads
        """,
    ),
    (
        HEAD,
        """
        head_dim global_head_dim d_head dim_head v_head_dim qk_nope_head_dim swa_head_dim
        d_kv linear_key_head_dim linear_value_head_dim kv_channels resampler_head_dim
        swa_v_head_dim index_head_dim attention_head_size attention_head_dim
        query_pre_attn_scalar
        """,
    ),
    (
        INNER,
        """
        intermediate_size ffn_dim ffn_hidden_size n_inner encoder_ffn_dim decoder_ffn_dim
        feed_forward_size dff dim_ff intermediate_size_mlp block_ff_dim d_inner
        expert_ffn_hidden_size dense_intermediate_size shared_intermediate_size
        moe_intermediate_size shared_expert_intermediate_size
        moe_shared_expert_intermediate_size projector_hidden_size projector_input_dim
        alignment_intermediate_size shared_experts_intermediate_size share_expert_dim
        projection_hidden_size projection_hidden_dim hidden_size_global
        """,
    ),
    (
        LAYERS,
        """
        num_hidden_layers n_layer n_layers num_layers depth encoder_layers decoder_layers
        num_blocks
        """,
    ),
    (
        4,
        """
        num_experts num_local_experts n_routed_experts moe_num_experts
        """,
    ),
    (
        2,
        """
        num_experts_per_tok num_experts_per_token moe_topk moe_k topk_group n_group
        num_expert_group
        """,
    ),
    (
        16,
        """
        q_lora_rank kv_lora_rank o_lora_rank adapter_rank mamba_d_head mamba_chunk_size
        """,
    ),
    (
        8,
        """
        qk_rope_head_dim rotary_dim mamba_n_heads mamba_d_state
        """,
    ),
    (
        1,
        """
        first_k_dense_replace num_dense_layers n_shared_experts
        """,
    ),
    (
        WINDOW,
        """
        sliding_window sliding_window_size attention_window_size attention_chunk_size
        """,
    ),
    (
        LONGEST,
        """
        max_position_embeddings n_positions
        """,
    ),
)
SMALL = {name: size for size, names in _NAMES for name in names.split()}
"""One that is smaller, or no number, stays."""
