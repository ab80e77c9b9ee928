"""A plugin for a modality of its own, written on public modules alone: see ``plugin``."""
