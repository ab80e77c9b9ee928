"""HTTP itself: connections, errors on the wire, how routes are asked. Knows no models."""
