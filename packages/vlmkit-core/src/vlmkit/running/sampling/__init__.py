"""How the reference sampler chooses: changes of logits, filters, noise; on host and device."""
