"""vlmkit: vision-language-model inference assembled from plugins."""
