"""The reference sampler: edits of logits, filters and Gumbel noise, on the host and on devices."""
