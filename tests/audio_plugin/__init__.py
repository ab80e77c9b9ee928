"""A plugin with audio input that uses public modules only; see ``plugin``."""
