"""Fields that many bodies share: how they are decoded, and what they come to."""
