"""HTTP itself: connections, errors and route descriptions. Does not depend on models."""
